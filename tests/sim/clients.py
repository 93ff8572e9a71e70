"""A caller of the API that goes by its documentation, and notices every broken promise.

It starts a run (or continues a session), reads frames at its own pace, loses connections, comes
back with the last id it saw, and at the end compares what it has with the journal.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from events.frames import live_frame
from events.vocabulary import Text
from loomcycle.commands.requests import RunRequest
from loomcycle.feed import START, FeedFrame, Position, parse_position
from tests.sim.host import Connection
from tests.sim.index import RunRow

if TYPE_CHECKING:
    from tests.sim.world import World

EXPECTED_ERRORS = frozenset(
    {"backpressure", "log_unavailable", "session_busy", "agent_id_in_use", "session_not_found"}
)

_text_of = msgspec.json.Decoder(dict[str, object]).decode


@dataclass
class Habits:
    """What a caller does. Times are seconds; ``leaves_s`` are stays before each disconnect."""

    request: RunRequest
    session: str = ""
    leaves_s: tuple[float, ...] = ()
    away_s: float = 0.5
    returns: bool = True
    cancels_s: float | None = None
    pace_s: float = 0.0


@dataclass
class Seen:
    """The stream as the caller has it: durable frames, and the text between them."""

    frames: list[tuple[str, str, bytes]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    position: Position = START
    last_id: str = ""

    def take(self, frame: FeedFrame) -> str:
        """Add a frame; says what is wrong with it, or ""."""
        position = parse_position(frame.id)
        problem = ""
        durable = "." not in frame.id
        if durable and position.seq <= self.position.seq:
            problem = f"frame {frame.id} ({frame.event}) after {self.last_id}"
        if not durable and position <= self.position:
            problem = f"delta {frame.id} ({frame.event}) after {self.last_id}"
        self.position = position if not durable else Position(position.seq, 1, 0)
        self.last_id = frame.id
        match frame.event:
            case "text":
                self.text.append(str(_text_of(frame.data)["text"]))
            case "text_reset":
                self.text.clear()
            case "steer":
                pass
            case _:
                self.texts.append("".join(self.text))
                self.text.clear()
                self.frames.append((frame.id, frame.event, frame.data))
        return problem


class Client:
    """One caller and its run. ``outcome``: "", ``accepted``, ``refused: …`` or ``unknown``."""

    def __init__(self, world: World, name: str, habits: Habits) -> None:
        self.world, self.name, self.habits = world, name, habits
        self.outcome = ""
        self.run_id = ""
        self.session_id = ""
        self.tenant = ""
        self.seen = Seen()
        self.complete = False
        self.done = False
        self.cancelled = False
        self.waited_since = 0.0

    async def live(self) -> None:
        try:
            await self._live()
        finally:
            self.done = True
            self.world.note(self.name, f"is done: {self.outcome} {self.run_id}")

    async def _live(self) -> None:
        connection = await self._open()
        stays = list(self.habits.leaves_s)
        while True:
            ending = await self._read(connection, stays.pop(0) if stays else None)
            self.world.note(self.name, f"stream {ending} at {self.seen.last_id or 'the start'}")
            if not self._accepted(connection):
                return
            if ending == "end":
                self.complete = True
                return
            if ending == "left" and not self.habits.returns:
                return
            await asyncio.sleep(self.habits.away_s)
            host = await self.world.some_host()
            after = parse_position(self.seen.last_id) if self.seen.last_id else START
            connection = host.attach(self.run_id, after)

    async def _open(self) -> Connection:
        host = await self.world.some_host()
        self.waited_since = self.world.loop.time()
        self.world.note(self.name, f"asks {host.name}")
        request, session = self.habits.request, self.habits.session
        return host.continue_session(session, request) if session else host.start_run(request)

    def _accepted(self, connection: Connection) -> bool:
        """Whether there is a run to come back to."""
        if self.run_id:
            if connection.ending == "run_not_found":
                self.world.violation(f"{self.name}: {self.run_id} was accepted and is not found")
                return False
            return True
        self.outcome = "unknown"
        if connection.ending not in ("broken", "end"):
            self.outcome = f"refused: {connection.ending}"
            self.world.refused(self, connection.ending)
        return False

    async def _read(self, connection: Connection, stay_s: float | None) -> str:
        """Read until the stream ends or it is time to go; says which."""
        try:
            async with asyncio.timeout(stay_s):
                while (frame := await connection.read()) is not None:
                    self._note_run(connection)
                    problem = self.seen.take(frame)
                    if problem:
                        self.world.violation(f"{self.name}: {self.run_id}: {problem}")
                    if self.habits.pace_s:
                        await asyncio.sleep(self.habits.pace_s)
        except TimeoutError:
            self._note_run(connection)
            connection.leave()
            return "left"
        self._note_run(connection)
        return connection.ending

    def _note_run(self, connection: Connection) -> None:
        run = connection.run
        if run is None or self.run_id:
            return
        self.run_id, self.session_id, self.tenant = run.run_id, run.session_id, run.tenant
        self.outcome = "accepted"
        if self.habits.cancels_s is not None:
            self.world.spawn(self._cancel(self.habits.cancels_s))

    async def _cancel(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while not self.complete:
            host = await self.world.some_host()
            answer = await self.world.answer(
                host, host.cancel(self.tenant, self.run_id, f"{self.name} has enough")
            )
            self.world.note(self.name, f"cancels {self.run_id}: {answer}")
            if answer is not None:
                self.cancelled = answer
                return
            await asyncio.sleep(1.0)

    def differs(self, row: RunRow) -> str:
        """How the complete stream differs from the journal; "" when it does not."""
        frames: list[tuple[str, str, bytes]] = []
        texts: list[str] = []
        text = ""
        for commit in row.commits:
            for record in commit.records():
                if isinstance(record.event, Text):
                    text += record.event.text
                    continue
                frame = live_frame(record)
                if frame is not None and frame.event != "steer":
                    frames.append((str(frame.seq), frame.event, frame.data))
                    texts.append(text)
                    text = ""
        if self.seen.frames != frames:
            mine, theirs = ([f[:2] for f in some] for some in (self.seen.frames, frames))
            return f"has frames {mine}, the journal {theirs}"
        if self.seen.texts != texts:
            return f"has text {self.seen.texts}, the journal {texts}"
        return ""
