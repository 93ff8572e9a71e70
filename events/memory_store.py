"""The log's twin in memory, for simulation: several clients of one server, and faults on demand.

Holds to the same text as the JetStream store (``tests/integration/test_log_suite.py`` runs over
both). Durations follow the running loop's clock, message times the injected wall clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from events.blobs import ChunkedBlobs
from events.log import (
    EventStore,
    Message,
    QueueStats,
)
from events.memory_faults import Calls, Fault, Faults, no_faults
from events.memory_leases import LeaseTable, MemoryLeases, loop_time
from events.memory_queue import MemoryQueue
from events.memory_source import ClientState, MemorySource
from events.memory_stream import MemoryStream
from events.memory_timers import MemoryTimers, TimerTable
from events.seals import LogSeals, Sealer
from events.streams import (
    ACK_WAIT_S,
    BY_NAME,
    STARTS,
    STREAMS,
    TIMERS,
    WAKE_REQUEST_S,
    WAKES,
    stream_of,
)
from events.subjects import LANES, Subjects, encode, lane_of

__all__ = ["Fault", "MemoryServer"]

_TAIL_BATCH = 1000


class MemoryServer:
    """One log; :meth:`connect` gives each client its own :class:`events.log.EventStore`."""

    def __init__(
        self,
        faults: Faults = no_faults,
        *,
        prefix: str = "loom",
        now_ns: Callable[[], int] = time.time_ns,
        ack_wait_s: float = ACK_WAIT_S,
    ) -> None:
        """Make it inside a running loop; ``prefix`` and ``ack_wait_s`` as for JetStream."""
        self.subjects = Subjects(prefix)
        self.now_ns = now_ns
        self._faults = faults
        self._streams = {spec.name: MemoryStream(spec, loop_time, now_ns) for spec in STREAMS}
        self._clients: dict[str, ClientState] = {}
        self._limits = (0, 0)
        subjects = self.subjects
        lanes = [subjects.lane(lane) for lane in range(LANES)]
        self.starts = MemoryQueue(self._streams[STARTS.name], lanes, ack_wait_s)
        self.wakes = MemoryQueue(
            self._streams[WAKES.name],
            [subjects.any("wake")],
            ack_wait_s,
            request_s=WAKE_REQUEST_S,
        )
        self.due = MemoryQueue(self._streams[TIMERS.name], [subjects.any("due")], ack_wait_s)
        self.leases = LeaseTable(loop_time())
        self.timers = TimerTable(subjects, self.due, now_ns)
        self.followers: list[tuple[ClientState, str, Callable[[str, bytes], None]]] = []

    def connect(self, name: str, master_key: bytes = b"\0" * 32) -> EventStore:
        """A client of its own; ``name`` is what faults and :meth:`disconnect` know it by."""
        client = ClientState(name)
        self._clients[name] = client
        calls = Calls(self._faults, client)
        log = MemoryLog(self, client, calls)

        async def close() -> None:
            self.disconnect(name)

        return EventStore(
            subjects=self.subjects,
            log=log,
            starts=MemoryStartQueue(self, client, calls),
            wakes=MemoryWakeQueue(self, client, calls),
            leases=MemoryLeases(self.leases, calls),
            blobs=ChunkedBlobs(log, self.subjects),
            seals=LogSeals(log, self.subjects, Sealer(master_key)),
            timers=MemoryTimers(self.timers, client, calls),
            live=MemoryLive(self, client),
            close=close,
            connected=lambda: client.reachable,
        )

    def stream(self, name: str) -> MemoryStream:
        """The storage of a stream, by its name without prefix."""
        return self._streams[name]

    def stream_of(self, subject: str) -> MemoryStream:
        return self._streams[stream_of(self.subjects, subject).name]

    # --- what a simulation does to clients and server -------------------------------------

    def disconnect(self, name: str) -> None:
        """The client crashed: it gets nothing more, and items in its hand wait out their time."""
        self._clients[name].gone = True
        self._clients[name].reachable = False
        self._stir()

    def cut_off(self, name: str) -> None:
        """The client cannot reach the server until :meth:`restore`."""
        self._clients[name].reachable = False

    def restore(self, name: str) -> None:
        client = self._clients[name]
        client.reachable = not client.gone
        self._stir()

    def _stir(self) -> None:
        """Let everybody who waits for the server look again."""
        for stream in self._streams.values():
            for listener in list(stream.listeners):
                listener()

    def restart(self) -> None:
        """The server ends and starts again: whatever it kept in memory only is gone."""
        self.timers.forget_all()
        self.leases.held.clear()
        self.leases.since = loop_time()
        for queue, spec in ((self.starts, STARTS), (self.wakes, WAKES), (self.due, TIMERS)):
            stream = MemoryStream(spec, loop_time, self.now_ns)
            self._streams[spec.name] = stream
            queue.adopt(stream)
        self._streams[STARTS.name].limits = self._limits

    def limit_starts(self, total: int, per_user: int) -> None:
        self._limits = (total, per_user)
        self._streams[STARTS.name].limits = self._limits

    def corrupt(self, stream: str, seq: int, data: bytes) -> None:
        """A disk fault changed a stored message."""
        self._streams[stream].replace(seq, data)

    def drop(self, stream: str, seq: int) -> None:
        """A disk fault lost a stored message."""
        self._streams[stream].delete(seq)

    def swap(self, stream: str, first: int, second: int) -> None:
        """A disk fault exchanged the bytes of two stored messages; raises KeyError."""
        one, other = self._streams[stream].get(first), self._streams[stream].get(second)
        if one is None or other is None:
            raise KeyError((first, second))
        self.corrupt(stream, first, other.data)
        self.corrupt(stream, second, one.data)


class MemoryLog:
    """See :class:`events.log.Log`."""

    def __init__(self, server: MemoryServer, client: ClientState, calls: Calls) -> None:
        self._server = server
        self._client = client
        self._calls = calls

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        after: int | None = None,
        scope: str | None = None,
        msg_id: str | None = None,
    ) -> int:
        stream = self._server.stream_of(subject)
        return await self._calls.write(
            "log.append",
            lambda: stream.append(subject, data, after=after, scope=scope, msg_id=msg_id),
        )

    async def last(self, subject: str) -> Message | None:
        stream = self._server.stream_of(subject)
        return await self._calls.read("log.last", lambda: stream.last(subject))

    async def first(self, subject: str, *, after: int = 0) -> Message | None:
        stream = self._server.stream_of(subject)
        found = await self._calls.read("log.first", lambda: stream.read(subject, after, 1))
        return found[0] if found else None

    async def read(self, subject: str, *, after: int = 0, limit: int = 0) -> list[Message]:
        stream = self._server.stream_of(subject)
        return await self._calls.read("log.read", lambda: stream.read(subject, after, limit))

    async def tail(self, stream: str, *, after: int = 0) -> AsyncIterator[list[Message]]:
        spec = BY_NAME[stream]
        changed = asyncio.Event()
        source = self._server.stream(spec.name)
        source.listeners.append(changed.set)
        try:
            while not self._client.gone:
                changed.clear()
                messages = source.after(after, _TAIL_BATCH) if self._client.reachable else []
                if messages:
                    after = messages[-1].seq
                    yield messages
                    continue
                await changed.wait()
        finally:
            source.listeners.remove(changed.set)

    async def ends(self, streams: Sequence[str]) -> dict[str, int]:
        return await self._calls.read(
            "log.ends", lambda: {name: self._server.stream(name).last_seq for name in streams}
        )

    async def purge(self, subject: str) -> None:
        stream = self._server.stream_of(subject)
        await self._calls.write("log.purge", lambda: stream.purge(subject))


class MemoryStartQueue:
    """See :class:`events.log.StartQueue`."""

    def __init__(self, server: MemoryServer, client: ClientState, calls: Calls) -> None:
        self._server = server
        self._client = client
        self._calls = calls

    @property
    def _stream(self) -> MemoryStream:
        return self._server.starts.stream

    async def post(
        self, tenant: str, user_id: str, run_id: str, data: bytes, *, attempt: int = 0
    ) -> int:
        lane = lane_of(tenant, user_id, run_id)
        subject = self._server.subjects.start(lane, tenant, user_id, run_id)
        return await self._calls.write(
            "starts.post",
            lambda: self._stream.append(subject, data, msg_id=f"{run_id}.{attempt}"),
        )

    async def holds(self, seq: int) -> bool:
        return await self._calls.read("starts.holds", lambda: self._stream.get(seq) is not None)

    async def withdraw(self, seq: int) -> bool:
        return await self._calls.write("starts.withdraw", lambda: self._stream.delete(seq))

    async def limit(self, total: int, per_user: int) -> None:
        await self._calls.write("starts.limit", lambda: self._server.limit_starts(total, per_user))

    async def stats(self) -> QueueStats:
        return await self._calls.read("starts.stats", self._stats)

    def _stats(self) -> QueueStats:
        subjects = self._server.subjects
        per_user: dict[tuple[str, str], int] = {}
        for subject, count in self._stream.counts(f"{subjects.prefix}.start.*.*.*").items():
            parsed = subjects.parse(subject)
            per_user[parsed.tenant, parsed.user_id] = count
        return QueueStats(len(self._stream), per_user)

    def source(self) -> MemorySource:
        return MemorySource(self._server.starts, self._client)

    async def clear(self) -> None:
        subjects = self._server.subjects
        await self._calls.write("starts.clear", lambda: self._stream.purge(subjects.any("start")))


class MemoryWakeQueue:
    """See :class:`events.log.WakeQueue`."""

    def __init__(self, server: MemoryServer, client: ClientState, calls: Calls) -> None:
        self._server = server
        self._client = client
        self._calls = calls

    @property
    def _stream(self) -> MemoryStream:
        return self._server.wakes.stream

    async def post(self, run_id: str, cause: str, data: bytes = b"") -> None:
        subject = self._server.subjects.wake(run_id)
        msg_id = f"{encode(run_id)}.{encode(cause)}"
        await self._calls.write(
            "wakes.post", lambda: self._stream.append(subject, data, msg_id=msg_id)
        )

    async def waiting(self) -> set[str]:
        subjects = self._server.subjects
        return await self._calls.read(
            "wakes.waiting",
            lambda: {subjects.parse(s).run_id for s in self._stream.counts(subjects.any("wake"))},
        )

    def source(self) -> MemorySource:
        return MemorySource(self._server.wakes, self._client)

    async def clear(self) -> None:
        subjects = self._server.subjects
        await self._calls.write("wakes.clear", lambda: self._stream.purge(subjects.any("wake")))


class MemoryLive:
    """See :class:`events.log.Live`."""

    def __init__(self, server: MemoryServer, client: ClientState) -> None:
        self._server = server
        self._client = client

    def publish(self, run_id: str, data: bytes) -> None:
        self._send(self._server.subjects.live(run_id), run_id, data)

    def poke(self, run_id: str, data: bytes) -> None:
        self._send(self._server.subjects.any("sig"), run_id, data)

    async def follow(self, run_id: str, receive: Callable[[bytes], None]) -> Callable[[], None]:
        return self._listen(self._server.subjects.live(run_id), lambda _, data: receive(data))

    async def pokes(self, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        return self._listen(self._server.subjects.any("sig"), receive)

    def _listen(self, subject: str, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        entry = (self._client, subject, receive)
        self._server.followers.append(entry)

        def stop() -> None:
            if entry in self._server.followers:
                self._server.followers.remove(entry)

        return stop

    def _send(self, subject: str, run_id: str, data: bytes) -> None:
        if not self._client.reachable:
            return
        loop = asyncio.get_running_loop()
        for client, followed, receive in list(self._server.followers):
            if followed == subject and client.reachable:
                loop.call_soon(receive, run_id, data)
