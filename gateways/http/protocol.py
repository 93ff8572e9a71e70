"""HTTP/1.1 connections: uvicorn's httptools protocol with a deadline and a limit for headers.

A request's head must be complete ``HEADER_S`` seconds after its first byte (or the connection),
however slowly it trickles, and be at most ``HEADER_LIMIT`` bytes (http-runs.md section 1.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateways.http.clients import CONNECTION
from gateways.http.cork import CorkedTransport
from gateways.http.sse import HANG_UP

HEADER_S = 10.0
HEADER_LIMIT = 1024 * 1024

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: 32\r\n"
    b"connection: close\r\n\r\n"
    b"request header fields too large\n"
)


class HeaderDeadlineProtocol(HttpToolsProtocol):
    """The deadline stands while a head is expected or incomplete, and only then."""

    on_lost: Callable[[], None] | None = None
    lost = False
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CorkedTransport(transport, self.loop))  # type: ignore[arg-type]
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        super().connection_lost(exc)
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEADER_LIMIT and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that we do not offer is answered like any request (RFC 9110 section 7.8)."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["extensions"] = {HANG_UP: self.transport, CONNECTION: self}
        if self._deadline is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_complete()
        if self.parser.get_http_version() == "1.1":
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts != 1:  # RFC 9112 section 3.2
                raise httptools.HttpParserError(f"{hosts} Host headers")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_complete()
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEADER_S, self._give_up)

    def _head_complete(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()
