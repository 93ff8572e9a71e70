"""What a start must pass at the moment a worker takes it: its session's lock and its handle.

Both are compare-and-set on subjects of the log, so they hold on every replica (kernel.md 4).
"""

from __future__ import annotations

import msgspec

from events.commit import decode
from events.log import EventStore, Message
from events.vocabulary import RunWithdrawn
from loomcycle.journal import withdraw
from loomcycle.session_lock import take
from loomcycle.starts import StartItem
from replay.machine import HANDLE_TAKEN

SESSION_BUSY = "session_busy"
SESSION_DAMAGED = "session_damaged"
"""An earlier run of the session cannot be read; the reason goes on with what is wrong."""

TERMINAL = frozenset({"run.finished", "run.withdrawn", "run.amended"})


class Refused(Exception):
    """The start may not become a run. ``tombstone``: nothing of it may be seen as a run."""

    def __init__(self, error: str, tombstone: RunWithdrawn | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.tombstone = tombstone


class Admission:
    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def admit(self, item: StartItem, *, writer: str, ts: int) -> None:
        """Take the session's lock and the agent handle for ``item``. Raises Refused, LogError.

        ``writer`` and ``ts`` sign the tombstone of an earlier holder that never began.
        """
        if not item.opens_session:
            subject = self._store.subjects.session(item.tenant, item.session)
            if not await take(self._store, subject, item.run, item.session_after):
                raise Refused(SESSION_BUSY, RunWithdrawn(reason=SESSION_BUSY))
        if item.claims_handle:
            await self._claim_handle(item, writer, ts)

    async def _claim_handle(self, item: StartItem, writer: str, ts: int) -> None:
        store = self._store
        subject = store.subjects.agent_handle(item.tenant, item.agent_id)
        holder = await store.log.last(subject)
        after = 0
        if holder is not None:
            after = holder.seq
            other = msgspec.json.decode(holder.data, type=str)
            if other == item.run:
                return
            if not await ended(store, item.tenant, other, HANDLE_TAKEN, writer=writer, ts=ts):
                raise Refused(HANDLE_TAKEN)
        if not await take(store, subject, item.run, after):
            raise Refused(HANDLE_TAKEN)


async def ended(
    store: EventStore, tenant: str, run_id: str, reason: str, *, writer: str, ts: int
) -> bool:
    """Leader read: whether ``run_id``, which holds a lock, has its terminal event.

    A holder without a journal was lost before its first commit, or is about to make it: its
    tombstone decides which, so that it cannot begin once the lock has passed to another.
    """
    last = await store.log.last(store.subjects.journal(tenant, run_id))
    if last is None:
        return await withdraw(store, tenant, run_id, reason, writer=writer, ts=ts)
    return terminal(last)


def terminal(last: Message) -> bool:
    """Whether a stored commit ends its run, or was added after its end. Raises JournalError."""
    return any(
        event.type in ("run.finished", "run.withdrawn", "run.amended")
        for event in decode(last.data, last.seq).header.events
    )


def withdrawn(last: Message) -> bool:
    """Whether a stored commit is the tombstone of a start. Raises JournalError."""
    return decode(last.data, last.seq).header.events[0].type == "run.withdrawn"
