"""The writer of one run's journal: the only code that appends to a journal.

It numbers events, chains commits, masks secrets, seals what it masked, stores large bodies as
blobs, and decides after every failed publish whether the commit is stored (kernel.md sections
1 to 3). It knows nothing about models, tools or clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

import msgspec

from events.commit import (
    CommitHeader,
    NewEvent,
    decode,
    encode_commit,
    new_event,
)
from events.log import (
    EventStore,
    LogError,
    LogUnavailable,
    Message,
    OutcomeUnknown,
    WrongSequence,
)
from events.vocabulary import Event, RunWithdrawn
from replay.fold import apply, sealed_by
from replay.state import State

log = logging.getLogger("loomcycle.journal")

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts while the log is away; the last one repeats."""

MAX_REFUSALS = 20

ATTEMPTS = 3
"""Of a write that is not a run's own, before its caller is told that nobody knows."""

T = TypeVar("T")


class Fenced(Exception):
    """Another worker owns the run now; nothing this writer staged is visible."""


class InboxMoved(Exception):
    """The run was not ended: something reached its inbox since it was last read."""


class Masker(Protocol):
    """Replaces known secrets in an event; returns the same object when there are none."""

    def mask(self, event: Event) -> Event: ...


class Observer(Protocol):
    """Told of every commit after it is stored, in order."""

    def committed(
        self, seq: int, header: CommitHeader, events: list[Event], data: bytes
    ) -> None: ...


_encode = msgspec.json.Encoder().encode


