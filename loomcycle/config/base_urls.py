"""Which texts can be a vendor's base URL. What is refused is never repeated: it may hold a key."""

from __future__ import annotations

from urllib.parse import urlsplit

WANTED = "must start with http:// or https://, then a host and, if any, a port up to 65535"


def is_base_url(text: str) -> bool:
    """Whether ``text`` is a URL that paths can be appended to and that names a host."""
    if not (text.isprintable() and text.startswith(("http://", "https://"))):
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        return False
    return bool(parts.hostname) and not (parts.query or parts.fragment or " " in text)
