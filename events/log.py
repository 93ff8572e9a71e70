"""The log as everything else sees it: a few small interfaces, implemented twice.

``events/nats_store.py`` talks to JetStream, ``events/memory_store.py`` keeps lists for
simulation; one test suite (``tests/integration/test_log_suite.py``) holds both to this text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from events.subjects import Subjects


class Message(NamedTuple):
    """One stored message. ``seq`` is its stream sequence, ``time_ns`` the server's clock."""

    subject: str
    seq: int
    time_ns: int
    data: bytes


class LogError(Exception):
    """Base of everything an operation on the log can raise."""


class WrongSequence(LogError):
    """The subject (or scope) did not end at the expected sequence: nothing was stored."""


class OutcomeUnknown(LogError):
    """The server did not answer in time: the message may be stored now, later, or never."""


class LogUnavailable(LogError):
    """Not connected, no leader, or the stream is missing: nothing was sent."""


class LogFull(LogError):
    """The store refuses more (disk full, limit reached): nothing was stored."""


class QueueFull(LogError):
    """The start queue is full: nothing was stored."""


class UserCapReached(LogError):
    """This user has as many starts queued or running as allowed: nothing was stored."""


class Log(Protocol):
    """Subjects of the durable streams. The stream of a subject follows from the subject."""

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        after: int | None = None,
        scope: str | None = None,
        msg_id: str | None = None,
    ) -> int:
        """Store ``data`` and return its stream sequence (flushed to disk per server setting).

        ``after``: the sequence at which ``subject`` must end, 0 for "holds nothing"; with
        ``scope`` (a subject filter such as ``run.ab.t.r_1.>``) the last sequence of the
        filter, which need not match ``subject``, is compared instead. Raises WrongSequence,
        OutcomeUnknown, LogUnavailable, LogFull.
        """
        ...

    async def last(self, subject: str) -> Message | None:
        """The newest message of ``subject`` (wildcards allowed), read from the leader."""
        ...

    async def first(self, subject: str, *, after: int = 0) -> Message | None:
        """The oldest message of ``subject`` (wildcards allowed) with seq > ``after``, read from
        the leader."""
        ...

    async def read(self, subject: str, *, after: int = 0, limit: int = 0) -> list[Message]:
        """Messages of ``subject`` (wildcards allowed) with seq > ``after``, oldest first.

        ``limit`` 0 means all. Direct batch reads; may lag behind the leader on a cluster.
        """
        ...

    def tail(self, stream: str, *, after: int = 0) -> AsyncIterator[list[Message]]:
        """Batches of all messages of ``stream`` with seq > ``after``, then live, for ever.

        Survives reconnects without gap or repetition. Never yields an empty list.
        """
        ...

    async def ends(self, streams: Sequence[str]) -> dict[str, int]:
        """Last sequence of each stream, from the leader; calls in flight are coalesced."""
        ...

    async def purge(self, subject: str) -> None:
        """Remove every message of ``subject`` (used by archive and trims only)."""
        ...


class Delivery(Protocol):
    """One work item in hand. Unacked items come back when their holder falls silent."""

    @property
    def subject(self) -> str:
        """The item's subject (wakes: ``Subjects.parse`` tells the run id)."""
        ...

    @property
    def data(self) -> bytes: ...
    @property
    def seq(self) -> int: ...
    @property
    def deliveries(self) -> int:
        """1 for the first delivery, 2 for a redelivery, …"""
        ...

    def ack(self) -> None: ...
    def nak(self, delay_s: float = 0.0) -> None: ...
    def working(self) -> None:
        """Tell the server that this item is still being worked on (restarts its ack wait)."""
        ...


class WorkSource(Protocol):
    """A worker's standing subscription to a queue."""

    def allow(self, free: int) -> None:
        """Say how many more items may be delivered from now on (call whenever it changes)."""
        ...

    async def get(self) -> Delivery:
        """The next item; waits for ever. Items come in the queue's fair order."""
        ...

    async def close(self) -> None: ...


class QueueStats(NamedTuple):
    total: int
    per_user: dict[tuple[str, str], int]
    """(tenant, user_id) -> items, for items of named users."""


