"""One reader's view of one run: durable frames in order, deltas in between, nothing twice.

A feed reads the journal where it must (to begin, to fill a gap) and takes the rest from
``LiveRuns``. Frame ids: ``<seq>`` for durable frames, ``<seq>.<attempt>.<offset>`` for deltas
(design.md section 10). It holds no rule of any protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from events.commit import Commit, Record, decode
from events.frames import Frame, live_frame, replay_frame
from events.log import EventStore, LogError
from events.vocabulary import (
    ModelAttemptFailed,
    ModelStarted,
    RunFinished,
    RunStarted,
    RunWithdrawn,
    Text,
    is_public,
)
from loomcycle.live import Delta, LiveCommit, LiveRuns, live_records

FIRST_COMMIT_POLL_S = 0.1
"""At first; then ever less often, for the commit tells its readers itself: one that was not told
waits at most some times as long, and thousands that wait in the queue cost next to nothing."""

OWN_POLL_S = 2.0
REMOTE_POLL_S = 0.5

PARKED_POLL_S = 5.0
"""Of a parked run that no reader keeps alive; its next commit is told in other ways."""

PARKED = "run.parked"

WATCH_EVERY_S = 1.0
"""How often a reader tells the run's owner elsewhere that it follows, also while text flows."""

MAX_WAITING = 256
"""Live commits and deltas kept for a reader that does not fetch them (back-pressure)."""

READ_COMMITS = 200


class FeedFrame(NamedTuple):
    """``id`` is what a client hands back to continue after this frame."""

    id: str
    event: str
    data: bytes


class Position(NamedTuple):
    """Where a reader stands: last durable public seq, and how much of the turn it has seen."""

    seq: int = 0
    attempt: int = 1
    offset: int = 0


START = Position()


class BadPosition(ValueError):
    """A frame id that this system never gave out."""


def parse_position(text: str) -> Position:
    """Read a frame id: one number or three, each at most 2^53. Raises BadPosition."""
    given = text.strip()
    parts = given.split(".")
    if len(parts) not in (1, 3) or not all(p.isascii() and p.isdigit() for p in parts):
        raise BadPosition(f"not a frame id: {given[:64]!r}")
    largest = 2**53
    numbers = [int(part.lstrip("0")[:17] or "0") for part in parts]
    if max(numbers) > largest:
        raise BadPosition(f"not a position in the log, greater than {largest}: {given[:64]!r}")
    return Position(*numbers)


class _Text(Struct, tag_field="type", tag="text"):
    text: str


class _TextReset(Struct, tag_field="type", tag="text_reset"):
    attempt: int


_encode = msgspec.json.Encoder().encode

_TELLING = frozenset(
    {"run.started", "run.finished", "run.withdrawn", "model.started", "model.attempt_failed"}
)


