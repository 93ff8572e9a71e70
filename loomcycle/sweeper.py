"""Finds runs that need a worker and have none, and posts their wakes.

It compares what the views say is running with who is alive and what is queued, so losing every
queue item costs seconds and nothing else (design.md section 5). It decides nothing about runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from events.log import EventStore, LogError
from loomcycle.cluster import Cluster
from loomcycle.leftover_seals import LeftoverSeals
from loomcycle.wakes import wake_data
from projections.framework import ViewUnavailable

log = logging.getLogger("loomcycle.sweeper")

TICK_S = 1.0
FULL_SWEEP_S = 5.0
REPEAT_WAKE_S = 5.0
OWN_QUIET_S = 3.0
"""A run of this process that nobody here advances and that was quiet so long needs a wake."""


class RunningRun(Protocol):
    """A run without terminal event; ``owner`` wrote its last commit."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def last_commit(self) -> int: ...
    @property
    def last_commit_ns(self) -> int: ...
    @property
    def last_seq(self) -> int: ...


class RunIndex(Protocol):
    """Where running runs are found; the views in production."""

    async def running(self) -> Sequence[RunningRun]:
        """Unparked runs without terminal event, as of now. Raises LogError, ViewUnavailable."""
        ...


class Sweep(Protocol):
    """Something else to look for each time (``loomcycle/parked.py``)."""

    async def sweep(self) -> int:
        """Raises LogError, ViewUnavailable."""
        ...


class Sweeper:
    """``owns(run_id)`` tells whether this process advances the run now. ``also`` is swept with
    it, whoever may be judged dead."""

    def __init__(
        self,
        store: EventStore,
        index: RunIndex,
        cluster: Cluster,
        *,
        process: str,
        owns: Callable[[str], bool],
        now_ns: Callable[[], int],
        also: Sequence[Sweep] = (),
    ) -> None:
        self._also = also
        self._store = store
        self._index = index
        self._cluster = cluster
        self._process = process
        self._owns = owns
        self._now_ns = now_ns
        self._seals = LeftoverSeals(store, cluster, now_ns=now_ns)
        self._urgent = asyncio.Event()
        self._told: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._urgent.set()
        self._tasks = [
            asyncio.create_task(self._keep_sweeping(), name="sweeper"),
            asyncio.create_task(self._seals.keep_sweeping(), name="leftover-seals"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hurry(self) -> None:
        """Somebody came or went: sweep at once."""
        self._urgent.set()

    async def sweep(self) -> int:
        """Post what is missing; returns how many wakes. Raises LogError, ViewUnavailable.

        A run that lost its worker is woken once whatever is queued: its item may be in that
        worker's hand. After that it is woken again only when no item is left.
        """
        if not self._cluster.settled:
            return 0
        runs = await self._index.running()
        orphans = [run for run in runs if self._is_orphan(run)]
        gone = {owner: await self._is_gone(owner) for owner in sorted({r.owner for r in orphans})}
        orphans = [run for run in orphans if gone.get(run.owner)]
        lost = {run.id: run.last_commit for run in orphans}
        self._told = {run: c for run, c in self._told.items() if lost.get(run) == c}
        if not orphans:
            return 0
        queued = await self._store.wakes.waiting()
        bucket = self._now_ns() // int(REPEAT_WAKE_S * 1e9)
        missing = [run for run in orphans if run.id not in queued or run.id not in self._told]
        for run in missing:
            cause = f"orphan:{run.last_commit}"
            if run.id in self._told:
                cause = f"{cause}:{bucket}"
            await self._store.wakes.post(
                run.id, cause, wake_data(run.tenant, seen=(run.last_commit, run.last_seq))
            )
            self._told[run.id] = run.last_commit
        if missing:
            log.info("woke %d runs without a worker", len(missing))
        return len(missing)

    def _is_orphan(self, run: RunningRun) -> bool:
        if run.owner != self._process:
            return not self._cluster.is_alive(run.owner)
        quiet_ns = self._now_ns() - run.last_commit_ns
        return not self._owns(run.id) and quiet_ns > OWN_QUIET_S * 1e9

    async def _is_gone(self, owner: str) -> bool:
        return owner == self._process or await self._cluster.is_gone(owner)

    async def _keep_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        pending = True
        swept = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._urgent.wait()
            pending = pending or self._urgent.is_set()
            self._urgent.clear()
            if not pending and loop.time() - swept < FULL_SWEEP_S:
                continue
            try:
                for other in self._also:
                    await other.sweep()
                if self._cluster.settled:
                    await self.sweep()
                    pending = False
                    swept = loop.time()
            except (LogError, ViewUnavailable) as cause:
                log.warning("sweep postponed: %s", cause)
            except Exception:
                log.exception("sweep failed")
