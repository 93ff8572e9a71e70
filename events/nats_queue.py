"""The two work queues on JetStream: starts with bounds and lanes, wakes without.

Both live in memory on the server; the sweeper posts again what a restart lost. Which item comes
next, and how many, is decided in ``events/nats_source.py``.
"""

from __future__ import annotations

from events.log import LogFull, QueueFull, QueueStats, UserCapReached
from events.nats_api import STORE_FAILED, Api, decode_ack, error_of
from events.nats_link import Link
from events.nats_provision import Provision
from events.nats_source import Consumer, NatsSource
from events.streams import STARTS, WAKE_REQUEST_S, WAKES
from events.subjects import LANES, Subjects, encode, lane_of

WAKE_DEPTH = 64
"""Wakes asked for at a time, if the worker has room for so many."""


class NatsStartQueue:
    """See :class:`events.log.StartQueue`."""

    def __init__(self, link: Link, subjects: Subjects, provision: Provision) -> None:
        self._link = link
        self._api = Api(link)
        self._subjects = subjects
        self._provision = provision
        self._stream = STARTS.stream(subjects.prefix)

    async def post(
        self, tenant: str, user_id: str, run_id: str, data: bytes, *, attempt: int = 0
    ) -> int:
        lane = lane_of(tenant, user_id, run_id)
        subject = self._subjects.start(lane, tenant, user_id, run_id)
        headers = b"Nats-Msg-Id: %s.%d\r\n" % (encode(run_id).encode(), attempt)
        answer, status = await self._link.request_now(subject.encode(), data, headers)
        ack = decode_ack(answer, status)
        if ack.error is None:
            return ack.seq
        if ack.error.err_code == STORE_FAILED:
            text = ack.error.description
            if "per subject" in text:
                raise UserCapReached(text)
            if "maximum messages" in text:
                raise QueueFull(text)
            raise LogFull(text)
        raise error_of(ack.error)

    async def holds(self, seq: int) -> bool:
        return await self._api.message(self._stream, {"seq": seq}) is not None

    async def withdraw(self, seq: int) -> bool:
        return await self._api.delete_message(self._stream, seq)

    async def limit(self, total: int, per_user: int) -> None:
        await self._provision.limit_starts(total, per_user)

    async def stats(self) -> QueueStats:
        named = f"{self._subjects.prefix}.start.*.*.*"
        info, counts = await self._api.counts(self._stream, named)
        per_user: dict[tuple[str, str], int] = {}
        for subject, count in counts.items():
            parsed = self._subjects.parse(subject)
            per_user[parsed.tenant, parsed.user_id] = count
        return QueueStats(info.state.messages, per_user)

    def source(self) -> NatsSource:
        consumers = [Consumer(f"lane-{i:02}", self._subjects.lane(i)) for i in range(LANES)]
        return NatsSource(self._link, self._provision, self._stream, consumers)

    async def clear(self) -> None:
        await self._api.purge(self._stream, self._subjects.any("start"))


class NatsWakeQueue:
    """See :class:`events.log.WakeQueue`."""

    def __init__(self, link: Link, subjects: Subjects, provision: Provision) -> None:
        self._link = link
        self._api = Api(link)
        self._subjects = subjects
        self._provision = provision
        self._stream = WAKES.stream(subjects.prefix)

    async def post(self, run_id: str, cause: str, data: bytes = b"") -> None:
        headers = f"Nats-Msg-Id: {encode(run_id)}.{encode(cause)}\r\n".encode()
        subject = self._subjects.wake(run_id).encode()
        answer, status = await self._link.request_now(subject, data, headers)
        ack = decode_ack(answer, status)
        if ack.error is not None:
            raise error_of(ack.error)

    async def waiting(self) -> set[str]:
        _, found = await self._api.subjects(self._stream, self._subjects.any("wake"))
        return {self._subjects.parse(subject).run_id for subject in found}

    def source(self) -> NatsSource:
        consumer = Consumer("workers", self._subjects.any("wake"))
        return NatsSource(
            self._link,
            self._provision,
            self._stream,
            [consumer],
            depth=WAKE_DEPTH,
            request_s=WAKE_REQUEST_S,
        )

    async def clear(self) -> None:
        await self._api.purge(self._stream, self._subjects.any("wake"))
