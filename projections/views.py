"""The views as the rest of the system uses them: open, ask, wait for own writes, repair, close.

The projector runs in a thread with an event loop and a connection to the log of its own, so a
slow disk delays views and nothing else. Several processes may open the same views: one writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from events.log import Live
from projections import evaluations, hooks, interrupts, memory, parks, runs, transcripts
from projections.database import Backend, Row
from projections.framework import Position, Projection, ViewHeld, ViewUnavailable
from projections.hosts import Host, TaskHost, ThreadHost
from projections.postgres import PostgresBackend
from projections.progress import Progress, Rebuild
from projections.projector import Projector, StoreFactory
from projections.queries import Queries
from projections.rows import Problem
from projections.sqlite import SqliteBackend
from projections.statements import load
from projections.verify import Report, verify

PROJECTIONS: tuple[Projection, ...] = (
    runs.PROJECTION,
    transcripts.PROJECTION,
    memory.PROJECTION,
    hooks.PROJECTION,
    evaluations.PROJECTION,
    parks.PROJECTION,
    interrupts.PROJECTION,
)

HURRY = "_views"
"""Name of the live messages that ask the writer in another process to hurry; no run has it."""

_POLL_S = 0.004


class ViewSettings(Struct, frozen=True):
    """``path``: directory of the SQLite files. ``dsn``: of the PostgreSQL database."""

    backend: Literal["sqlite", "postgres"] = "sqlite"
    path: str = ""
    dsn: str = ""


class StreamStatus(Struct, frozen=True):
    """``lag``: sequences behind the stream's end; -1 when the end is not known."""

    position: int
    lag: int
    held: str = ""


class ViewStatus(Struct, frozen=True):
    """``state``: see :data:`projections.progress.State`. ``rebuild``: (done, total) or None."""

    state: str
    detail: str
    backend: str
    writer: bool
    versions: dict[str, int]
    streams: dict[str, StreamStatus]
    rebuild: Rebuild | None
    rebuilds: int
    problems: list[Problem]


