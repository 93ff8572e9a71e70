"""Commits: the messages of a journal, and the hash chain over them.

A stored commit is text: one line of JSON header, then one line of JSON body for each event. The
chain hashes the header line as stored, the header holds a digest of each body, so a body can be
erased without breaking the chain, and both can be checked with ``sha256sum``.
Stored bytes are never re-encoded; older events are upcast on read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from events.upcast import upcast
from events.vocabulary import TYPES, Event, Unrecognised, type_of

SEQ_PER_MESSAGE = 1024
"""Public ``seq`` = stream sequence * 1024 + index of the event in its commit."""

INLINE_LIMIT = 256 * 1024
"""Bodies above this many bytes are stored as blobs, named by their digest."""

ENVELOPE_VERSION = 1


class JournalError(Exception):
    """A journal that must not be folded further; ``seq`` names the stored message."""

    def __init__(self, run: str, commit: int, seq: int, reason: str) -> None:
        super().__init__(f"journal of {run}: commit {commit} (sequence {seq}): {reason}")
        self.run, self.commit, self.seq, self.reason = run, commit, seq, reason


class BrokenChain(JournalError):
    """A commit is missing, doubled, swapped, altered or not readable."""


class FutureEvent(JournalError):
    """An event that a newer version wrote and that must be understood to go on."""


class EventHeader(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """``ts``: unix nanoseconds. ``digest``: hex SHA-256 of the body. ``blob``: size in bytes
    of a body kept in the blob store. ``masked``: the body holds masks, its plaintext is sealed.
    ``key``: id of the key a body is encrypted with (reserved)."""

    n: int
    type: str
    ts: int
    digest: str
    v: int = 1
    must_understand: bool = True
    principal: str = ""
    cause: str = ""
    blob: int = 0
    masked: bool = False
    key: str = ""


class CommitHeader(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """``c`` counts the commits of a run from 1; ``prev`` is the hash of the one before."""

    v: int
    run: str
    c: int
    epoch: int
    writer: str
    events: list[EventHeader]
    prev: str = ""


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(CommitHeader).decode
_decode_any = msgspec.json.Decoder().decode
_decoders: dict[str, tuple[Callable[[bytes], Any], int]] = {
    name: (msgspec.json.Decoder(cls).decode, cls.VERSION) for name, cls in TYPES.items()
}


class Record(Struct, gc=False, eq=False):
    """One event with its envelope. ``event`` is decoded (and upcast) on first use."""

    commit: Commit
    header: EventHeader
    body: bytes
    seq: int
    _event: Event | Unrecognised | None = None

    @property
    def n(self) -> int:
        return self.header.n

    @property
    def type(self) -> str:
        return self.header.type

    @property
    def ts(self) -> int:
        return self.header.ts

    @property
    def event(self) -> Event | Unrecognised:
        """Raises FutureEvent or BrokenChain (a body that does not decode)."""
        if self._event is None:
            self._event = decode_event(self.commit, self.header, self.body)
        return self._event


class Commit(Struct, gc=False, eq=False):
    """A decoded commit; ``hash`` is the hex SHA-256 of its stored header line."""

    header: CommitHeader
    hash: str
    bodies: list[bytes]
    seq: int

    @property
    def run(self) -> str:
        return self.header.run

    @property
    def c(self) -> int:
        return self.header.c

    @property
    def last_n(self) -> int:
        return self.header.events[-1].n

    def blobs(self) -> list[str]:
        """Names of the bodies that must be fetched before records can be decoded."""
        return [
            e.digest
            for e, body in zip(self.header.events, self.bodies, strict=True)
            if e.blob and not body
        ]

    def fill(self, contents: dict[str, bytes]) -> None:
        """Put fetched blobs in place. Raises BrokenChain when one has another hash."""
        for i, e in enumerate(self.header.events):
            if e.blob and not self.bodies[i]:
                body = contents[e.digest]
                if sha256(body).hexdigest() != e.digest:
                    raise BrokenChain(self.run, self.c, self.seq, f"blob of event {e.n} altered")
                self.bodies[i] = body

    def events(self) -> Iterator[tuple[EventHeader, Event | Unrecognised]]:
        """The events without envelopes of their own. Raises FutureEvent, BrokenChain."""
        for header, body in zip(self.header.events, self.bodies, strict=True):
            yield header, decode_event(self, header, body)

    def records(self, seq: int | None = None) -> list[Record]:
        """The events with their public sequence numbers."""
        base = (self.seq if seq is None else seq) * SEQ_PER_MESSAGE
        return [
            Record(self, e, body, base + i)
            for i, (e, body) in enumerate(zip(self.header.events, self.bodies, strict=True))
        ]


class NewEvent(Struct, frozen=True, kw_only=True):
    """An event about to be committed, already encoded (and masked)."""

    type: str
    body: bytes
    v: int = 1
    must_understand: bool = True
    principal: str = ""
    cause: str = ""
    masked: bool = False


def new_event(event: Event, *, cause: str = "", principal: str = "") -> NewEvent:
    """Encode ``event`` for a commit."""
    cls = type(event)
    return NewEvent(
        type=type_of(event),
        body=_encode(event),
        v=cls.VERSION,
        must_understand=cls.MUST_UNDERSTAND,
        cause=cause,
        principal=principal,
    )


def encode_commit(
    *,
    run: str,
    c: int,
    prev: str,
    epoch: int,
    writer: str,
    first_n: int,
    ts: int,
    events: Sequence[NewEvent],
) -> tuple[bytes, str, CommitHeader, dict[str, bytes]]:
    """Return (stored bytes, commit hash, header, bodies to store as blobs by name).

    Raises ValueError for an empty commit or one of more than 1 023 events.
    """
    if not 0 < len(events) < SEQ_PER_MESSAGE:
        raise ValueError(f"a commit holds 1 to {SEQ_PER_MESSAGE - 1} events, not {len(events)}")
    headers: list[EventHeader] = []
    lines: list[bytes] = [b""]
    blobs: dict[str, bytes] = {}
    for i, event in enumerate(events):
        body = event.body
        if b"\n" in body:
            raise ValueError(f"body of a {event.type} event is more than one line")
        digest = sha256(body).hexdigest()
        large = len(body) > INLINE_LIMIT
        headers.append(
            EventHeader(
                n=first_n + i,
                type=event.type,
                ts=ts,
                digest=digest,
                v=event.v,
                must_understand=event.must_understand,
                principal=event.principal,
                cause=event.cause,
                blob=len(body) if large else 0,
                masked=event.masked,
            )
        )
        if large:
            blobs[digest] = body
            lines.append(b"")
        else:
            lines.append(body)
    header = CommitHeader(
        v=ENVELOPE_VERSION, run=run, c=c, prev=prev, epoch=epoch, writer=writer, events=headers
    )
    lines[0] = _encode(header)
    return b"\n".join(lines), sha256(lines[0]).hexdigest(), header, blobs


def decode(data: bytes, seq: int = 0) -> Commit:
    """Decode one stored commit and check its digests. Raises BrokenChain."""
    line, _, rest = data.partition(b"\n")
    try:
        header = _decode_header(line)
    except (msgspec.DecodeError, ValueError) as cause:
        raise BrokenChain("?", 0, seq, f"unreadable header: {cause}") from None
    bodies = rest.split(b"\n")
    events = header.events
    if header.v > ENVELOPE_VERSION:
        raise FutureEvent(header.run, header.c, seq, f"envelope version {header.v}")
    if len(bodies) != len(events) or not events:
        raise BrokenChain(header.run, header.c, seq, "bodies and headers differ in number")
    for e, body in zip(events, bodies, strict=True):
        if sha256(body).hexdigest() != e.digest and not (e.blob and not body):
            raise BrokenChain(header.run, header.c, seq, f"body of event {e.n} altered")
    return Commit(header, sha256(line).hexdigest(), bodies, seq)


def decode_event(commit: Commit, header: EventHeader, body: bytes) -> Event | Unrecognised:
    """Decode and upcast one body. Raises FutureEvent, BrokenChain."""
    known = _decoders.get(header.type)
    try:
        if known is not None and header.v == known[1]:
            event: Event = known[0](body)
            return event
        if known is None or header.v > known[1]:
            if header.must_understand:
                raise FutureEvent(
                    commit.run,
                    commit.c,
                    commit.seq,
                    f"event {header.n} has unknown type {header.type!r} version {header.v}",
                )
            return Unrecognised(header.type, _decode_any(body))
        fields = upcast(header.type, header.v, known[1], _decode_any(body))
        return msgspec.convert(fields, TYPES[header.type])
    except (msgspec.DecodeError, msgspec.ValidationError) as cause:
        raise BrokenChain(
            commit.run, commit.c, commit.seq, f"event {header.n} does not decode: {cause}"
        ) from None


class Chain:
    """Checks commits of one run in order: numbers, links and epochs. Raises BrokenChain."""

    __slots__ = ("c", "epoch", "hash", "n", "run")

    def __init__(self, run: str, c: int = 0, n: int = 0, hash_: str = "", epoch: int = 0) -> None:
        self.run, self.c, self.n, self.hash, self.epoch = run, c, n, hash_, epoch

    def check(self, commit: Commit) -> None:
        header = commit.header
        if header.run != self.run:
            raise self._broken(commit, f"belongs to {header.run}")
        if header.c != self.c + 1:
            raise self._broken(commit, f"follows commit {self.c}: one is missing or doubled")
        if header.prev != self.hash:
            raise self._broken(commit, "does not name the commit before it")
        if header.epoch < self.epoch:
            raise self._broken(commit, f"epoch {header.epoch} after epoch {self.epoch}")
        if [e.n for e in header.events] != list(range(self.n + 1, self.n + 1 + len(header.events))):
            raise self._broken(commit, "event numbers are not consecutive")
        self.c, self.n, self.hash, self.epoch = header.c, commit.last_n, commit.hash, header.epoch

    def _broken(self, commit: Commit, reason: str) -> BrokenChain:
        return BrokenChain(self.run, commit.c, commit.seq, reason)
