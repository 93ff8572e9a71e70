"""The streams that projections fold, and how their messages become items.

A message is decoded once for all projections. Decoding may fetch large bodies from the blob
store, which is why it stands before the folds and not in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from events import commit as commits
from events import evaluations, hooks, inbox, state
from events.commit import BrokenChain, Commit, FutureEvent, JournalError
from events.log import Blobs, Log, Message
from events.streams import RUNS, STATE, StreamSpec
from events.subjects import Subjects, name_or_hash
from events.vocabulary import Event, Unrecognised
from projections.framework import Kind


@dataclass(frozen=True)
class Source:
    """One stream. ``first`` is its lowest sequence; ``roots`` are filters that cover it."""

    kind: Kind
    stream: str
    first: int
    roots: tuple[str, ...]

    async def last_stored(self, log: Log) -> int:
        """Sequence of the newest message that still exists (leader reads); first - 1 if none.

        Differs from the stream's end where the newest messages were purged.
        """
        found = await asyncio.gather(*(log.last(root) for root in self.roots))
        return max((m.seq for m in found if m is not None), default=self.first - 1)


def sources_of(subjects: Subjects) -> tuple[Source, ...]:
    """Every stream that views fold, under the deployment's prefix."""
    kinds: list[tuple[Kind, StreamSpec]] = [("runs", spec) for spec in RUNS]
    kinds.append(("state", STATE))
    return tuple(
        Source(
            kind=kind,
            stream=spec.name,
            first=spec.first,
            roots=tuple(f"{subjects.prefix}.{subject}" for subject in spec.subjects),
        )
        for kind, spec in kinds
    )


class JournalCommit(NamedTuple):
    """A commit whose digests hold; ``events`` are those of its header, all understood."""

    seq: int
    tenant: str
    commit: Commit
    events: list[Event | Unrecognised]


class JournalFault(NamedTuple):
    """A journal message at which the fold of its run ends (``broken``) or waits (``held``)."""

    seq: int
    run: str
    tenant: str
    kind: Literal["broken", "held"]
    reason: str


class InboxPost(NamedTuple):
    """Something said to a run; ``message`` is None when it is of no known kind."""

    seq: int
    run: str
    tenant: str
    message: inbox.InboxMessage | None


class MemoryWrite(NamedTuple):
    seq: int
    event: state.MemoryWritten


class MemoryFault(NamedTuple):
    """A memory message that cannot be read; the row keeps its last readable value."""

    seq: int
    subject: str
    reason: str


class HookChange(NamedTuple):
    seq: int
    subject: str
    event: hooks.HookEvent


class HookFault(NamedTuple):
    """A message about a hook that cannot be read; the hook stays what it was."""

    seq: int
    subject: str
    reason: str


class EvaluationWrite(NamedTuple):
    seq: int
    event: evaluations.EvaluationSubmitted


class EvaluationFault(NamedTuple):
    """A message about an evaluation that cannot be read."""

    seq: int
    subject: str
    reason: str


class Hold(NamedTuple):
    """Nothing of the stream may be folded from here on by this version."""

    seq: int
    reason: str


Item = (
    JournalCommit
    | JournalFault
    | InboxPost
    | MemoryWrite
    | MemoryFault
    | HookChange
    | HookFault
    | EvaluationWrite
    | EvaluationFault
    | Hold
)


class Decoder:
    """Makes items of messages, for one connection to the log."""

    def __init__(self, subjects: Subjects, blobs: Blobs) -> None:
        self._parse = lru_cache(maxsize=4096)(subjects.parse)
        self._memory = subjects.any("mem").removesuffix(">")
        self._hooks = subjects.any("hook").removesuffix(">")
        self._evaluations = subjects.any("eval").removesuffix(">")
        self._blobs = blobs

    async def decode(self, kind: Kind, messages: Sequence[Message]) -> list[Item]:
        """Items of ``messages`` in order; a Hold is the last one.

        Raises LogError when a blob cannot be read now.
        """
        if kind == "state":
            return self._state(messages)
        items: list[Item] = []
        for message in messages:
            place, name, leaf = message.subject.rsplit(".", 2)
            if leaf == "session":
                continue
            # a place (slot and tenant) is seen again and again, a run's own subject twice
            tenant = self._parse(f"{place}._.journal").tenant
            run, seq = name_or_hash(name), message.seq
            if leaf == "inbox":
                items.append(InboxPost(seq, run, tenant, _said(message.data)))
                continue
            try:
                commit = commits.decode(message.data, seq)
                if b"" in commit.bodies:
                    missing = commit.blobs()
                    commit.fill({name: await self._blob(name, commit) for name in missing})
                items.append(_understand(run, tenant, commit))
            except JournalError as fault:
                reason = f"commit {fault.commit} (sequence {seq}): {fault.reason}"
                wait = isinstance(fault, FutureEvent)
                items.append(JournalFault(seq, run, tenant, "held" if wait else "broken", reason))
        return items

    async def _blob(self, name: str, commit: Commit) -> bytes:
        try:
            return await self._blobs.get(name)
        except KeyError:
            raise BrokenChain(commit.run, commit.c, commit.seq, f"blob {name} is missing") from None

    def _state(self, messages: Sequence[Message]) -> list[Item]:
        items: list[Item] = []
        for message in messages:
            try:
                item = self._state_item(message)
            except state.FutureState as held:
                items.append(Hold(message.seq, f"{message.subject}: {held.reason}"))
                break
            if item is not None:
                items.append(item)
        return items

    def _state_item(self, message: Message) -> Item | None:
        """None for what no view folds. Raises FutureState."""
        subject, seq = message.subject, message.seq
        if subject.startswith(self._memory):
            try:
                written = state.decode(message.data)
            except state.UnreadableState as fault:
                return MemoryFault(seq, subject, fault.reason)
            return MemoryWrite(seq, written) if written is not None else None
        if subject.startswith(self._hooks):
            try:
                change = hooks.decode(message.data)
            except state.UnreadableState as fault:
                return HookFault(seq, subject, fault.reason)
            return HookChange(seq, subject, change) if change is not None else None
        if subject.startswith(self._evaluations):
            try:
                submitted = evaluations.decode(message.data)
            except state.UnreadableState as fault:
                return EvaluationFault(seq, subject, fault.reason)
            return EvaluationWrite(seq, submitted) if submitted is not None else None
        return None


def _said(data: bytes) -> inbox.InboxMessage | None:
    try:
        return inbox.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _understand(run: str, tenant: str, commit: Commit) -> JournalCommit:
    """Check the commit's own order and decode all its events. Raises JournalError."""
    header = commit.header
    if header.run != run:
        raise BrokenChain(run, commit.c, commit.seq, f"belongs to {commit.run}")
    heads = header.events
    if heads[-1].n != heads[0].n + len(heads) - 1:
        raise BrokenChain(commit.run, commit.c, commit.seq, "event numbers are not consecutive")
    events = [
        commits.decode_event(commit, head, body)
        for head, body in zip(heads, commit.bodies, strict=True)
    ]
    return JournalCommit(commit.seq, tenant, commit, events)
