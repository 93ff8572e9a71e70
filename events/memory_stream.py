"""One stream kept in lists, with JetStream's rules for sequences, limits and duplicates.

The storage of ``events/memory_store.py``: no awaits, no faults. Durations come from the caller's
loop clock and message times from its wall clock, so that a simulation can drive both.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator

from msgspec import Struct

from events.log import Message, QueueFull, UserCapReached, WrongSequence
from events.streams import StreamSpec


class _Stored(Struct):
    message: Message
    born: float


class MemoryStream:
    """Messages of one stream by sequence and by subject."""

    def __init__(
        self, spec: StreamSpec, monotonic: Callable[[], float], now_ns: Callable[[], int]
    ) -> None:
        self.spec = spec
        self.created = monotonic()
        self.last_seq = max(spec.first_seq - 1, 0)
        self.limits = (0, 0)
        self.listeners: list[Callable[[], None]] = []
        """Called after each stored message."""
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._messages: dict[int, _Stored] = {}
        self._seqs: list[int] = []
        self._by_subject: dict[str, list[int]] = {}
        self._msg_ids: dict[str, tuple[int, float]] = {}

    def append(
        self,
        subject: str,
        data: bytes,
        *,
        after: int | None = None,
        scope: str | None = None,
        msg_id: str | None = None,
    ) -> int:
        """Store, or raise WrongSequence, QueueFull, UserCapReached."""
        self._expire()
        if after is not None:
            last = self.last(scope or subject)
            found = last.seq if last is not None else 0
            if found != after:
                raise WrongSequence(f"wrong last sequence: {found}")
        if msg_id is not None and msg_id in self._msg_ids:
            return self._msg_ids[msg_id][0]
        self._check_limits(subject)
        self.last_seq += 1
        message = Message(subject, self.last_seq, self._now_ns(), data)
        self._put(message)
        if self.spec.per_subject:
            for seq in self._by_subject[subject][: -self.spec.per_subject]:
                self.delete(seq)
        if msg_id is not None:
            self._msg_ids[msg_id] = (message.seq, self._monotonic())
        for listener in list(self.listeners):
            listener()
        return message.seq

    def _check_limits(self, subject: str) -> None:
        total, per_subject = self.limits
        if per_subject and len(self._by_subject.get(subject, ())) >= per_subject:
            raise UserCapReached("maximum messages per subject exceeded")
        if total and len(self._messages) >= total:
            raise QueueFull("maximum messages exceeded")

    def _put(self, message: Message) -> None:
        self._messages[message.seq] = _Stored(message, self._monotonic())
        insort(self._seqs, message.seq)
        insort(self._by_subject.setdefault(message.subject, []), message.seq)

    def _expire(self) -> None:
        now = self._monotonic()
        while self._msg_ids:
            msg_id, (_, since) = next(iter(self._msg_ids.items()))
            if now - since < self.spec.duplicate_window_s:
                break
            del self._msg_ids[msg_id]
        if self.spec.max_age_s:
            limit = now - self.spec.max_age_s
            for seq in [s for s, stored in self._messages.items() if stored.born <= limit]:
                self.delete(seq)

    # --- reading --------------------------------------------------------------------------

    def get(self, seq: int) -> Message | None:
        self._expire()
        stored = self._messages.get(seq)
        return stored.message if stored is not None else None

    def last(self, pattern: str) -> Message | None:
        self._expire()
        seqs = [self._by_subject[s][-1] for s in self.matching(pattern)]
        return self._messages[max(seqs)].message if seqs else None

    def read(self, pattern: str, after: int, limit: int = 0) -> list[Message]:
        self._expire()
        found: list[int] = []
        for subject in self.matching(pattern):
            seqs = self._by_subject[subject]
            found += seqs[bisect_right(seqs, after) :]
        found.sort()
        return [self._messages[seq].message for seq in (found[:limit] if limit else found)]

    def after(self, seq: int, limit: int) -> list[Message]:
        """Messages of all subjects behind ``seq``."""
        self._expire()
        start = bisect_right(self._seqs, seq)
        return [self._messages[s].message for s in self._seqs[start : start + limit]]

    def counts(self, pattern: str) -> dict[str, int]:
        self._expire()
        return {subject: len(self._by_subject[subject]) for subject in self.matching(pattern)}

    def matching(self, pattern: str) -> Iterator[str]:
        """Subjects that hold messages and match ``pattern``."""
        if "*" not in pattern and ">" not in pattern:
            if pattern in self._by_subject:
                yield pattern
            return
        tokens = pattern.split(".")
        for subject in self._by_subject:
            if matches(tokens, subject.split(".")):
                yield subject

    def __len__(self) -> int:
        self._expire()
        return len(self._messages)

    # --- removing and damaging ------------------------------------------------------------

    def delete(self, seq: int) -> bool:
        stored = self._messages.pop(seq, None)
        if stored is None:
            return False
        self._seqs.remove(seq)
        seqs = self._by_subject[stored.message.subject]
        seqs.remove(seq)
        if not seqs:
            del self._by_subject[stored.message.subject]
        return True

    def purge(self, pattern: str) -> None:
        for message in self.read(pattern, 0):
            self.delete(message.seq)

    def replace(self, seq: int, data: bytes) -> None:
        """Change stored bytes behind everybody's back; raises KeyError."""
        stored = self._messages[seq]
        stored.message = stored.message._replace(data=data)


def matches(pattern: list[str], subject: list[str]) -> bool:
    """NATS subject matching on tokens: ``*`` is one token, a final ``>`` one or more."""
    if pattern[-1] == ">":
        if len(subject) < len(pattern):
            return False
        pattern, subject = pattern[:-1], subject[: len(pattern) - 1]
    return len(pattern) == len(subject) and all(
        p in ("*", s) for p, s in zip(pattern, subject, strict=True)
    )
