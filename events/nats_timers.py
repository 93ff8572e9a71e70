"""One-shot timers as JetStream schedules (NATS ADR-51): the server keeps them and fires them.

A schedule stands on ``timer.<kind>.<id>`` and, when due, is moved by the server to
``due.<kind>.<id>``, a work queue. Times in the past fire at once (within about 0.3 s).
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from events.nats_api import Api, decode_ack, error_of
from events.nats_link import Link
from events.nats_provision import Provision
from events.nats_source import Consumer, NatsSource
from events.streams import TIMERS
from events.subjects import Subjects

DUE_DEPTH = 64

TimerIds = set[tuple[str, str]]


class NatsTimers:
    """See :class:`events.log.Timers`."""

    def __init__(self, link: Link, subjects: Subjects, provision: Provision) -> None:
        self._link = link
        self._api = Api(link)
        self._subjects = subjects
        self._provision = provision
        self._stream = TIMERS.stream(subjects.prefix)

    async def set(self, kind: str, timer_id: str, at_ns: int, data: bytes) -> None:
        headers = (
            f"Nats-Schedule: @at {_rfc3339(at_ns)}\r\n"
            f"Nats-Schedule-Target: {self._subjects.due(kind, timer_id)}\r\n"
        ).encode()
        subject = self._subjects.timer(kind, timer_id).encode()
        answer, status = await self._link.request_now(subject, data, headers)
        ack = decode_ack(answer, status)
        if ack.error is not None:
            raise error_of(ack.error)

    async def cancel(self, kind: str, timer_id: str) -> None:
        await asyncio.gather(
            self._api.purge(self._stream, self._subjects.timer(kind, timer_id)),
            self._api.purge(self._stream, self._subjects.due(kind, timer_id)),
        )

    async def pending(self) -> TimerIds:
        _, found = await self._api.subjects(self._stream, self._subjects.any("timer"))
        parsed = map(self._subjects.parse, found)
        return {(timer.key, timer.name) for timer in parsed}

    def due(self) -> NatsSource:
        consumer = Consumer("due", self._subjects.any("due"))
        return NatsSource(self._link, self._provision, self._stream, [consumer], depth=DUE_DEPTH)

    async def clear(self) -> None:
        await asyncio.gather(
            self._api.purge(self._stream, self._subjects.any("timer")),
            self._api.purge(self._stream, self._subjects.any("due")),
        )


def _rfc3339(at_ns: int) -> str:
    seconds, fraction = divmod(at_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{fraction:09d}Z"
