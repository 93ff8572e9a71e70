"""Reads the journals of runs that ended in this process again, and hands their spans on.

In the background, one run at a time. What does not fit the queue is dropped and counted: a trace
may be lost, a run never waits for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from events.commit import JournalError
from events.log import EventStore, LogError
from events.vocabulary import RunStarted
from loomcycle.loading import Plans, give_way, read_commits
from loomcycle.tracing.spans import RunSpans, Span, is_sampled, trace_id_of

log = logging.getLogger("loomcycle.tracing")

WAITING = 1024
"""Runs that may wait to be read."""

CLOSE_S = 0.5
"""So long those may take that still wait when the process stops."""


class Sink(Protocol):
    """Where spans go."""

    async def take(self, spans: Sequence[Span]) -> None:
        """Returns when there is room for more. Never raises on account of a receiver."""
        ...


class EndedRuns:
    """Traces the share ``ratio`` (0..1) of the runs that it is told of."""

    def __init__(
        self, store: EventStore, plans: Plans, sink: Sink, *, ratio: float, waiting: int = WAITING
    ) -> None:
        self._store, self._plans, self._sink, self._ratio = store, plans, sink, ratio
        self._queue: asyncio.Queue[RunStarted] = asyncio.Queue(waiting)
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0
        """Runs whose trace was given up because too many waited."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Let those that wait be read, for a moment."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._queue.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def ended(self, facts: RunStarted) -> None:
        """A run ended here. Returns at once."""
        if not is_sampled(trace_id_of(facts), self._ratio):
            return
        try:
            self._queue.put_nowait(facts)
        except asyncio.QueueFull:
            self.dropped += 1
            log.warning("too many runs wait to be traced: %d dropped so far", self.dropped)

    async def _work(self) -> None:
        while True:
            facts = await self._queue.get()
            try:
                await self._sink.take(await self._spans(facts))
            except (LogError, JournalError) as cause:
                log.warning("%s is not traced: %s", facts.run, cause)
            except Exception as cause:  # one journal must not end the tracing of all others
                log.warning("%s is not traced: %s", facts.run, type(cause).__name__)
            finally:
                self._queue.task_done()

    async def _spans(self, facts: RunStarted) -> list[Span]:
        fold = RunSpans(await self._plans.get(facts.plan))
        for index, commit in enumerate(await read_commits(self._store, facts.tenant, facts.run)):
            await give_way(index)
            fold.add(commit)
        return fold.spans
