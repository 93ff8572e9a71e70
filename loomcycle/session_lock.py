"""The lock of a session: a subject of the log, compared and set (kernel.md section 4).

Its last run has the session until it ended. Who amends that run takes the subject over first, so
that a continuation either stands before the amendment, and prevents it, or sees it.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import msgspec
from msgspec import Struct

from events.log import EventStore, OutcomeUnknown, WrongSequence
from loomcycle.journal import ATTEMPTS, pause


class Amending(Struct, frozen=True, omit_defaults=True):
    """Run ``amends`` may get a commit as long as this is the last entry; "" ends that.

    ``by`` makes the entry its writer's own.
    """

    by: str
    amends: str = ""


Entry = str | Amending
"""A run's id, once it was admitted, or a note about an amendment."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class SessionLine(NamedTuple):
    """``runs``: who was admitted, in order (the first run of a session is not among them).
    ``end``: the subject's last sequence, 0 for none. ``amending``: the last entry says so."""

    runs: tuple[str, ...]
    end: int
    amending: bool


def run_of(data: bytes) -> str:
    """The run that an entry admits, "" for a note. Raises msgspec.DecodeError."""
    entry = _decode(data)
    return entry if isinstance(entry, str) else ""


async def line_of(store: EventStore, tenant: str, session_id: str) -> SessionLine:
    """The session as its leader knows it. Raises LogError."""
    subject = store.subjects.session(tenant, session_id)
    last = await store.log.last(subject)
    if last is None:
        return SessionLine((), 0, False)
    for attempt in count():
        messages = await store.log.read(subject)
        if messages and messages[-1].seq >= last.seq:
            break
        await pause(attempt)
    entries = [_decode(message.data) for message in messages]
    runs = tuple(entry for entry in entries if isinstance(entry, str))
    newest = entries[-1]
    amending = isinstance(newest, Amending) and bool(newest.amends)
    return SessionLine(runs, messages[-1].seq, amending)


async def take(store: EventStore, subject: str, entry: Entry, after: int) -> int:
    """Append ``entry`` to ``subject``, which ended at ``after``; its sequence, 0 if it did not.

    Raises LogError when nobody knows.
    """
    log, data = store.log, _encode(entry)
    for _ in range(ATTEMPTS):
        try:
            return await log.append(subject, data, after=after)
        except (WrongSequence, OutcomeUnknown):
            last = await log.last(subject)
            if last is not None and last.data == data:
                return last.seq
            if (0 if last is None else last.seq) != after:
                return 0
    raise OutcomeUnknown(f"{subject}: no answer")
