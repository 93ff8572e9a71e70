"""One system call for everything that a connection is given in one turn of the event loop.

uvicorn writes the head of a response and its first bytes apart; for a short stream that is a
third of all system calls. Back-pressure stays the transport's own.
"""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport:
    """Stands for ``transport``; ``write`` is put off to the end of the loop's turn."""

    __slots__ = ("_loop", "_pending", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pending.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._pending.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
