"""Leases in memory: a table that a restart of the server empties, timed by the loop's clock."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from events.log import Lease
from events.memory_faults import Calls
from events.streams import LEASE_TTL_S


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class LeaseTable(Struct):
    """name -> (holder, data, time of the last renewal), and when the table was made."""

    since: float
    held: dict[str, tuple[str, bytes, float]] = {}


class MemoryLeases:
    """See :class:`events.log.Leases`."""

    TTL_S = LEASE_TTL_S

    def __init__(self, table: LeaseTable, calls: Calls) -> None:
        self._table = table
        self._calls = calls

    async def acquire(self, name: str, holder: str, data: bytes = b"") -> bool:
        return await self._calls.write("leases.acquire", lambda: self._acquire(name, holder, data))

    def _acquire(self, name: str, holder: str, data: bytes) -> bool:
        held = self._alive().get(name)
        if held is not None and held.holder != holder:
            return False
        self._table.held[name] = (holder, data, loop_time())
        return True

    async def release(self, name: str, holder: str) -> None:
        await self._calls.write("leases.release", lambda: self._release(name, holder))

    def _release(self, name: str, holder: str) -> None:
        if self._table.held.get(name, ("", b"", 0.0))[0] == holder:
            del self._table.held[name]

    async def held(self, prefix: str = "") -> dict[str, Lease]:
        return await self._calls.read(
            "leases.held",
            lambda: {n: lease for n, lease in self._alive().items() if n.startswith(prefix)},
        )

    def _alive(self) -> dict[str, Lease]:
        now = loop_time()
        return {
            name: Lease(holder, data, now - since)
            for name, (holder, data, since) in self._table.held.items()
            if now - since < LEASE_TTL_S
        }

    async def settled(self) -> bool:
        return await self._calls.read(
            "leases.settled", lambda: loop_time() - self._table.since > LEASE_TTL_S
        )