class RunJournal:
    """The journal of a run that this worker owns.

    ``state`` runs ahead of the log by the staged events. ``run_seq`` is the last sequence seen
    over journal and inbox: a commit that expects it fails when anything came in between.
    """

    __slots__ = (
        "_now_ns",
        "_observer",
        "_staged",
        "_store",
        "_subject",
        "_whole",
        "epoch",
        "in_vain",
        "inbox",
        "inbox_seq",
        "inbox_subject",
        "journal_seq",
        "masker",
        "plain",
        "run_id",
        "run_seq",
        "size",
        "state",
        "tenant",
        "worker",
    )

    def __init__(
        self,
        store: EventStore,
        state: State,
        *,
        tenant: str,
        run_id: str,
        worker: str,
        epoch: int,
        now_ns: Callable[[], int],
        observer: Observer,
        masker: Masker | None = None,
        journal_seq: int = 0,
    ) -> None:
        self._store = store
        self._subject = store.subjects.journal(tenant, run_id)
        self._whole = store.subjects.run(tenant, run_id)
        self.inbox_subject = store.subjects.inbox(tenant, run_id)
        self._now_ns = now_ns
        self._observer = observer
        self.masker = masker
        self._staged: list[tuple[NewEvent, Event]] = []
        self.state = state
        self.tenant = tenant
        self.run_id = run_id
        self.worker = worker
        self.epoch = epoch
        self.journal_seq = journal_seq
        self.run_seq = journal_seq
        self.size = 0
        """Bytes of the commits read and written here."""
        self.inbox_seq = 0
        self.inbox: list[Message] = []
        self.in_vain: Callable[[], bool] = _never
        """Whether nobody wants what is being committed any more: only a start's first commit."""
        self.plain: dict[int, Event] = {}
        """Unmasked events by number, for performing effects only."""

    def stage(self, event: Event) -> None:
        """Fold ``event`` and put it into the next commit."""
        n = self.state.n + 1
        shown = event if self.masker is None else self.masker.mask(event)
        masked = shown is not event
        new = new_event(shown)
        if b"\n" in new.body:  # passed-through JSON over several lines; a stored body is one
            new = msgspec.structs.replace(new, body=msgspec.json.format(new.body, indent=-1))
            shown = msgspec.json.decode(new.body, type=type(shown))
        if masked:
            new = msgspec.structs.replace(new, masked=True)
            self.plain[n] = event
        apply(self.state, shown, n, self._now_ns(), masked=masked)
        self._staged.append((new, shown))

    @property
    def staged(self) -> int:
        return len(self._staged)

    async def commit(self, closing: Sequence[Event] = ()) -> None:
        """Store what is staged; with ``closing``, end the run in the same commit.

        Raises Fenced (stop at once) and, only with ``closing``, InboxMoved (staged events stay
        staged, the closing ones are dropped). Waits while the log is away.
        """
        state, masker = self.state, self.masker
        last = [e if masker is None else masker.mask(e) for e in closing]
        shown = [event for _, event in self._staged] + last
        c = state.commits + 1
        ts = self._now_ns()
        data, hash_, header, blobs = encode_commit(
            run=self.run_id,
            c=c,
            prev=state.commit_hash,
            epoch=self.epoch or c,
            writer=self.worker,
            first_n=state.n + 1 - len(self._staged),
            ts=ts,
            events=[new for new, _ in self._staged] + [new_event(e) for e in last],
        )
        if blobs or self.plain:
            await self._store_beside(hash_, header, blobs)
        seq = await self._append(data, hash_, bool(closing))
        for event in last:
            apply(state, event, state.n + 1, ts)
        self.epoch = header.epoch
        self._staged.clear()
        self.journal_seq = self.run_seq = seq
        self.size += len(data) + sum(map(len, blobs.values()))
        self.in_vain = _never
        state.last_ts = ts
        sealed_by(state, c, hash_, header.epoch, self.worker)
        self._observer.committed(seq, header, shown, data)

    async def _store_beside(
        self, hash_: str, header: CommitHeader, blobs: dict[str, bytes]
    ) -> None:
        for body in blobs.values():
            await self._while_away(partial(self._store.blobs.put, body))
        masked = [e.n for e in header.events if e.masked and e.n in self.plain]
        if masked:
            plain = _encode({str(n): self.plain[n] for n in masked})
            run = self.run_id
            name = seal_of(hash_)
            await self._while_away(lambda: self._store.seals.put(run, name, plain))

    async def _append(self, data: bytes, hash_: str, closing: bool) -> int:
        """The sequence of the stored commit; 0 when it must be built again and retried."""
        refused = 0
        for attempt in count():
            try:
                return await self._store.log.append(
                    self._subject, data, after=self.run_seq, scope=self._whole
                )
            except LogUnavailable as cause:
                await self._bear(cause, attempt)
            except OutcomeUnknown:
                pass
            except WrongSequence:
                refused += 1
            messages = await self._new_messages()
            stored = await self._stored_as(hash_)
            if stored:
                return stored
            self._take(messages)
            if messages and closing:
                raise InboxMoved
            if messages:
                refused = 0
            elif refused > MAX_REFUSALS:
                raise Fenced("the run does not end where this writer left it")
        raise AssertionError("unreachable")

    async def _stored_as(self, hash_: str) -> int:
        """Sequence of this very commit if it is stored, 0 if not. Raises Fenced."""
        message = await self._while_away(lambda: self._store.log.last(self._subject))
        if message is None:
            if self.journal_seq:
                raise Fenced("the journal is gone")
            return 0
        if message.seq == self.journal_seq:
            return 0
        if decode(message.data, message.seq).hash == hash_:
            return message.seq
        raise Fenced(f"sequence {message.seq} was written by another")

    async def read_inbox(self) -> bool:
        """Take note of inbox messages not seen yet (kept in ``inbox``); whether there were any.

        Raises Fenced. The journal's end is looked at after the inbox was read: a commit of
        another that stands before a message would be passed over with it otherwise.
        """
        messages = await self._new_messages()
        if messages:
            await self._stored_as("")
            self._take(messages)
        return bool(messages)

    def _take(self, messages: list[Message]) -> None:
        if messages:
            self.inbox += messages
            self.inbox_seq = messages[-1].seq
            self.run_seq = max(self.run_seq, self.inbox_seq)

    async def _new_messages(self) -> list[Message]:
        newest = await self._while_away(lambda: self._store.log.last(self.inbox_subject))
        if newest is None or newest.seq <= self.inbox_seq:
            return []
        for attempt in count():
            messages = await self._while_away(
                lambda: self._store.log.read(self.inbox_subject, after=self.inbox_seq)
            )
            if messages and messages[-1].seq >= newest.seq:
                return messages
            await pause(attempt)
        raise AssertionError("unreachable")

    async def _while_away(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat a harmless operation until the log answers."""
        for attempt in count():
            try:
                return await operation()
            except (LogUnavailable, OutcomeUnknown) as cause:
                await self._bear(cause, attempt)
        raise AssertionError("unreachable")

    async def _bear(self, cause: LogError, attempt: int) -> None:
        """Wait before the next attempt while the log is away, unless that is in vain."""
        if self.in_vain():
            raise cause
        await pause(attempt)


def seal_of(hash_: str) -> str:
    """Name of the seal beside the commit of this hash: no other writer's seal can replace it."""
    return f"commit-{hash_[:32]}"


def _never() -> bool:
    return False


async def pause(attempt: int) -> None:
    """Wait before the next attempt while the log is away."""
    await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])


