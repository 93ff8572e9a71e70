"""A worker: takes starts and wakes while it has a free slot, and has one run advanced in each.

It owns a run from its claim (or first commit) to the run's end, as long as nobody else commits.
Which runs need a worker is found out elsewhere (``loomcycle/sweeper.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from events.log import Delivery, LogError
from loomcycle.activation import Activation
from loomcycle.admission import Admission
from loomcycle.adoption import Adoption
from loomcycle.background import Background
from loomcycle.cluster import Cluster
from loomcycle.credit import CreditedSource
from loomcycle.deliveries import BUSY_ELSEWHERE_S, Claim, handled
from loomcycle.held import HeldRuns
from loomcycle.journal import Fenced
from loomcycle.ownership import Ownership
from loomcycle.services import Services
from loomcycle.starts import Start, StartItem, unpack
from loomcycle.wakes import Wake, read_wake

CLAIMED_BESIDE_OTHERS = 24
"""With so many runs a process that is not alone leaves further starts to the queue."""

LEAVE_GRACE_S = 5.0
"""How long a stopping worker lets effects reach a commit by themselves."""

INTERRUPTED_GRACE_S = 1.0
"""How long effects that were then interrupted may take to clean up."""

D = TypeVar("D", bound=Delivery)


class Worker:
    """Runs up to ``slots`` activations. ``process`` in ``services`` is its lease's name."""

    def __init__(
        self,
        services: Services,
        cluster: Cluster,
        admission: Admission,
        *,
        slots: int,
        seen_elsewhere: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._services = services
        self._cluster = cluster
        self._ownership = Ownership(services, cluster, admission)
        self._slots = slots
        self._seen_elsewhere = seen_elsewhere
        self._busy = 0
        self._tasks = Background()
        self.held = HeldRuns(services, self._ownership, self._tasks)
        self._adoption = Adoption(services, self._ownership, self.held, self._tasks, slots=slots)
        self._loops: list[asyncio.Task[None]] = []
        self._starts: CreditedSource | None = None
        self._wakes: CreditedSource | None = None
        self._free = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._stopping = False
        services.births = self._adoption

    @property
    def active(self) -> int:
        """Runs being advanced here now."""
        return self._busy + self._adoption.active

    @property
    def unparked(self) -> int:
        """Runs that this process advances, or is about to."""
        return len(self.held)

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return max(0, self._slots - self._busy)

    def owns(self, run_id: str) -> bool:
        return run_id in self.held

    async def start(self) -> None:
        """Begin to take work."""
        store = self._services.store
        self._unsubscribe = await store.live.pokes(self._poked)
        self._starts = CreditedSource(store.starts.source())
        self._wakes = CreditedSource(store.wakes.source())
        self._allow()
        self._loops = [
            asyncio.create_task(self._serve(self._wakes, self._wake), name="wakes"),
            asyncio.create_task(self._serve(self._starts, self._start), name="starts"),
            asyncio.create_task(self.held.look_after(), name="look-after"),
        ]

    async def stop(self) -> None:
        """Take nothing more, hand running runs over, and return within seconds."""
        self._stopping = True
        self._adoption.stop()
        for source in (self._starts, self._wakes):
            if source is not None:
                await source.close()
        for task in self._loops:
            task.cancel()
        self.held.leave()
        await self._tasks.ended(within_s=LEAVE_GRACE_S)
        self.held.interrupt()
        await self._tasks.ended(within_s=INTERRUPTED_GRACE_S)
        await self._tasks.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()

    def pause(self, *, force: bool) -> int:
        """The runtime pauses: take no starts, let runs park. ``force``: their calls have had their
        time; how many were given up that are not made again."""
        self._allow()
        return self.held.pause(force=force)

    def resume(self) -> None:
        """The runtime goes on."""
        self._allow()

    # -- taking work

    async def _serve(
        self, source: CreditedSource, handle: Callable[[Delivery], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            delivery = await source.get()
            while self._busy >= self._slots:
                self._free.clear()
                await self._free.wait()
            self._take(handle, delivery)
            self._allow()

    def _take(self, handle: Callable[[D], Coroutine[Any, Any, None]], delivery: D) -> None:
        self._busy += 1
        self._tasks.add(self._in_slot(handle, delivery))

    async def _in_slot(self, handle: Callable[[D], Coroutine[Any, Any, None]], delivery: D) -> None:
        try:
            await handled(handle, delivery)
        finally:
            self._busy -= 1
            self._free.set()
            self._allow()

    @contextmanager
    def _slot_free(self) -> Iterator[None]:
        """What only waits holds no slot; coming back it takes one, if need be above the number."""
        self._busy -= 1
        self._free.set()
        self._allow()
        try:
            yield
        finally:
            self._busy += 1

    def _allow(self) -> None:
        free = 0 if self._stopping else self.free
        if self._wakes is not None:
            self._wakes.allow(free)
        if self._starts is not None:
            self._starts.allow(0 if self._services.paused() else free)

    def claim(self, start: Start, failed: Callable[[LogError], None]) -> Claim | None:
        """Begin ``start`` here and now, without the queue; None when this process is busy.

        Only while a good part of the slots is free: then nobody's start waits in the queue that
        could be overtaken; beside other processes only a few, for the queue shares the work and
        a client's connection does not. ``failed`` is told when no first commit could be made; the
        start is then no run yet, and may be queued (kernel.md section 4).
        """
        most = self._slots * 3 / 4
        if not self._cluster.alone():
            most = min(most, CLAIMED_BESIDE_OTHERS)
        busy = self._busy >= most or self._services.paused()
        if self._stopping or self._starts is None or busy:
            self._allow()
            return None
        claim = Claim(start, failed)
        self._take(self._begin_claimed, claim)
        return claim

    async def _begin_claimed(self, claim: Claim) -> None:
        await self._begin(claim.start, claim)

    async def _start(self, delivery: Delivery) -> None:
        if self._services.paused():
            delivery.nak(1.0)
            return
        try:
            start = await unpack(delivery.data, self._services.store.seals)
        except KeyError:
            delivery.ack()  # its seal went with the run's end
            return
        await self._begin(start, delivery)

    async def _begin(self, start: Start, delivery: Delivery) -> None:
        services, item = self._services, start.item

        def in_vain() -> bool:
            dropped = isinstance(delivery, Claim) and delivery.dropped
            return dropped or services.now_ns() > item.not_after_ns

        if item.run in self.held:
            delivery.nak(BUSY_ELSEWHERE_S)
            return
        try:
            with self.held.coming(item.run):
                if delivery.deliveries > 1 and await self._redelivered(item, delivery):
                    return
                if in_vain():
                    delivery.ack()
                    return
                journal = await self._ownership.begin(start, in_vain)
        except Fenced:
            await self._resume(item.tenant, item.run, delivery)
            return
        if journal is None:
            delivery.ack()
            return
        await self.held.drive(Activation(services, journal, slot_free=self._slot_free), delivery)

    async def _redelivered(self, item: StartItem, delivery: Delivery) -> bool:
        """Whether the item was dealt with because of what its first holder did."""
        store = self._services.store
        if await store.log.last(store.subjects.journal(item.tenant, item.run)) is not None:
            await self._resume(item.tenant, item.run, delivery)
            return True
        if item.reader == "cancel" and await self._cluster.is_gone(item.gateway):
            delivery.ack()
            return True
        return False

    async def _wake(self, delivery: Delivery) -> None:
        run_id = self._services.store.subjects.parse(delivery.subject).run_id
        wake = read_wake(delivery.data)
        if wake.check and self.held.is_held(run_id):
            delivery.nak(1.0)  # it looks at its children when it is taken up again
        elif await self.held.look_into_inbox(run_id):
            delivery.ack()
        elif run_id in self.held:
            delivery.nak(0.5)
        else:
            await self._resume(wake.tenant, run_id, delivery, wake)

    async def _resume(
        self, tenant: str, run_id: str, delivery: Delivery, wake: Wake | None = None
    ) -> None:
        """Continue a run from its journal, unless it ended or its owner lives and holds it."""
        try:
            with self.held.coming(run_id):
                owned = await self._ownership.take_over(tenant, run_id, wake)
        except Fenced:
            owned = None
        if owned is None:
            delivery.ack()
            return
        activation = Activation(
            self._services,
            owned.journal,
            resumed_n=owned.resumed_n,
            unparked=owned.unparked,
            timed=owned.timed,
            slot_free=self._slot_free,
        )
        await self.held.drive(activation, delivery)

    def _poked(self, run_id: str, data: bytes) -> None:
        if data == b"watch":
            self._services.live.watched(run_id)
            self._seen_elsewhere(run_id)
        elif data == b"inbox":
            self.held.poked(run_id)
