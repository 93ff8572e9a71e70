"""Frames on their way from the owner of a run to its readers, before and beside the log.

Inside one process this is a call; between processes it is ``live.<run>`` on core NATS, sent only
when a reader elsewhere is known. Nothing here is durable: whoever misses something reads the
journal (design.md section 10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from events.commit import SEQ_PER_MESSAGE, Commit, CommitHeader, Record
from events.log import Live
from events.vocabulary import Event, Retry


class Delta(Struct, frozen=True):
    """Text of the turn under way: code points ``start`` … of attempt ``attempt``.

    ``after`` is the number of the last commit that its writer made: the text of a writer that
    lost the run, or of a turn whose beginning the reader missed, belongs nowhere.
    """

    attempt: int
    start: int
    text: str
    after: int


class LiveCommit(NamedTuple):
    """A commit that is stored. ``events`` is None when it came over the wire."""

    seq: int
    header: CommitHeader | None
    events: list[Event] | None
    data: bytes


class Reader(Protocol):
    def on_commit(self, commit: LiveCommit) -> None: ...
    def on_delta(self, delta: Delta) -> None: ...


@dataclass
class _Topic:
    """``written``: this process writes the run. The rest tells of the turn under way."""

    readers: list[Reader] = field(default_factory=list)
    written: bool = False
    remote: bool = False
    commit: int = 0
    attempt: int = 1
    text: str = ""

    def so_far(self) -> Delta:
        return Delta(self.attempt, 0, self.text, self.commit)


_encode = msgspec.json.Encoder().encode
_decode_delta = msgspec.json.Decoder(Delta).decode


class LiveRuns:
    """The runs that somebody in this process writes or reads."""

    def __init__(self, wire: Live) -> None:
        self._wire = wire
        self._topics: dict[str, _Topic] = {}

    # -- the owner's side

    def opened(self, run_id: str, *, remote: bool) -> None:
        """This process begins to write ``run_id``; ``remote``: a reader waits elsewhere."""
        topic = self._topics.setdefault(run_id, _Topic())
        topic.written = True
        topic.remote = topic.remote or remote

    def closed(self, run_id: str) -> None:
        """This process writes ``run_id`` no longer."""
        topic = self._topics.pop(run_id, None)
        if topic is not None and topic.readers:
            self._topics[run_id] = _Topic(topic.readers)

    def commit(
        self, run_id: str, seq: int, header: CommitHeader, events: list[Event], data: bytes
    ) -> None:
        topic = self._topics.get(run_id)
        if topic is None:
            return
        topic.commit = header.c
        if not all(isinstance(event, Retry) for event in events):
            topic.text = ""
        if topic.readers:
            commit = LiveCommit(seq, header, events, data)
            for reader in topic.readers:
                reader.on_commit(commit)
        if topic.remote:
            self._wire.publish(run_id, b"C%d\n%b" % (seq, data))

    def delta(self, run_id: str, attempt: int, text: str) -> None:
        """More text of the turn under way."""
        topic = self._topics.get(run_id)
        if topic is None:
            return
        if topic.attempt != attempt:
            topic.attempt, topic.text = attempt, ""
        delta = Delta(attempt, len(topic.text), text, topic.commit)
        topic.text += text
        for reader in topic.readers:
            reader.on_delta(delta)
        if topic.remote:
            self._wire.publish(run_id, b"D" + _encode(delta))

    def watched(self, run_id: str) -> None:
        """A reader in another process asked for this run: send it the text so far, then all."""
        topic = self._topics.get(run_id)
        if topic is None:
            return
        topic.remote = True
        if topic.text:
            self._wire.publish(run_id, b"D" + _encode(topic.so_far()))

    # -- the readers' side

    def attach(self, run_id: str, reader: Reader) -> None:
        """Call ``reader`` from now on; it gets the text so far of a turn under way here."""
        topic = self._topics.setdefault(run_id, _Topic())
        topic.readers.append(reader)
        if topic.text:
            reader.on_delta(topic.so_far())

    def detach(self, run_id: str, reader: Reader) -> None:
        topic = self._topics.get(run_id)
        if topic is None:
            return
        if reader in topic.readers:
            topic.readers.remove(reader)
        if not topic.readers and not topic.written:
            del self._topics[run_id]

    def readers(self, run_id: str) -> int:
        """How many readers in this process follow ``run_id``."""
        topic = self._topics.get(run_id)
        return len(topic.readers) if topic is not None else 0

    async def follow_remote(self, run_id: str, reader: Reader) -> Callable[[], None]:
        """Also feed ``reader`` from the owner in another process; returns the unsubscriber."""

        def receive(message: bytes) -> None:
            if message[:1] == b"C":
                seq, _, data = message[1:].partition(b"\n")
                reader.on_commit(LiveCommit(int(seq), None, None, data))
            elif message[:1] == b"D":
                reader.on_delta(_decode_delta(message[1:]))

        return await self._wire.follow(run_id, receive)


def live_records(commit: LiveCommit) -> list[Record]:
    """Records of a commit made in this process, without decoding it again."""
    assert commit.header is not None
    assert commit.events is not None
    base = commit.seq * SEQ_PER_MESSAGE
    bodies = commit.data.split(b"\n")[1:]
    whole = Commit(commit.header, "", bodies, commit.seq)
    records = []
    for i, (header, event) in enumerate(zip(commit.header.events, commit.events, strict=True)):
        body = bodies[i] or _encode(event)
        record = Record(whole, header, body, base + i)
        record._event = event
        records.append(record)
    return records