async def patiently(operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat an operation that is harmless to repeat until the log answers."""
    for attempt in count():
        try:
            return await operation()
        except (LogUnavailable, OutcomeUnknown):
            await pause(attempt)
    raise AssertionError("unreachable")


async def withdraw(
    store: EventStore, tenant: str, run_id: str, reason: str, *, writer: str, ts: int
) -> bool:
    """Write the tombstone of a start that nobody took; False when the run did start.

    Raises LogError when the log is away and nobody knows.
    """
    data, hash_, _, _ = encode_commit(
        run=run_id,
        c=1,
        prev="",
        epoch=1,
        writer=writer,
        first_n=1,
        ts=ts,
        events=[new_event(RunWithdrawn(reason=reason))],
    )
    subject = store.subjects.journal(tenant, run_id)
    for _ in range(ATTEMPTS):
        try:
            await store.log.append(subject, data, after=0)
        except (WrongSequence, OutcomeUnknown):
            last = await store.log.last(subject)
            if last is not None:
                return decode(last.data, last.seq).hash == hash_
        else:
            return True
    raise OutcomeUnknown(f"tombstone of {run_id}: no answer")


async def amend(
    store: EventStore,
    state: State,
    events: Sequence[Event],
    *,
    noted: int,
    writer: str,
    ts: int,
) -> int:
    """Add a commit to a run that has ended, and return its sequence.

    ``state`` has ``events`` folded, masked as they are; ``noted`` is the sequence of the note in
    the run's session that its writer amends it, and must be the session's end when the commit is
    stored (``loomcycle/session_lock.py``). Raises WrongSequence when somebody else was faster,
    LogError when nobody knows.
    """
    facts = state.started
    data, hash_, _, blobs = encode_commit(
        run=facts.run,
        c=state.commits + 1,
        prev=state.commit_hash,
        epoch=state.epoch,
        writer=writer,
        first_n=state.n + 1 - len(events),
        ts=ts,
        events=[new_event(event) for event in events],
    )
    for body in blobs.values():
        await store.blobs.put(body)
    subject = store.subjects.journal(facts.tenant, facts.run)
    session = store.subjects.session(facts.tenant, facts.session)
    for _ in range(ATTEMPTS):
        try:
            return await store.log.append(subject, data, after=noted, scope=session)
        except (WrongSequence, OutcomeUnknown):
            last = await store.log.last(subject)
            if last is not None and decode(last.data, last.seq).hash == hash_:
                return last.seq
            end = await store.log.last(session)
            if end is None or end.seq != noted:
                raise WrongSequence(f"the session of {facts.run} went on") from None
    raise OutcomeUnknown(f"amendment of {facts.run}: no answer")
