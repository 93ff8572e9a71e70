"""Clients of a run's stream: they break off where a test says, and come back with a frame id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.wire.gateway import PATIENCE_S, SseFrame, StreamReader
from tests.wire.vendors import Hold, Part, Reply


class Away(Exception):
    """The log cannot be read now; a client tries again."""


@dataclass
class Client:
    """What one client has seen of one run; checks on the way that nothing comes out of order."""

    run: str = ""
    session: str = ""
    frames: list[SseFrame] = field(default_factory=list)

    @property
    def last_id(self) -> str:
        return self.frames[-1].id if self.frames else "0"

    @property
    def ended(self) -> bool:
        return bool(self.frames) and self.frames[-1].event in ("done", "error")

    async def start(self, http: httpx.AsyncClient, body: dict[str, Any], *, limit: int = 0) -> None:
        """Start a run and read its stream, ``limit`` frames at most (0: all)."""
        async with http.stream("POST", "/v1/runs", json=body) as response:
            assert response.status_code == 200, await response.aread()
            await self._read(response, limit)

    async def attach(
        self, http: httpx.AsyncClient, *, limit: int = 0, by_header: bool = True
    ) -> None:
        """Go on after the last frame seen, ``limit`` new frames at most (0: all)."""
        if by_header:
            options: dict[str, Any] = {"headers": {"Last-Event-ID": self.last_id}}
        else:
            options = {"params": {"after": self.last_id}}
        async with http.stream("GET", f"/v1/runs/{self.run}/stream", **options) as response:
            if response.status_code == 503:
                raise Away
            assert response.status_code == 200, await response.aread()
            await self._read(response, limit)

    async def insist(self, http: httpx.AsyncClient) -> None:
        """Go on to the end of the run, whatever connections or the log do in between."""
        async with asyncio.timeout(3 * PATIENCE_S):
            while not self.ended:
                with suppress(httpx.TransportError, Away, TimeoutError):
                    await self.attach(http)
                await asyncio.sleep(0.05)

    async def _read(self, response: httpx.Response, limit: int) -> None:
        stream = StreamReader(response)
        taken = 0
        while not limit or taken < limit:
            try:
                frame = await stream.next()
            except EOFError:
                return
            match frame.event:
                case "session":
                    self.session = frame.data["text"]
                case "agent":
                    self.run = frame.data["run_id"]
                case "steer":
                    pass
                case _:
                    self._take(frame)
                    taken += 1

    def _take(self, frame: SseFrame) -> None:
        if self.frames:
            assert place(frame.id) > place(self.last_id), (frame.id, self.last_id)
        self.frames.append(frame)


def place(frame_id: str) -> tuple[int, ...]:
    """Frame ids in the order of a stream: ``seq``, then attempt and offset after it."""
    return tuple(int(part) for part in frame_id.split("."))


class Drip:
    """An answer whose pieces come one by one, as fast as :meth:`flow` lets them."""

    def __init__(self, whole: Reply) -> None:
        self._beats: list[asyncio.Event] = []
        parts: list[Part] = []
        for part in whole.parts:
            beat = asyncio.Event()
            self._beats.append(beat)
            parts += [Hold(beat), part]
        self.reply = Reply(parts)

    async def flow(self, pause_s: float = 0.0, pieces: int = 0) -> None:
        """Let ``pieces`` (0: all) more of it go, with a pause before each."""
        for beat in self._beats[: pieces or None]:
            await asyncio.sleep(pause_s)
            beat.set()
        del self._beats[: pieces or None]


async def flow_all(drips: Iterable[Drip], pause_s: float) -> None:
    await asyncio.gather(*(drip.flow(pause_s) for drip in drips))
