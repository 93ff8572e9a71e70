"""Starts and ends of runs as they are stored, for whoever watches a user's runs.

Specification: http-runs.md section 15.1. Fed by the log, so that it does not matter which replica
advances a run. While nobody watches, nothing is followed and nothing costs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct

from events.commit import JournalError
from events.log import EventStore, LogError, Message
from events.streams import RUN_STREAM_NAMES
from events.vocabulary import RunFinished, RunStarted
from loomcycle.loading import opening, whole_commit

log = logging.getLogger("loomcycle.run_states")

BUFFERED = 64
"""Transitions kept for a watcher that does not fetch them; it loses those that come after."""

_STARTS = b'"type":"run.started"'
_ENDS = b'"type":"run.finished"'


class RunTransition(Struct, frozen=True, kw_only=True):
    """A run began or ended. ``seq`` is the public sequence of the event, ``ts_ns`` its time."""

    seq: int
    run_id: str
    tenant: str
    agent_id: str
    agent: str
    user_id: str
    parent_agent_id: str
    parent_context: dict[str, str] | None
    status: str
    stop_reason: str = ""
    error: str = ""
    ts_ns: int


class Watcher:
    """One reader; made by :meth:`RunStates.watch`."""

    def __init__(self, wanted: Callable[[RunTransition], bool]) -> None:
        self.wanted = wanted
        self._waiting: deque[RunTransition] = deque()
        self._arrived = asyncio.Event()

    def offer(self, transition: RunTransition) -> None:
        if len(self._waiting) < BUFFERED and self.wanted(transition):
            self._waiting.append(transition)
            self._arrived.set()

    async def next(self, timeout: float) -> list[RunTransition]:
        """What has come, at least one unless ``timeout`` seconds passed."""
        if not self._waiting:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        found = list(self._waiting)
        self._waiting.clear()
        return found


class RunStates:
    """Follows the journals of all runs while somebody in this process watches."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._watchers: set[Watcher] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._begun: dict[str, RunStarted] = {}
        """Runs that began while somebody watched."""
        self._opening = asyncio.Lock()

    async def watch(self, wanted: Callable[[RunTransition], bool]) -> Watcher:
        """A watcher of everything from now on that is ``wanted``. Raises LogError."""
        watcher = Watcher(wanted)
        async with self._opening:
            if not self._tasks:
                ends = await self._store.log.ends(RUN_STREAM_NAMES)
                self._tasks = [
                    asyncio.create_task(self._follow(stream, end), name=f"run-states-{stream}")
                    for stream, end in ends.items()
                ]
            self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            self._stop()

    async def close(self) -> None:
        tasks = self._tasks
        self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._begun.clear()

    async def _follow(self, stream: str, after: int) -> None:
        async for messages in self._store.log.tail(stream, after=after):
            for message in messages:
                header = message.data.partition(b"\n")[0]
                if _STARTS not in header and _ENDS not in header:
                    continue
                try:
                    await self._transitions(message)
                except (LogError, JournalError) as cause:
                    log.warning("sequence %d is not told to watchers: %s", message.seq, cause)

    async def _transitions(self, message: Message) -> None:
        commit = await whole_commit(self._store, message)
        for record in commit.records():
            match record.event:
                case RunStarted() as facts:
                    self._begun[commit.run] = facts
                    self._tell(_transition(facts, record.seq, record.ts, "running"))
                case RunFinished(status=status, stop_reason=reason, error=error):
                    began = self._begun.pop(commit.run, None) or await self._facts(message)
                    if began is not None:
                        end = _transition(began, record.seq, record.ts, status, reason, error)
                        self._tell(end)

    async def _facts(self, message: Message) -> RunStarted | None:
        """The first event of a run that began before anybody watched."""
        first = await self._store.log.first(message.subject)
        return opening(await whole_commit(self._store, first)) if first is not None else None

    def _tell(self, transition: RunTransition) -> None:
        for watcher in self._watchers:
            watcher.offer(transition)


def only(
    *, user_id: str, tenant: str | None, statuses: Iterable[str], agent: str
) -> Callable[[RunTransition], bool]:
    """A wish: transitions of one user's runs; None, an empty list and "" mean any."""
    chosen = frozenset(statuses)

    def wanted(transition: RunTransition) -> bool:
        return (
            transition.user_id == user_id
            and (tenant is None or transition.tenant == tenant)
            and (not chosen or transition.status in chosen)
            and (not agent or transition.agent == agent)
        )

    return wanted


def _transition(
    facts: RunStarted, seq: int, ts_ns: int, status: str, stop_reason: str = "", error: str = ""
) -> RunTransition:
    return RunTransition(
        seq=seq,
        run_id=facts.run,
        tenant=facts.tenant,
        agent_id=facts.agent_id,
        agent=facts.agent,
        user_id=facts.user_id,
        parent_agent_id=facts.parent_agent_id,
        parent_context=facts.parent_context,
        status=status,
        stop_reason=stop_reason,
        error=error,
        ts_ns=ts_ns,
    )