class Views:
    """Made by :meth:`open`; used on the loop that opened it."""

    def __init__(
        self,
        make_backend: Callable[[], Backend],
        factory: StoreFactory,
        projections: tuple[Projection, ...],
        progress: Progress,
        own_thread: bool,
    ) -> None:
        self._make_backend = make_backend
        self._factory = factory
        self._projections = projections
        self._progress = progress
        self._own_thread = own_thread
        self._backend = make_backend()
        self._reader = self._backend.reader()
        self.queries = Queries(self._reader, projections, self._backend.dialect)
        self._positions = load("projections.positions", "queries", self._backend.dialect)[
            "positions"
        ]
        self._host: Host | None = None
        self._live: Live | None = None
        self._hurried_at = 0.0
        self._unfollow: Callable[[], None] = lambda: None

    @classmethod
    async def open(
        cls,
        settings: ViewSettings,
        factory: StoreFactory,
        *,
        projections: tuple[Projection, ...] = PROJECTIONS,
        on_rebuild: Callable[[Rebuild], None] | None = None,
        vocabulary: str = "",
        own_thread: bool = True,
    ) -> Views:
        """Start the projector and return at once; ``ready`` waits for the first answer.

        ``factory`` makes the projector's own connection to the log, on the projector's loop;
        ``on_rebuild`` is called there too. Without ``own_thread`` that is the caller's loop,
        and SQLite is read without threads. Raises ValueError for incomplete settings.
        """
        progress = Progress(on_rebuild)
        make_backend = backend_of(settings, direct=not own_thread)
        views = cls(make_backend, factory, projections, progress, own_thread)

        def make(nap: Callable[[float], None] | None = None) -> tuple[Projector, Backend]:
            backend = make_backend()
            return Projector(backend, projections, factory, progress, vocabulary, nap), backend

        views._host = ThreadHost(make, progress) if own_thread else TaskHost(*make(), progress)
        return views

    async def share(self, live: Live) -> None:
        """Let who waits here hurry a writer in another process over ``live``, and be hurried.

        Without it, and when such a message is lost, a reader beside a writer waits for its batch
        (:data:`projections.feed.BATCH_S`). Raises LogError.
        """
        self._unfollow = await live.follow(HURRY, lambda _: self._progress.ask())
        self._live = live

    async def close(self) -> None:
        """Stop the projector after its batch and close all connections."""
        self._unfollow()
        if self._host is not None:
            await self._host.close()
        self._progress.enter("closed")
        await self._reader.close()
        await self._backend.close()

    @property
    def log_cut(self) -> str:
        """What the log has lost since the views saw it; "" when nothing is known to be lost."""
        return self._progress.detail if self._progress.state == "cut" else ""

    # --- waiting --------------------------------------------------------------------------

    async def ready(self, timeout: float = 10.0) -> None:
        """Wait until queries are answered. Raises ViewUnavailable after ``timeout`` seconds."""
        await self._wait_for({}, timeout)

    async def barrier(self, positions: Mapping[str, int], timeout: float = 5.0) -> None:
        """Wait until everything up to ``positions`` (stream -> sequence) can be read.

        Streams that no view folds are ignored. Raises ViewHeld at once when a view stands
        before an event of a newer version, ViewUnavailable after ``timeout`` seconds.
        """
        await self._wait_for(positions, timeout)

    async def _wait_for(self, goal: Mapping[str, int], timeout: float) -> None:
        if self.log_cut:
            raise ViewUnavailable(self.log_cut)
        if self._reached(goal):
            return
        try:
            async with asyncio.timeout(timeout):
                while not self._reached(goal):
                    if self._progress.state == "reader":
                        with contextlib.suppress(ViewUnavailable):
                            if _covers(await self._stored_positions(), goal):
                                return
                        self._hurry_elsewhere()
                        await asyncio.sleep(_POLL_S)
                        continue
                    await self._progress.until(
                        lambda: self._progress.state == "reader" or self._reached(goal)
                    )
        except TimeoutError:
            state, detail = self._progress.state, self._progress.detail
            raise ViewUnavailable(
                f"the views are {state}{': ' + detail if detail else ''}; they did not reach"
                f" the log's end within {timeout:g} s: try again"
            ) from None

    def _hurry_elsewhere(self) -> None:
        """Ask the writer, once for all that wait here."""
        now = time.monotonic()
        if self._live is not None and now - self._hurried_at >= _POLL_S:
            self._hurried_at = now
            self._live.publish(HURRY, b"")

    def _reached(self, goal: Mapping[str, int]) -> bool:
        positions = self._progress.positions
        return bool(positions) and _covers(positions, goal)

    async def _stored_positions(self) -> dict[str, Position]:
        rows: list[Row] = await self._reader.fetch(self._positions)
        return {str(s): Position(int(seq or 0), str(held)) for s, seq, held in rows}

    # --- care -----------------------------------------------------------------------------

    async def status(self, ends: Mapping[str, int] | None = None) -> ViewStatus:
        """How the views are; with ``ends`` (:meth:`events.log.Log.ends`) also how far behind."""
        progress = self._progress
        positions = progress.positions
        problems: list[Problem] = []
        with contextlib.suppress(ViewUnavailable):
            positions = positions or await self._stored_positions()
            problems = await self.queries.problems()
        return ViewStatus(
            state=progress.state,
            detail=progress.detail,
            backend=self._backend.dialect,
            writer=progress.state in ("serving", "rebuilding", "building"),
            versions={p.name: p.version for p in self._projections},
            streams={
                stream: StreamStatus(
                    p.seq, max(0, ends[stream] - p.seq) if ends and stream in ends else -1, p.held
                )
                for stream, p in sorted(positions.items())
            },
            rebuild=progress.rebuild,
            rebuilds=progress.rebuilds,
            problems=problems,
        )

    async def rebuild(self, timeout: float = 3600.0) -> None:
        """Fold everything anew while the old tables serve; waits until they are replaced.

        When another process writes, it is asked to, and this returns at once. Raises
        ViewUnavailable after ``timeout`` seconds; the rebuild goes on.
        """
        before = self._progress.rebuilds
        await self._backend.ask("rebuild")
        if self._progress.state == "reader":
            return
        try:
            async with asyncio.timeout(timeout):
                await self._progress.until(lambda: self._progress.rebuilds > before)
        except TimeoutError:
            raise ViewUnavailable(f"the rebuild goes on after {timeout:g} s") from None

    async def verify(self) -> Report:
        """Compare the served tables with a fresh fold of the log."""

        async def work() -> Report:
            backend = self._make_backend()
            store = await self._factory()
            try:
                return await verify(backend, self._projections, store)
            finally:
                await store.close()
                await backend.close()

        if self._own_thread:
            return await asyncio.to_thread(asyncio.run, work())
        return await work()


def backend_of(settings: ViewSettings, *, direct: bool = False) -> Callable[[], Backend]:
    """Makes back ends for ``settings``; raises ValueError when a field is missing."""
    if settings.backend == "postgres":
        if not settings.dsn:
            raise ValueError("views.dsn: PostgreSQL views need the address of the database")
        return lambda: PostgresBackend(settings.dsn)
    if not settings.path:
        raise ValueError("views.path: SQLite views need a directory")
    return lambda: SqliteBackend(Path(settings.path), direct=direct)


def _covers(positions: Mapping[str, Position], goal: Mapping[str, int]) -> bool:
    """Whether every stream is there. Raises ViewHeld where it never will be."""
    covered = True
    for stream, seq in goal.items():
        position = positions.get(stream)
        if position is None or position.seq >= seq:
            continue
        if position.held:
            raise ViewHeld(f"{stream} is held: {position.held}: update this replica")
        covered = False
    return covered
