"""The streams that projections fold, and how their messages become items.

A message is decoded once for all projections. Decoding may fetch large bodies from the blob
store, which is why it stands before the folds and not in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from events import commit as commits
from events import state
from events.commit import BrokenChain, Commit, FutureEvent, JournalError, Record
from events.log import Blobs, Log, Message
from events.streams import RUNS, STATE, StreamSpec
from events.subjects import Subjects
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
            first=max(spec.first_seq, 1),
            roots=tuple(f"{subjects.prefix}.{subject}" for subject in spec.subjects),
        )
        for kind, spec in kinds
    )


class JournalCommit(NamedTuple):
    """A commit whose digests hold and whose events are all understood."""

    seq: int
    tenant: str
    commit: Commit
    records: list[Record]


class JournalFault(NamedTuple):
    """A journal message at which the fold of its run ends (``broken``) or waits (``held``)."""

    seq: int
    run: str
    tenant: str
    kind: Literal["broken", "held"]
    reason: str


class MemoryWrite(NamedTuple):
    seq: int
    event: state.MemoryWritten


class MemoryFault(NamedTuple):
    """A memory message that cannot be read; the row keeps its last readable value."""

    seq: int
    subject: str
    reason: str


class Hold(NamedTuple):
    """Nothing of the stream may be folded from here on by this version."""

    seq: int
    reason: str


Item = JournalCommit | JournalFault | MemoryWrite | MemoryFault | Hold


async def decode(
    kind: Kind, messages: Sequence[Message], subjects: Subjects, blobs: Blobs
) -> list[Item]:
    """Items of ``messages`` in order. Raises LogError when a blob cannot be read now."""
    if kind == "state":
        return _decode_state(messages, subjects)
    items: list[Item] = []
    for message in messages:
        if message.subject.endswith(".journal"):
            items.append(await _decode_journal(message, subjects, blobs))
    return items


async def _decode_journal(
    message: Message, subjects: Subjects, blobs: Blobs
) -> JournalCommit | JournalFault:
    parsed = subjects.parse(message.subject)
    seq = message.seq
    try:
        commit = commits.decode(message.data, seq)
        if commit.run != parsed.run_id:
            raise BrokenChain(parsed.run_id, commit.c, seq, f"belongs to {commit.run}")
        first = commit.header.events[0].n
        if commit.last_n != first + len(commit.header.events) - 1:
            raise BrokenChain(commit.run, commit.c, seq, "event numbers are not consecutive")
        missing = commit.blobs()
        if missing:
            commit.fill({name: await _blob(blobs, name, commit) for name in missing})
        records = commit.records()
        for record in records:
            record.event  # noqa: B018  (decodes: raises for what is not understood)
    except JournalError as fault:
        kind: Literal["broken", "held"] = "held" if isinstance(fault, FutureEvent) else "broken"
        reason = f"commit {fault.commit} (sequence {seq}): {fault.reason}"
        return JournalFault(seq, parsed.run_id, parsed.tenant, kind, reason)
    return JournalCommit(seq, parsed.tenant, commit, records)


async def _blob(blobs: Blobs, name: str, commit: Commit) -> bytes:
    try:
        return await blobs.get(name)
    except KeyError:
        raise BrokenChain(commit.run, commit.c, commit.seq, f"blob {name} is missing") from None


def _decode_state(messages: Sequence[Message], subjects: Subjects) -> list[Item]:
    items: list[Item] = []
    memory = subjects.any("mem").removesuffix(">")
    for message in messages:
        if not message.subject.startswith(memory):
            continue
        try:
            event = state.decode(message.data)
        except state.FutureState as held:
            items.append(Hold(message.seq, f"{message.subject}: {held.reason}"))
            break
        except state.UnreadableState as fault:
            items.append(MemoryFault(message.seq, message.subject, fault.reason))
            continue
        if event is not None:
            items.append(MemoryWrite(message.seq, event))
    return items
