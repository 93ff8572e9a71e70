"""Deadlines that have come: each due timer becomes a wake at once.

Timers live in memory on the log's server. A lost or late one costs seconds, for the sweeper finds
the runs whose time has come in the views (``loomcycle/parked.py``).
"""

from __future__ import annotations

import asyncio
import logging

from events.log import Delivery, EventStore, LogError, WorkSource
from loomcycle.wakes import PARK_TIMER

log = logging.getLogger("loomcycle.timers")

HANDS = 8
"""Due timers dealt with at the same time."""

RETRY_S = 1.0
UNKNOWN_KIND_S = 30.0
"""A timer of a kind that this version does not know is left to newer replicas for so long."""


class DueTimers:
    """Takes due timers off the log's queue, as one of all processes that do."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._source: WorkSource | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        source = self._source = self._store.timers.due()
        self._tasks = [
            asyncio.create_task(self._serve(source), name=f"timers-{i}") for i in range(HANDS)
        ]
        source.allow(HANDS)

    async def stop(self) -> None:
        if self._source is not None:
            await self._source.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, source: WorkSource) -> None:
        while True:
            due = await source.get()
            try:
                await self._fire(due)
            except LogError as cause:
                log.warning("due timer %s put back: %s", due.subject, cause)
                due.nak(RETRY_S)
            except Exception:
                log.exception("due timer %s failed", due.subject)
                due.nak(RETRY_S)
            finally:
                source.allow(HANDS)

    async def _fire(self, due: Delivery) -> None:
        timer = self._store.subjects.parse(due.subject)
        if timer.key != PARK_TIMER:
            due.nak(UNKNOWN_KIND_S)
            return
        await self._store.wakes.post(timer.name, f"timer:{due.seq}", due.data)
        due.ack()
