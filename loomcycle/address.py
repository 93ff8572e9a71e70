"""Listen addresses: ``host:port``, ``:port`` for every interface, ``[::1]:port``."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """``host`` "" means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """How this machine reaches it."""
        local = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{Address(local, self.port)}"


def parse_address(text: str) -> Address:
    """Raises ValueError, saying what an address looks like."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or ("]" in port):
        raise ValueError(f"listen address {text!r}: write host:port, such as 127.0.0.1:8787")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"listen address {text!r}: put an IPv6 host in brackets, [::1]:8787")
    return Address(host, int(port))