class StartQueue(Protocol):
    """Requests that wait for a slot (kernel.md section 4). Lives in memory on the server."""

    async def post(
        self, tenant: str, user_id: str, run_id: str, data: bytes, *, attempt: int = 0
    ) -> int:
        """Queue a start and return its sequence.

        (``run_id``, ``attempt``) de-duplicates for two minutes, even when the item is gone: a
        start that was lost from the queue is posted again with the next ``attempt``.

        Raises QueueFull, UserCapReached, OutcomeUnknown, LogUnavailable.
        """
        ...

    async def holds(self, seq: int) -> bool:
        """Whether the item is still in the queue (waiting or in somebody's hand)."""
        ...

    async def withdraw(self, seq: int) -> bool:
        """Delete an item by its sequence; proves nothing about an item in flight."""
        ...

    async def limit(self, total: int, per_user: int) -> None:
        """Set the bounds: items in all, and items per named user (0 = no cap)."""
        ...

    async def stats(self) -> QueueStats: ...

    def source(self) -> WorkSource:
        """Items of all 32 lanes, lanes served round robin."""
        ...

    async def clear(self) -> None:
        """Remove all items (chaos and tests)."""
        ...


class WakeQueue(Protocol):
    """ "Advance run R" items (kernel.md section 4). No limits; lives in memory."""

    async def post(self, run_id: str, cause: str, data: bytes = b"") -> None:
        """Queue a wake; (``run_id``, ``cause``) de-duplicates for two minutes."""
        ...

    async def waiting(self) -> set[str]:
        """Run ids that have an item queued or in somebody's hand."""
        ...

    def source(self) -> WorkSource:
        """``Delivery.data`` is what was posted; the subject names the run.

        A process that stands still for ``WAKE_REQUEST_S`` is given nothing more.
        """
        ...

    async def clear(self) -> None: ...


class Lease(NamedTuple):
    holder: str
    data: bytes
    age_s: float


class Leases(Protocol):
    """Names held by processes; a name whose holder falls silent for ``TTL_S`` is free again."""

    async def acquire(self, name: str, holder: str, data: bytes = b"") -> bool:
        """Take or renew ``name``; False when another holder has it. Raises LogUnavailable."""
        ...

    async def release(self, name: str, holder: str) -> None: ...

    async def held(self, prefix: str = "") -> dict[str, Lease]:
        """Live leases by name."""
        ...

    async def settled(self) -> bool:
        """False within one TTL after the table was (re)created: judge nobody dead then."""
        ...


class Blobs(Protocol):
    """Content-addressed payloads (hex SHA-256), immutable."""

    async def put(self, data: bytes) -> str:
        """Store ``data`` once and return its name; a known name costs nothing."""
        ...

    async def get(self, name: str) -> bytes:
        """Raises KeyError when absent, LogError when unreadable or the hash is wrong."""
        ...


class SealError(LogError):
    """A sealed value cannot be opened: wrong master key (its id is named) or damaged."""


class Sealed(NamedTuple):
    """That something is sealed for a run. ``time_ns``: when, by the server's clock."""

    run_id: str
    seq: int
    time_ns: int


class Seals(Protocol):
    """Per-run secrets, AES-GCM sealed, deleted at the run's end (kernel.md section 9)."""

    async def put(self, run_id: str, name: str, plaintext: bytes) -> None: ...
    async def get(self, run_id: str, name: str) -> bytes | None:
        """None when deleted or never sealed; raises SealError."""
        ...

    async def delete(self, run_id: str) -> None: ...
    async def next(self, after: int = 0) -> Sealed | None:
        """The oldest sealed value behind sequence ``after``, whosever it is; not opened."""
        ...


class Timers(Protocol):
    """One-shot deadlines. A due timer is delivered at least once to one worker."""

    async def set(self, kind: str, timer_id: str, at_ns: int, data: bytes) -> None:
        """Set or move the timer (kind, timer_id)."""
        ...

    async def cancel(self, kind: str, timer_id: str) -> None: ...
    async def pending(self) -> Collection[tuple[str, str]]: ...
    def due(self) -> WorkSource: ...
    async def clear(self) -> None: ...


class Live(Protocol):
    """Messages that nobody stores: frames of live runs, and pokes to their owners."""

    def publish(self, run_id: str, data: bytes) -> None: ...
    async def follow(self, run_id: str, receive: Callable[[bytes], None]) -> Callable[[], None]:
        """Call ``receive`` for every live message of the run; returns the unsubscriber."""
        ...

    def poke(self, run_id: str, data: bytes) -> None: ...
    async def pokes(self, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        """Call ``receive(run_id, data)`` for every poke to any run."""
        ...


@dataclass
class EventStore:
    """One process' access to the log and what belongs to it."""

    subjects: Subjects
    log: Log
    starts: StartQueue
    wakes: WakeQueue
    leases: Leases
    blobs: Blobs
    seals: Seals
    timers: Timers
    live: Live
    close: Callable[[], Awaitable[None]]
    connected: Callable[[], bool]
