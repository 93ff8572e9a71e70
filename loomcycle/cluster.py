"""Who is alive: this process' lease, and what it knows of the others' (kernel.md section 2)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec import Struct

from events.log import EventStore, LogError
from events.streams import LEASE_TTL_S

log = logging.getLogger("loomcycle.cluster")

PREFIX = "process."
RENEW_S = 1.0

KEEP = 256
"""Processes that are gone and whose replica is still known."""


class Member(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a process says of itself in its lease.

    ``replica`` is the name that its operator gave it (``LOOMCYCLE_REPLICA_ID``), "" for none.
    ``control`` is the last word about pausing that it knows (a stream sequence), ``unparked`` the
    number of runs that it advances, ``forced`` the calls that it gave up for the pause.
    """

    slots: int
    replica: str = ""
    version: str = ""
    host: str = ""
    started_ns: int = 0
    stopping: bool = False
    control: int = 0
    unparked: int = 0
    forced: int = 0


_decode = msgspec.json.Decoder(Member).decode


class Cluster:
    """Keeps the lease ``process.<id>`` and a picture of all others, renewed each second.

    ``changed`` (to be set before :meth:`start`) is called with the members at the start and after
    each change of who is there.
    """

    def __init__(
        self,
        store: EventStore,
        process: str,
        member: Member,
        *,
        alone_at_boot: bool,
    ) -> None:
        self._store = store
        self._process = process
        self._member = member
        self._members: dict[str, Member] = {process: member}
        self.changed: Callable[[dict[str, Member]], None] = lambda _: None
        self.report: Callable[[Member], Member] = lambda member: member
        """Brings what the lease says up to date, at each renewal."""
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.settled = alone_at_boot
        """Whether a process without a lease may be judged dead."""
        self._first = alone_at_boot
        """The table of leases is as young as this process: who was never seen in it is dead."""
        self._first_until = 0.0
        self._seen: set[str] = set()
        self._replicas: OrderedDict[str, str] = OrderedDict()

    async def start(self) -> None:
        """Take the lease and look around once. Raises LogError."""
        self._first_until = _now() + LEASE_TTL_S
        await self._renew(boot=True)
        self._task = asyncio.create_task(self._keep(), name="lease")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._store.leases.release(PREFIX + self._process, self._process)
        except LogError as cause:
            log.warning("lease not released: %s", cause)

    @property
    def members(self) -> dict[str, Member]:
        return self._members

    def replica_of(self, process: str) -> str:
        """The replica that ``process`` is, or was while this one looked; "" if it has no name."""
        return self._replicas.get(process, "")

    def alone(self) -> bool:
        """Whether no other process is known."""
        return len(self._members) <= 1

    def leads(self) -> bool:
        """Whether what one process of all should do is up to this one; for a moment two may
        think so, or none."""
        return min(self._members) == self._process

    def is_alive(self, process: str) -> bool:
        """Whether ``process`` must be treated as alive (unknown ones count until settled)."""
        if process in self._members:
            return True
        return not self.settled or (self._first and process in self._seen)

    async def is_gone(self, process: str) -> bool:
        """Whether ``process`` is dead, after a look of its own: a picture taken a second ago
        knows nothing of who came since. Raises LogError."""
        if self.is_alive(process):
            return False
        await self._look()
        return not self.is_alive(process)

    def announce(self) -> None:
        """There is news for the lease: renew it at once."""
        self._due.set()

    async def look(self) -> dict[str, Member]:
        """What all say of themselves now. Raises LogError."""
        await self._look()
        return self._members

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._renew()
            except LogError as cause:
                self.settled = self._first = False
                log.warning("lease not renewed: %s", cause)

    async def _renew(self, *, boot: bool = False) -> None:
        self._member = self.report(self._member)
        data = msgspec.json.encode(self._member)
        await self._store.leases.acquire(PREFIX + self._process, self._process, data)
        await self._look(boot=boot)

    async def _look(self, *, boot: bool = False) -> None:
        """Take a new picture of who is there."""
        leases = self._store.leases
        held = await leases.held(PREFIX)
        members = {name.removeprefix(PREFIX): _decode(lease.data) for name, lease in held.items()}
        members[self._process] = self._member
        settled = await leases.settled()
        self._seen |= members.keys()
        self._first = self._first and not settled and _now() < self._first_until
        self.settled = settled or self._first
        if members.keys() != self._members.keys() or boot:
            self._members = members
            self._remember(members)
            self.changed(members)
        self._members = members

    def _remember(self, members: dict[str, Member]) -> None:
        for process, member in members.items():
            self._replicas[process] = member.replica
            self._replicas.move_to_end(process)
        while len(self._replicas) > len(members) + KEEP:
            self._replicas.popitem(last=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
