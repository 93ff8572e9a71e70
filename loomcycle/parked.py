"""Finds parked runs that have something to do and no wake, and children whose parent is gone.

The sweeper's second half: a wake or a timer that got lost costs seconds and nothing else. What
there is to do is decided by whoever takes the run up (``loomcycle/ownership.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from events.log import EventStore
from loomcycle.cluster import Cluster
from loomcycle.wakes import wake_data

log = logging.getLogger("loomcycle.sweeper")

REPEAT_S = 4.0
"""A little less than a sweep takes to come again."""

REPEAT_MAX_S = 300.0
"""A run that wakes do not move (what is in its inbox concerns it no more) is woken ever less."""

AT_ONCE = 64
"""Wakes posted at the same time."""

_SECOND_NS = 1_000_000_000


class DueRun(Protocol):
    """A run to see to. ``mark`` rises with what it is due for (its cause)."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def last_commit(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def cause(self) -> str: ...
    @property
    def mark(self) -> int: ...


class ParkIndex(Protocol):
    """Where parked runs are found; the views in production."""

    async def overdue(
        self, now_ns: int, *, paused: bool
    ) -> tuple[Sequence[DueRun], Sequence[DueRun]]:
        """Parked runs that have something to do (an entry for each cause), and running children
        of ended parents, as of now. Raises LogError, ViewUnavailable."""
        ...


class _Due(NamedTuple):
    """One run and all that it is due for."""

    run: DueRun
    mark: tuple[int, int]
    check: bool


class _Told(NamedTuple):
    """When a run was seen to be due for ``mark``, and when it is told again."""

    mark: tuple[int, int]
    again_ns: int
    pause_ns: int


class ParkedRuns:
    """``cancel(tenant, run_id)`` asks for the end of a child whose parent has ended."""

    def __init__(
        self,
        store: EventStore,
        index: ParkIndex,
        cluster: Cluster,
        *,
        paused: Callable[[], bool],
        cancel: Callable[[str, str], Awaitable[object]],
        now_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._index = index
        self._cluster = cluster
        self._paused = paused
        self._cancel = cancel
        self._now_ns = now_ns
        self._told: dict[str, _Told] = {}
        self._abandoned: dict[str, _Told] = {}
        self._members = frozenset(cluster.members)

    async def sweep(self) -> int:
        """Post the wakes that are missing; returns how many. Raises LogError, ViewUnavailable.

        A run whose wake is queued is left to it, once. When a process has gone the queue is not
        believed: what it shows may be in that process' hand.
        """
        now_ns = self._now_ns()
        members = frozenset(self._cluster.members)
        gone = self._members - members
        parked, abandoned = await self._index.overdue(now_ns, paused=self._paused())
        due = _merged(parked)
        self._told = {run: told for run, told in self._told.items() if run in due}
        woken = await self._wake(due, now_ns, gone) if due else 0
        self._members = members
        await self._cancel_abandoned(abandoned, now_ns)
        return woken

    async def _wake(self, due: dict[str, _Due], now_ns: int, gone: frozenset[str]) -> int:
        queued: set[str] = set() if gone else await self._store.wakes.waiting()
        doubt = "".join(f":{process}" for process in sorted(gone))
        missing: list[tuple[_Due, str]] = []
        told_now: dict[str, _Told] = {}
        for run_id, item in due.items():
            told = self._told.get(run_id)
            news = told is None or told.mark != item.mark
            if told is not None and not news and now_ns < told.again_ns and not gone:
                continue
            told_now[run_id] = _told(item.mark, None if news else told, now_ns)
            if news and run_id in queued:
                continue
            cause = f"due:{item.mark[0]}:{item.mark[1]}{doubt}"
            missing.append((item, cause if news or gone else f"{cause}:{_bucket(now_ns)}"))
        await self._post(missing)
        self._told |= told_now
        if missing:
            log.info("woke %d parked runs", len(missing))
        return len(missing)

    async def _post(self, missing: Sequence[tuple[_Due, str]]) -> None:
        wakes = self._store.wakes
        for first in range(0, len(missing), AT_ONCE):
            await asyncio.gather(
                *(
                    wakes.post(
                        run.id,
                        cause,
                        wake_data(run.tenant, seen=(run.last_commit, run.last_seq), check=check),
                    )
                    for (run, _, check), cause in missing[first : first + AT_ONCE]
                )
            )

    async def _cancel_abandoned(self, children: Iterable[DueRun], now_ns: int) -> None:
        """One process does it, and only where the parent's own cancel got lost."""
        before, self._abandoned = self._abandoned, {}
        for child in children:
            told = before.get(child.id)
            late = told is not None and now_ns >= told.again_ns
            if told is None or late:
                told = _told((0, 0), told, now_ns)
            self._abandoned[child.id] = told
            if late and self._cluster.leads():
                log.info("%s is cancelled: its parent has ended", child.id)
                await self._cancel(child.tenant, child.id)


def _merged(rows: Iterable[DueRun]) -> dict[str, _Due]:
    due: dict[str, _Due] = {}
    for row in rows:
        other = due.get(row.id)
        mark, check = row.mark, row.cause == "children"
        if other is not None:
            mark, check = mark + other.mark[1], check or other.check
        due[row.id] = _Due(row, (row.last_seq, mark), check)
    return due


def _told(mark: tuple[int, int], before: _Told | None, now_ns: int) -> _Told:
    """Told now, and again after a pause that grows while nothing moves."""
    pause_ns = int(REPEAT_S * _SECOND_NS)
    if before is not None:
        pause_ns = min(2 * before.pause_ns, int(REPEAT_MAX_S * _SECOND_NS))
    return _Told(mark, now_ns + pause_ns, pause_ns)


def _bucket(now_ns: int) -> int:
    """The same for all processes that look at about the same time."""
    return now_ns // int(REPEAT_S * _SECOND_NS)
