"""Event streams on ASGI: frames in as few sends as possible, keepalives, and an honest end.

Specification: http-runs.md section 4.1, with frame ids (design.md section 10). A send waits
while the client is slow, so nothing is queued here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from loomcycle.feed import FeedFrame, RunFeed

KEEPALIVE = b": keepalive\n\n"
PIECE = 256 * 1024
"""More bytes than this are sent in several pieces, so that a slow client slows the sender."""

HANG_UP = "loomcycle.hang_up"
"""ASGI extension of our server: the connection's transport, to break a response off."""

HANG_UP_S = 1.0
"""How long a client may need to take what was already sent."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_KEEP_ALIVE = [*_HEADERS, (b"connection", b"keep-alive")]


class EventStream:
    """One response. ``keepalive_s``: seconds of silence before a comment; None for never."""

    def __init__(self, scope: Scope, send: Send, keepalive_s: float | None) -> None:
        self._scope, self._send, self._keepalive_s = scope, send, keepalive_s
        self.started = False
        self.ended = False

    async def open(self, frames: Iterable[FeedFrame]) -> None:
        """Send the headers and the first frames."""
        self.started = True
        closes = (b"connection", b"close") in self._scope["headers"]
        headers = _HEADERS if closes else _KEEP_ALIVE
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.write(frames)

    async def write(self, frames: Iterable[FeedFrame], *, last: bool = False) -> None:
        """Send ``frames``; ``last``: and with them the end of the response."""
        pieces: list[bytes] = []
        size = 0
        for frame in frames:
            piece = f"id: {frame.id}\nevent: {frame.event}\ndata: ".encode() + frame.data
            pieces += (piece, b"\n\n")
            size += len(piece)
            if size >= PIECE:
                await self._body(b"".join(pieces))
                pieces, size = [], 0
        if pieces or last:
            await self._body(b"".join(pieces), more=not last)
        self.ended = last

    async def follow(self, feed: RunFeed) -> None:
        """Send what ``feed`` has until the run ends, then end the response. Raises LogError."""
        while not feed.ended:
            frames = await feed.next(self._keepalive_s)
            if frames or feed.ended:
                await self.write(frames, last=feed.ended)
            else:
                await self._body(KEEPALIVE)
        if not self.ended:
            await self.end()

    async def keep_alive(self) -> None:
        """Send a comment, so that nobody takes the connection for dead."""
        await self._body(KEEPALIVE)

    async def end(self) -> None:
        await self.write((), last=True)

    async def break_off(self, receive: Receive) -> None:
        """End without the mark of completeness: the client can tell, and come back."""
        transport: asyncio.Transport | None = self._scope.get("extensions", {}).get(HANG_UP)
        if transport is None:
            await self.end()
            return
        transport.close()
        try:
            async with asyncio.timeout(HANG_UP_S):
                await _gone(receive)
        except TimeoutError:
            transport.abort()
            await _gone(receive)

    async def _body(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