class RunFeed:
    """Frames of one run from ``after`` on. Use as an async context manager."""

    def __init__(
        self,
        store: EventStore,
        live: LiveRuns,
        tenant: str,
        run_id: str,
        *,
        process: str,
        after: Position = START,
        replay: bool = False,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._live, self._process, self._alone = store, live, process, alone
        self.run_id, self.tenant = run_id, tenant
        self._subject = store.subjects.journal(tenant, run_id)
        self._frame = replay_frame if replay else live_frame
        self._queue: deque[LiveCommit | Delta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._position = after
        self._next_c = 1
        self._read_seq = 0
        self._writer = ""
        self._unfollow: Callable[[], None] | None = None
        self._watched = 0.0
        self._behind = False
        self._parked = False
        self._silent = 0
        self._spread = crc32(run_id.encode()) / 2**32
        self._failure: LogError | None = None
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.ended = False
        self.withdrawn = ""

    # -- LiveRuns' callbacks

    def on_commit(self, commit: LiveCommit) -> None:
        self._put(commit)

    def on_delta(self, delta: Delta) -> None:
        self._put(delta)

    def _put(self, item: LiveCommit | Delta) -> None:
        """Keep ``item`` for the reader; one that is too slow reads the journal instead."""
        if len(self._queue) >= MAX_WAITING:
            self._queue.clear()
            self._behind = True
        else:
            self._queue.append(item)
        self._wake()

    def fail(self, cause: LogError) -> None:
        """Make :meth:`next` raise ``cause``: the run that is waited for does not begin."""
        self._failure = cause
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the reader's side

    async def open(self, *, fresh: bool = False) -> None:
        """Attach. ``fresh``: the run is being started here now, its journal need not be read."""
        self._live.attach(self.run_id, self)
        self._behind = not fresh
        if not fresh:
            await self.look_elsewhere()

    async def look_elsewhere(self) -> None:
        """Also follow the run in other processes, if there are any. Raises LogError."""
        if not self._alone() and self._unfollow is None:
            await self._follow()

    def close(self) -> None:
        self._live.detach(self.run_id, self)
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    async def __aenter__(self) -> RunFeed:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def next(self, timeout: float | None = None) -> list[FeedFrame]:
        """The next frames, at least one unless the run ended or ``timeout`` (seconds) passed.

        Raises LogError when the journal cannot be read for a gap.
        """
        frames: list[FeedFrame] = []
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            try:
                await self._drain(frames)
            except LogError:
                self._behind = True
                if not frames:
                    raise
            if frames or self.ended:
                self._keep_watching(loop.time())
                return frames
            if self._failure is not None:
                raise self._failure
            poll = self._poll_s()
            if deadline is not None:
                poll = min(poll, deadline - loop.time())
                if poll <= 0:
                    return frames
            if self._parked and self._unfollow is None:
                self._unfollow = await self._live.follow_remote(self.run_id, self)
            if not await self._wait(poll):
                try:
                    await self._poll(frames)
                except LogError:
                    if self._next_c > 1:
                        continue
                    raise

    async def _drain(self, frames: list[FeedFrame]) -> None:
        """Turn what the journal and the queue hold now into frames."""
        while self._behind and not self.ended and len(frames) < MAX_WAITING:
            self._behind = False
            if await self._read_on(frames):
                self._behind = True
        while self._queue and not self.ended:
            item = self._queue.popleft()
            if isinstance(item, Delta):
                if item.after >= self._next_c:
                    await self._catch_up(frames)
                self._delta(item, frames)
            else:
                await self._commit(item, frames)

    def _poll_s(self) -> float:
        if self._next_c == 1:
            return float(FIRST_COMMIT_POLL_S * (1 + self._spread) * 2**self._silent)
        if self._parked and self.started is not None and self.started.reader == "continue":
            return float(min(PARKED_POLL_S, REMOTE_POLL_S * 2**self._silent))
        return OWN_POLL_S if self._writer == self._process else REMOTE_POLL_S

    async def _wait(self, seconds: float) -> bool:
        """True when something arrived."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        handle = loop.call_later(seconds, self._timed_out, self._waiter)
        try:
            await self._waiter
        finally:
            handle.cancel()
            self._waiter = None
        return bool(self._queue)

    @staticmethod
    def _timed_out(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    async def _poll(self, frames: list[FeedFrame]) -> None:
        self._silent = min(self._silent + 1, 8)
        if self._next_c > 1 and self._writer != self._process:
            await self._follow()
        await self._catch_up(frames)

    async def _follow(self) -> None:
        if self._unfollow is None:
            self._unfollow = await self._live.follow_remote(self.run_id, self)
        self._watched = asyncio.get_running_loop().time()
        self._store.live.poke(self.run_id, b"watch")

    def _keep_watching(self, now: float) -> None:
        elsewhere = self._unfollow is not None and self._writer != self._process
        if elsewhere and not self.ended and now - self._watched >= WATCH_EVERY_S:
            self._watched = now
            self._store.live.poke(self.run_id, b"watch")

    async def _catch_up(self, frames: list[FeedFrame]) -> None:
        """Read what the journal holds beyond what was seen."""
        while not self.ended and await self._read_on(frames):
            pass

    async def _read_on(self, frames: list[FeedFrame]) -> bool:
        """Read one more piece of the journal; whether there may be more."""
        before = self._read_seq
        for message in await self._store.log.read(
            self._subject, after=self._read_seq, limit=READ_COMMITS
        ):
            await self._take(decode(message.data, message.seq), frames)
        return self._read_seq > before

    async def _commit(self, live: LiveCommit, frames: list[FeedFrame]) -> None:
        if live.header is not None and live.events is not None:
            if live.header.c == self._next_c:
                self._records(live_records(live), live.seq, frames)
                self._writer = live.header.writer
                return
            if live.header.c < self._next_c:
                return
            await self._catch_up(frames)
            return
        commit = decode(live.data, live.seq)
        if commit.c == self._next_c:
            await self._take(commit, frames)
        elif commit.c > self._next_c:
            await self._catch_up(frames)

    async def _take(self, commit: Commit, frames: list[FeedFrame]) -> None:
        if commit.c != self._next_c:
            return
        names = commit.blobs()
        if names:
            commit.fill({name: await self._store.blobs.get(name) for name in names})
        self._records(commit.records(), commit.seq, frames)
        self._writer = commit.header.writer

    def _records(self, records: list[Record], stream_seq: int, frames: list[FeedFrame]) -> None:
        for record in records:
            self._record(record, frames)
        self._parked = records[-1].type == PARKED
        self._silent = 0
        self._next_c += 1
        self._read_seq = stream_seq

    def _record(self, record: Record, frames: list[FeedFrame]) -> None:
        kind = record.header.type
        if not is_public(kind):
            self._kernel_fact(record, frames)
        elif record.seq > self._position.seq:
            if kind == "text":
                self._text(record, frames)
                return
            frame = self._frame(record)
            if frame is not None:
                self._emit(frame, frames)

    def _kernel_fact(self, record: Record, frames: list[FeedFrame]) -> None:
        """What no client sees, but tells a reader where it stands."""
        if record.header.type not in _TELLING:
            return
        match record.event:
            case RunStarted() as started:
                self.started = started
            case RunFinished() as finished:
                self.ended, self.finished = True, finished
            case RunWithdrawn(reason=reason):
                self.ended, self.withdrawn = True, reason
            case ModelStarted(attempt=attempt):
                self._void(record.seq, attempt, frames)
            case ModelAttemptFailed(attempt=attempt):
                self._void(record.seq, attempt + 1, frames)

    def _void(self, seq: int, attempt: int, frames: list[FeedFrame]) -> None:
        """From event ``seq`` on, text of attempts before ``attempt`` counts no more."""
        position = self._position
        if position.offset and seq > position.seq and attempt > position.attempt:
            self._reset(attempt, frames)

    def _emit(self, frame: Frame, frames: list[FeedFrame]) -> None:
        seq, event, data = frame
        self._position = Position(seq, self._position.attempt, self._position.offset)
        frames.append(FeedFrame(str(seq), event, data))

    def _text(self, record: Record, frames: list[FeedFrame]) -> None:
        event = record.event
        assert isinstance(event, Text)
        _, attempt, offset = self._position
        if offset and attempt != event.attempt:
            self._reset(event.attempt, frames)
            offset = 0
        self._position = Position(record.seq, 1, 0)
        rest = event.text[offset:]
        if rest:
            frames.append(FeedFrame(str(record.seq), "text", _encode(_Text(rest))))

    def _reset(self, attempt: int, frames: list[FeedFrame]) -> None:
        seq = self._position.seq
        self._position = Position(seq, attempt, 0)
        frames.append(FeedFrame(f"{seq}.{attempt}.0", "text_reset", _encode(_TextReset(attempt))))

    def _delta(self, delta: Delta, frames: list[FeedFrame]) -> None:
        seq, attempt, offset = self._position
        if delta.after != self._next_c - 1 or delta.attempt < attempt:
            return
        if delta.attempt > attempt:
            if offset:
                self._reset(delta.attempt, frames)
            offset, attempt = 0, delta.attempt
        if delta.start > offset:
            return
        text = delta.text[offset - delta.start :]
        if not text:
            return
        offset += len(text)
        self._position = Position(seq, attempt, offset)
        frames.append(FeedFrame(f"{seq}.{attempt}.{offset}", "text", _encode(_Text(text))))
