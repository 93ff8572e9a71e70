"""Feeds one set of tables from the log: tails, batches, folds, one transaction each.

The position lives in the tables and nowhere else, so a feed can be stopped at any await and a
new one goes on where the last transaction ended: nothing is applied twice or left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from events.log import EventStore, LogError, LogUnavailable, Message
from projections.database import Tables
from projections.framework import Damaged, Group, Kind, LogCut, Move, Position, Projection, grouped
from projections.sources import Decoder, Hold, Item, Source
from projections.statements import Dialect

BATCH_S = 0.05
"""A batch waits so long for company, unless somebody waits for it."""

GOALS_S = 0.5
"""How often a feed that has not caught up asks whether what it waits for is still there."""

BATCH_MESSAGES = 400
_READ_S = 0.002
"""After a nap: time to read what has come meanwhile."""

_ROOM = 2 * BATCH_MESSAGES


class Feed:
    """One set of tables being fed. ``run`` raises what the tables and the log raise."""

    def __init__(
        self,
        *,
        store: EventStore,
        tables: Tables,
        dialect: Dialect,
        projections: Sequence[Projection],
        sources: Sequence[Source],
        moved: Callable[[dict[str, Position]], None],
        hurried: Callable[[], bool] = lambda: False,
        nap: Callable[[float], None] | None = None,
    ) -> None:
        """``nap`` blocks the thread for up to so many seconds. Where nothing else runs on the
        loop that is cheaper than waiting: messages gather in the socket and are read at once."""
        self._store = store
        self.tables = tables
        self._projections = projections
        self._sources = sources
        self._moved = moved
        self._hurried = hurried
        self._nap = nap
        self._writes = {p.name: p.writes(dialect) for p in projections}
        self._decoder = Decoder(store.subjects, store.blobs)
        self._pending: dict[str, list[Message]] = {}
        self._count = 0
        self._arrived = asyncio.Event()
        self._enough = asyncio.Event()
        self._room = asyncio.Event()
        self._goals: dict[str, tuple[int, int]] = {}
        self.positions: dict[str, Position] = {}
        self.caught_up = asyncio.Event()
        """Set when everything is folded that was in the log at the start of ``run``."""

    def hurry(self) -> None:
        """Do not wait for more messages (call on the feed's loop)."""
        self._enough.set()

    async def run(self) -> None:
        """Feed the tables for ever."""
        await self.prepare()
        tails = [asyncio.create_task(self._tail(s)) for s in self._sources if not self._held(s)]
        tasks = [asyncio.create_task(w) for w in (self._apply_for_ever(), self._look_at_goals())]
        tasks += tails
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def prepare(self) -> None:
        """Read the positions, and where the log ends now.

        Raises LogCut when the view is ahead of the log, Damaged when the log is a new one.
        """
        self.positions = await self.tables.positions()
        ends = await self._store.log.ends([s.stream for s in self._sources])
        for source in self._sources:
            position, end = self.positions[source.stream], ends[source.stream]
            if position.seq > max(end, source.first - 1):
                if all(ends[s.stream] < max(s.first, 1) for s in self._sources):
                    raise Damaged("the log is empty: it was replaced")
                raise LogCut(
                    f"{source.stream} ends at sequence {end}, but {position.seq} was seen:"
                    f" {position.seq - end} messages are missing from the log. Restore the log,"
                    " or accept the loss with `loomcycle projections rebuild`"
                )
            if position.seq < end and not position.held:
                stored = await source.last_stored(self._store.log)
                self._goals[source.stream] = min(stored, end), end
        await self._pass_purged_ends()
        self._moved(dict(self.positions))

    async def _look_at_goals(self) -> None:
        """What was in the log at the start may be purged before it is read: nothing tells of it."""
        while self._goals:
            await asyncio.sleep(GOALS_S)
            with contextlib.suppress(LogError):
                for source in self._sources:
                    if source.stream in self._goals:
                        stored = await source.last_stored(self._store.log)
                        goal, end = self._goals.get(source.stream, (0, 0))
                        if stored < goal:
                            self._goals[source.stream] = stored, end
            self._arrived.set()

    def _held(self, source: Source) -> bool:
        return bool(self.positions[source.stream].held)

    async def _tail(self, source: Source) -> None:
        stream = source.stream
        after = self.positions[stream].seq
        async for messages in self._store.log.tail(stream, after=after):
            while self._count >= _ROOM:
                self._room.clear()
                await self._room.wait()
            if self._held(source):
                return
            self._pending.setdefault(stream, []).extend(messages)
            self._count += len(messages)
            self._arrived.set()
            if self._count >= BATCH_MESSAGES:
                self._enough.set()
        raise LogUnavailable(f"the tail of {stream} ended")

    async def _apply_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            if self._count < BATCH_MESSAGES and not self._hurried():
                await self._gather()
            pending, self._pending, self._count = self._pending, {}, 0
            self._arrived.clear()
            self._room.set()
            await self.apply(pending)

    async def _gather(self) -> None:
        """Let a batch grow until it is large, old, or wanted."""
        pause = BATCH_S
        if self._nap is not None:
            self._nap(BATCH_S)
            pause = _READ_S
        self._enough.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._enough.wait()

    async def apply(self, pending: dict[str, list[Message]]) -> None:
        """Fold new messages of each stream and store rows and positions in one transaction."""
        by_kind: dict[Kind, list[Item]] = {}
        moves: list[Move] = []
        for source in self._sources:
            messages = pending.get(source.stream)
            if not messages or self._held(source):
                continue
            items = await self._decoder.decode(source.kind, messages)
            before = self.positions[source.stream].seq
            after = Position(messages[-1].seq)
            last = items[-1] if items else None
            if isinstance(last, Hold):
                items.pop()
                after = Position(last.seq - 1, last.reason)
            moves.append(Move(source.stream, before, after))
            by_kind.setdefault(source.kind, []).extend(items)
        await self._commit(self._fold(by_kind), moves)
        await self._pass_purged_ends()
        self._moved(dict(self.positions))

    def _fold(self, by_kind: dict[Kind, list[Item]]) -> list[Group]:
        groups: list[Group] = []
        for projection in self._projections:
            items = by_kind.get(projection.source)
            if items:
                groups += grouped(projection.fold(items), self._writes[projection.name])
        return groups

    async def _commit(self, groups: Sequence[Group], moves: Sequence[Move]) -> None:
        if not moves:
            return
        await self.tables.commit(groups, moves)
        for move in moves:
            self.positions[move.stream] = move.after

    async def _pass_purged_ends(self) -> None:
        """Where the newest messages were purged, their sequences count as folded too."""
        if not self._goals:
            self.caught_up.set()
            return
        moves: list[Move] = []
        for stream, (goal, end) in list(self._goals.items()):
            position = self.positions[stream]
            if position.seq < goal and not position.held:
                continue
            del self._goals[stream]
            if position.seq < end and not position.held:
                moves.append(Move(stream, position.seq, Position(end)))
        await self._commit((), moves)
        if not self._goals:
            self.caught_up.set()
