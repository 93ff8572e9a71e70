"""What a start must pass at the moment a worker takes it: its session's lock and its handle.

Both are compare-and-set on subjects of the log, so they hold on every replica (kernel.md 4).
"""

from __future__ import annotations

import msgspec

from events.commit import decode
from events.log import EventStore, OutcomeUnknown, WrongSequence
from events.vocabulary import RunWithdrawn
from loomcycle.starts import StartItem
from replay.machine import HANDLE_TAKEN

SESSION_BUSY = "session_busy"


class Refused(Exception):
    """The start may not become a run. ``tombstone``: nothing of it may be seen as a run."""

    def __init__(self, error: str, tombstone: RunWithdrawn | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.tombstone = tombstone


class Admission:
    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def admit(self, item: StartItem) -> None:
        """Take the session's lock and the agent handle for ``item``. Raises Refused, LogError."""
        if not item.opens_session:
            await self._lock_session(item)
        if item.claims_handle:
            await self._claim_handle(item)

    async def _lock_session(self, item: StartItem) -> None:
        log, subject = self._store.log, self._store.subjects.session(item.tenant, item.session)
        try:
            await log.append(subject, msgspec.json.encode(item.run), after=item.session_after)
        except (WrongSequence, OutcomeUnknown):
            last = await log.last(subject)
            if last is None or last.data != msgspec.json.encode(item.run):
                raise Refused(SESSION_BUSY, RunWithdrawn(reason=SESSION_BUSY)) from None

    async def _claim_handle(self, item: StartItem) -> None:
        log = self._store.log
        subject = self._store.subjects.agent_handle(item.tenant, item.agent_id)
        holder = await log.last(subject)
        if holder is not None and holder.data != msgspec.json.encode(item.run):
            other = msgspec.json.decode(holder.data, type=str)
            if not await ended(self._store, item.tenant, other):
                raise Refused(HANDLE_TAKEN)
        try:
            after = 0 if holder is None else holder.seq
            await log.append(subject, msgspec.json.encode(item.run), after=after)
        except (WrongSequence, OutcomeUnknown):
            holder = await log.last(subject)
            if holder is None or holder.data != msgspec.json.encode(item.run):
                raise Refused(HANDLE_TAKEN) from None


async def ended(store: EventStore, tenant: str, run_id: str) -> bool:
    """Leader read: whether ``run_id`` has its terminal event, or never began."""
    last = await store.log.last(store.subjects.journal(tenant, run_id))
    return last is None or terminal(last.data)


def terminal(data: bytes) -> bool:
    """Whether a stored commit ends its run."""
    return any(
        event.type in ("run.finished", "run.withdrawn") for event in decode(data).header.events
    )
