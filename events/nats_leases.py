"""Leases as messages that expire: one per name, renewed by compare-and-set.

The server's clock alone ends a lease; a holder learns of a loss at its next renewal. Nothing here
decides what the end of a lease means.
"""

from __future__ import annotations

import asyncio

import msgspec

from events.log import Lease, LogError, OutcomeUnknown, WrongSequence
from events.nats_api import Api, StreamInfo, time_ns
from events.nats_link import Link
from events.nats_log import NatsLog
from events.streams import LEASE_TTL_S, LEASES
from events.subjects import Subjects

_ATTEMPTS = 4
_SAME_LOOK_S = 0.25
_SECOND_NS = 1_000_000_000


class _Held(msgspec.Struct, frozen=True, array_like=True):
    name: str
    holder: str
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Held)


class NatsLeases:
    """See :class:`events.log.Leases`."""

    TTL_S = LEASE_TTL_S

    def __init__(self, link: Link, subjects: Subjects, log: NatsLog) -> None:
        self._api = Api(link)
        self._log = log
        self._subjects = subjects
        self._stream = LEASES.stream(subjects.prefix)
        self._ours: dict[tuple[str, str], int] = {}
        self._renewed: dict[str, tuple[float, _Held]] = {}
        self._look: tuple[float, StreamInfo] | None = None

    async def acquire(self, name: str, holder: str, data: bytes = b"") -> bool:
        subject = self._subjects.lease(name)
        message = _encoder.encode(_Held(name, holder, data))
        after = self._ours.get((name, holder), 0)
        since = _now()
        for _ in range(_ATTEMPTS):
            try:
                self._ours[name, holder] = await self._log.append(subject, message, after=after)
                self._renewed[subject] = since, _Held(name, holder, data)
                return True
            except WrongSequence:
                pass
            except OutcomeUnknown:
                self._ours.pop((name, holder), None)
            current = await self._log.last(subject)
            if current is not None and _decoder.decode(current.data).holder != holder:
                self._ours.pop((name, holder), None)
                return False
            after = current.seq if current is not None else 0
        return False

    async def release(self, name: str, holder: str) -> None:
        self._ours.pop((name, holder), None)
        subject = self._subjects.lease(name)
        self._renewed.pop(subject, None)
        current = await self._log.last(subject)
        if current is not None and _decoder.decode(current.data).holder == holder:
            await self._api.delete_message(self._stream, current.seq)

    async def held(self, prefix: str = "") -> dict[str, Lease]:
        """The set of names is the leader's; a value may be one renewal old."""
        everything = self._subjects.any("lease")
        since = _now()
        info, alive = await self._api.subjects(self._stream, everything)
        self._look = since, info
        if (ours := self._just_renewed(alive)) is not None:
            return {name: lease for name, lease in ours.items() if name.startswith(prefix)}
        now = time_ns(info.ts.encode())
        messages = {m.subject: m for m in await self._log.read(everything)}
        leases: dict[str, Lease] = {}
        for subject in alive:
            message = messages.get(subject) or await self._log.last(subject)
            if message is None:
                continue
            held = _decoder.decode(message.data)
            if held.name.startswith(prefix):
                age_s = max(now - message.time_ns, 0) / _SECOND_NS
                leases[held.name] = Lease(held.holder, held.data, age_s)
        return leases

    def _just_renewed(self, subjects: set[str]) -> dict[str, Lease] | None:
        """These leases when all were renewed here so lately that nobody else can hold one."""
        now = _now()
        found: dict[str, Lease] = {}
        for subject in subjects:
            since, held = self._renewed.get(subject, (0.0, None))
            if held is None or now - since > LEASE_TTL_S / 2:
                return None
            found[held.name] = Lease(held.holder, held.data, now - since)
        return found

    async def settled(self) -> bool:
        """As :meth:`held` found it, when that was just before."""
        look, self._look = self._look, None
        if look is not None and _now() - look[0] < _SAME_LOOK_S:
            info = look[1]
        else:
            info = await self._api.info(self._stream)
        if not info.created or not info.ts:
            raise LogError("the NATS server does not say how old the lease table is")
        age_ns = time_ns(info.ts.encode()) - time_ns(info.created.encode())
        return age_ns > LEASE_TTL_S * _SECOND_NS


def _now() -> float:
    return asyncio.get_running_loop().time()
