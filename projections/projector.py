"""Decides which tables are fed and which are served: start, rebuild, swap, repair, stand by.

Runs on its own event loop (``projections/views.py`` gives it a thread), so that a slow disk never
stalls a stream of a client. Only the holder of the database's writer lock gets past ``_stand_by``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from events import commit, state, vocabulary
from events.log import EventStore, LogError
from projections.database import Backend, Slot, Tables, other
from projections.feed import Feed
from projections.framework import (
    Damaged,
    DatabaseBusy,
    LogCut,
    Manifest,
    Position,
    PositionMoved,
    Projection,
)
from projections.progress import Progress, Rebuild
from projections.sources import Source, sources_of

log = logging.getLogger(__name__)

StoreFactory = Callable[[], Awaitable[EventStore]]

STAND_BY_S = 0.25
"""How often a process that may not write tries to become the one that may."""

WATCH_S = 1.0
"""How often the files and the requests of other processes are looked at."""

_RETRY_S = 0.05
_RETRY_MAX_S = 2.0


def fingerprint() -> str:
    """Names what this version understands: event types, their versions, the envelopes."""
    types = sorted((name, cls.VERSION) for name, cls in vocabulary.TYPES.items())
    known = repr((types, commit.ENVELOPE_VERSION, state.STATE_VERSION))
    return hashlib.sha256(known.encode()).hexdigest()


class NewerView(Exception):
    """The tables belong to a newer version: this process must not write them."""


class _Served(NamedTuple):
    """The tables that readers see. ``foldable``: this version may go on with them meanwhile."""

    slot: Slot
    tables: Tables
    anew: bool
    foldable: bool


class Projector:
    """Keeps one database of views equal to the log, for ever."""

    def __init__(
        self,
        backend: Backend,
        projections: Sequence[Projection],
        factory: StoreFactory,
        progress: Progress,
        vocabulary: str = "",
        nap: Callable[[float], None] | None = None,
    ) -> None:
        """``nap``: see :class:`projections.feed.Feed`; for a projector alone on its thread."""
        self._backend = backend
        self._projections = projections
        self._factory = factory
        self._progress = progress
        self._vocabulary = vocabulary or fingerprint()
        self._versions = {p.name: p.version for p in projections}
        self._nap = nap
        self._feed: Feed | None = None

    def hurry(self) -> None:
        """Somebody waits: apply what has arrived (call on the projector's loop)."""
        if self._feed is not None:
            self._feed.hurry()

    async def run(self) -> None:
        """Until cancelled. Every failure is shown in the progress and tried again."""
        pause = _RETRY_S
        while True:
            try:
                async with contextlib.aclosing(_Closing(await self._factory())) as held:
                    while True:
                        started = asyncio.get_running_loop().time()
                        with contextlib.suppress(PositionMoved):
                            await self._stand_by(held.store)
                        if asyncio.get_running_loop().time() - started > 1:
                            pause = _RETRY_S
            except NewerView as cause:
                self._progress.enter("reader", str(cause))
                pause = _RETRY_MAX_S
            except (DatabaseBusy, Damaged, LogError, OSError) as cause:
                log.warning("views: %s", cause)
                self._progress.enter("failing", str(cause))
            finally:
                await self._backend.unlock()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MAX_S)

    async def _stand_by(self, store: EventStore) -> None:
        """Wait for the writer lock, then write until something fails."""
        while not await self._backend.lock():
            self._progress.enter("reader", "another process writes the views")
            await asyncio.sleep(STAND_BY_S)
        try:
            await self._write(store, sources_of(store.subjects))
        finally:
            self._feed = None
            await self._backend.unlock()

    async def _write(self, store: EventStore, sources: Sequence[Source]) -> None:
        served = await self._open_served()
        try:
            while True:
                if served is None or served.anew:
                    served = await self._renew(store, sources, served)
                else:
                    served = await self._serve(store, sources, served)
        finally:
            if served is not None:
                await served.tables.close()

    async def _open_served(self) -> _Served | None:
        """What the last writer left, None when it is not usable. Raises NewerView."""
        slot = await self._backend.serving()
        if slot is None:
            return None
        try:
            tables = await self._backend.open(slot)
            manifest = await tables.manifest()
            if manifest.versions != self._versions:
                self._refuse_newer(manifest)
                return _Served(slot, tables, anew=True, foldable=False)
            held = False
            if manifest.vocabulary != self._vocabulary:
                held = await self._holds_something(tables)
                if not held:
                    await tables.note_vocabulary(self._vocabulary)
            return _Served(slot, tables, anew=held, foldable=True)
        except Damaged as cause:
            await self._set_aside(slot, cause)
            return None

    def _refuse_newer(self, manifest: Manifest) -> None:
        for name, version in manifest.versions.items():
            if version > self._versions.get(name, version):
                raise NewerView(
                    f"view {name} has version {version}, this process knows version"
                    f" {self._versions[name]}: it reads but does not write"
                )

    async def _holds_something(self, tables: Tables) -> bool:
        if any(position.held for position in (await tables.positions()).values()):
            return True
        for projection in self._projections:
            query = projection.queries(self._backend.dialect).get("any_held")
            if query is not None and (await tables.fetch(query))[0][0]:
                return True
        return False

    async def _set_aside(self, slot: Slot, cause: Exception) -> None:
        log.error("views: damaged, they are built again from the log: %s", cause)
        self._progress.enter("building", str(cause))
        await self._backend.withdraw(slot)

    async def _serve(
        self, store: EventStore, sources: Sequence[Source], served: _Served
    ) -> _Served | None:
        """Feed what is served until it is damaged (None) or to be folded anew."""
        feed = self._feed = self._new_feed(store, sources, served.tables, nap=self._nap)
        self._progress.enter("serving")
        try:
            await self._first_of(feed.run(), self._watch(served.tables))
        except LogCut as cause:
            log.error("views: %s", cause)
            self._progress.enter("cut", str(cause))
            await self._watch(served.tables)
            return served._replace(anew=True, foldable=False)
        except Damaged as cause:
            await served.tables.close()
            await self._set_aside(served.slot, cause)
            return None
        return served._replace(anew=True)

    async def _renew(
        self, store: EventStore, sources: Sequence[Source], served: _Served | None
    ) -> _Served | None:
        """Fold the whole log into the other slot, then serve it; None when all was damaged."""
        if served is None:
            slot = other(None)
            self._progress.enter("building", self._progress.detail)
            tables = await self._build(store, sources, slot, None)
        else:
            slot = other(served.slot)
            self._progress.enter("rebuilding")
            try:
                old = self._new_feed(store, sources, served.tables) if served.foldable else None
                tables = await self._build(store, sources, slot, old)
            except Damaged as cause:
                await served.tables.close()
                await self._set_aside(served.slot, cause)
                return None
            await served.tables.close()
        await self._backend.serve(slot)
        self._progress.rebuilt(None)
        return _Served(slot, tables, anew=False, foldable=True)

    async def _watch(self, tables: Tables) -> None:
        """Return when a rebuild is asked for; raise Damaged when there is damage."""
        while True:
            await asyncio.sleep(WATCH_S)
            await tables.check()
            request = await self._backend.asked()
            if request == "damaged":
                raise Damaged("a reader could not read the tables")
            if request == "rebuild":
                return

    async def _build(
        self, store: EventStore, sources: Sequence[Source], slot: Slot, old: Feed | None
    ) -> Tables:
        """Fold the whole log into ``slot`` while ``old`` goes on; neither is fed afterwards."""
        starts = {s.stream: s.first - 1 for s in sources}
        tables = await self._backend.create(slot, self._projections, starts, self._vocabulary)
        try:
            ends = await store.log.ends([s.stream for s in sources])
            fresh = self._new_feed(store, sources, tables, self._measure(starts, ends))
            serving = asyncio.create_task(old.run()) if old is not None else None
            building = asyncio.create_task(fresh.run())
            try:
                await self._first_of(fresh.caught_up.wait(), *_all(building, serving))
                if old is not None and serving is not None:
                    await _stop(serving)
                    await self._first_of(_reaches(fresh, old.positions), building)
            finally:
                for task in _all(building, serving):
                    await _stop(task)
            await tables.settle(self._projections)
        except BaseException:
            await tables.close()
            raise
        return tables

    def _measure(
        self, starts: dict[str, int], ends: dict[str, int]
    ) -> Callable[[dict[str, Position]], None]:
        total = sum(max(0, ends[s] - starts[s]) for s in starts)

        def moved(positions: dict[str, Position]) -> None:
            done = sum(min(positions[s].seq, ends[s]) - starts[s] for s in starts)
            self._progress.rebuilt(Rebuild(max(0, min(done, total)), total))

        return moved

    def _new_feed(
        self,
        store: EventStore,
        sources: Sequence[Source],
        tables: Tables,
        moved: Callable[[dict[str, Position]], None] | None = None,
        nap: Callable[[float], None] | None = None,
    ) -> Feed:
        return Feed(
            store=store,
            tables=tables,
            dialect=self._backend.dialect,
            projections=self._projections,
            sources=sources,
            moved=moved or self._progress.moved,
            hurried=lambda: self._progress.waited_for,
            nap=nap,
        )

    async def _first_of(self, *work: Coroutine[Any, Any, Any] | asyncio.Task[None]) -> None:
        """Wait until one ends; raise what it raised; stop those that were started here."""
        tasks = [w if isinstance(w, asyncio.Task) else asyncio.create_task(w) for w in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task, given in zip(tasks, work, strict=True):
                if task is not given:
                    await _stop(task)


class _Closing:
    """A store that ``aclosing`` can close."""

    def __init__(self, store: EventStore) -> None:
        self.store = store

    async def aclose(self) -> None:
        with contextlib.suppress(LogError, OSError):
            await self.store.close()


def _all(*tasks: asyncio.Task[None] | None) -> list[asyncio.Task[None]]:
    return [task for task in tasks if task is not None]


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel and wait; what the task raised was seen or does not matter any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _reaches(feed: Feed, goal: dict[str, Position]) -> None:
    """Wait until ``feed`` is nowhere behind ``goal``."""
    while any(
        feed.positions[s].seq < p.seq and not feed.positions[s].held for s, p in goal.items()
    ):
        feed.hurry()
        await asyncio.sleep(0.005)
