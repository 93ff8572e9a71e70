"""Deletes seals that outlived their runs: whoever should have deleted them died just before.

A run's seals go when it ends (``loomcycle/ownership.py``); this is the net below. It looks at a
few at a time, at journals on the leader only, and repeats what somebody else does too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from events.commit import JournalError
from events.log import EventStore, LogError, Sealed
from loomcycle.admission import terminal
from loomcycle.cluster import Cluster

log = logging.getLogger("loomcycle.sweeper")

EVERY_S = 60.0
LOOKS = 100
"""Sealed values looked at each time; the next time goes on behind them."""

ABANDONED_S = 24 * 3600.0
"""A seal without a journal belongs to a start under way, which never takes so long."""

_SECOND_NS = 1_000_000_000


class LeftoverSeals:
    """One process of a cluster does it, two at the same time do no harm."""

    def __init__(self, store: EventStore, cluster: Cluster, *, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._cluster = cluster
        self._now_ns = now_ns
        self._after = 0

    async def keep_sweeping(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if not self._cluster.leads():
                continue
            try:
                await self.sweep()
            except LogError as cause:
                log.info("seals of ended runs are looked for later: %s", cause)

    async def sweep(self) -> int:
        """Go on where the last call ended; returns how many runs lost seals. Raises LogError."""
        seals = self._store.seals
        seen: set[str] = set()
        deleted = 0
        for _ in range(LOOKS):
            sealed = await seals.next(self._after)
            if sealed is None:
                self._after = 0
                break
            self._after = sealed.seq
            if sealed.run_id in seen:
                continue
            seen.add(sealed.run_id)
            if await self._is_left_over(sealed):
                await seals.delete(sealed.run_id)
                deleted += 1
        if deleted:
            log.info("deleted what was still sealed for %d runs that are over", deleted)
        return deleted

    async def _is_left_over(self, sealed: Sealed) -> bool:
        if sealed.run_id.startswith("~"):
            return False  # the hash of a long id, whose journal cannot be found
        last = await self._store.log.last(self._store.subjects.journals(sealed.run_id))
        if last is None:
            return self._now_ns() - sealed.time_ns > ABANDONED_S * _SECOND_NS
        try:
            return terminal(last)
        except JournalError:
            return False
