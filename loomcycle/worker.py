"""A worker: takes starts and wakes while it has a free slot, and advances one run in each.

It owns a run from its claim (or first commit) to the run's end, as long as nobody else commits.
Which runs need a worker is found out elsewhere (``loomcycle/sweeper.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from events.commit import FutureEvent, JournalError
from events.inbox import CancelMessage
from events.inbox import decode as decode_inbox
from events.log import Delivery, LogError
from events.vocabulary import Event, RunStarted
from loomcycle.activation import Activation, Handover
from loomcycle.admission import Admission
from loomcycle.claims import Adopted, Claim
from loomcycle.cluster import Cluster
from loomcycle.credit import CreditedSource
from loomcycle.journal import Fenced
from loomcycle.ownership import Ownership
from loomcycle.services import Services
from loomcycle.starts import Start, StartItem, unpack
from loomcycle.wakes import Wake, read_wake, wake_data
from replay.state import Phase

log = logging.getLogger("loomcycle.worker")

WORKING_EVERY_S = 4.0
"""How often held queue items are reported as worked on (their ack wait is 10 s)."""

INBOX_CHECK_S = 2.0
"""How often the inbox of a run in a long effect is looked at, should a poke be lost."""

LEAVE_GRACE_S = 5.0
"""How long a stopping worker lets effects reach a commit by themselves."""

BUSY_ELSEWHERE_S = 5.0

CHILDREN_HERE = 64
CHILDREN_PER_SLOT = 8
"""Children take no slot; beyond so many in a process, whoever has a slot is asked to help."""


@dataclass
class _Held:
    activation: Activation
    delivery: Delivery
    since: float


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
        self._children = 0
        self._held: dict[str, _Held] = {}
        self._waiting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._starts: CreditedSource | None = None
        self._wakes: CreditedSource | None = None
        self._free = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._stopping = False
        services.births = self

    @property
    def active(self) -> int:
        """Runs being advanced here now."""
        return self._busy + self._children

    @property
    def unparked(self) -> int:
        """Runs that this process advances, or is about to."""
        return len(self._held.keys() | self._waiting)

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return max(0, self._slots - self._busy)

    def owns(self, run_id: str) -> bool:
        return run_id in self._held or run_id in self._waiting

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
            asyncio.create_task(self._look_after(), name="look-after"),
        ]

    async def stop(self) -> None:
        """Take nothing more, hand running runs over, and return within seconds."""
        self._stopping = True
        for source in (self._starts, self._wakes):
            if source is not None:
                await source.close()
        for task in self._loops:
            task.cancel()
        for held in self._held.values():
            held.activation.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_GRACE_S)
        for held in list(self._held.values()):
            held.activation.interrupt()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()

    def pause(self, *, force: bool) -> int:
        """The runtime pauses: take no starts, let runs park. ``force``: their calls have had their
        time; how many were given up that are not made again."""
        self._allow()
        return sum(held.activation.pause(force=force) for held in list(self._held.values()))

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
        self._track(self._in_slot(handle, delivery))

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_slot(self, handle: Callable[[D], Coroutine[Any, Any, None]], delivery: D) -> None:
        try:
            await self._guarded(handle, delivery)
        finally:
            self._busy -= 1
            self._free.set()
            self._allow()

    async def _guarded(self, handle: Callable[[D], Coroutine[Any, Any, None]], delivery: D) -> None:
        try:
            await handle(delivery)
        except (LogError, KeyError) as cause:
            log.warning("item %s put back: %s", delivery.subject, cause)
            if isinstance(delivery, Claim) and isinstance(cause, LogError):
                delivery.failed(cause)
            delivery.nak(1.0)
        except FutureEvent as cause:
            log.warning("left to newer replicas: %s", cause)
            delivery.nak(BUSY_ELSEWHERE_S)
        except JournalError as cause:
            log.error("not continued: %s", cause)
            delivery.ack()
        except Exception:
            log.exception("item %s failed", delivery.subject)
            delivery.nak(1.0)

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

    def claim(self, start: Start, failed: Callable[[LogError], None]) -> bool:
        """Begin ``start`` here and now, without the queue; False when this process is busy.

        Only while a good part of the slots is free: then nobody's start waits in the queue that
        could be overtaken. ``failed`` is told when no first commit could be made; the start is
        then no run yet, and may be queued (kernel.md section 4).
        """
        busy = self._busy * 4 >= self._slots * 3 or self._services.paused()
        if self._stopping or self._starts is None or busy:
            self._allow()
            return False
        self._take(self._begin_claimed, Claim(start, failed))
        return True

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
        if item.run in self._waiting or item.run in self._held:
            delivery.nak(BUSY_ELSEWHERE_S)
            return
        self._waiting.add(item.run)
        try:
            if delivery.deliveries > 1 and await self._redelivered(item, delivery):
                return
            if services.now_ns() > item.not_after_ns:
                delivery.ack()
                return
            journal = await self._ownership.begin(start)
            if journal is None:
                delivery.ack()
                return
        except Fenced:
            await self._resume(item.tenant, item.run, delivery)
            return
        finally:
            self._waiting.discard(item.run)
        await self._drive(Activation(services, journal, slot_free=self._slot_free), delivery)

    # -- children (loomcycle/children.py)

    async def begin_child(self, opening: list[Event], credentials: Mapping[str, str]) -> None:
        """Make a child's first commit, unless it has one, and have it advanced: here if there is
        room, else by whoever has a slot. Not torn when the caller is cancelled. Raises LogError.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._track(self._bring_up(opening, credentials, begun))
        await asyncio.shield(begun)

    def nudge(self, run_id: str) -> bool:
        """Tell a run that is advanced here that its inbox moved; False when it is not."""
        held = self._held.get(run_id)
        if held is None:
            return False
        held.activation.inbox_moved()
        return True

    async def _bring_up(
        self, opening: list[Event], credentials: Mapping[str, str], begun: asyncio.Future[None]
    ) -> None:
        facts = opening[0]
        assert isinstance(facts, RunStarted)
        if self.owns(facts.run):
            begun.set_result(None)
            return
        room = max(CHILDREN_HERE, self._slots * CHILDREN_PER_SLOT)
        here = not self._stopping and self._children < room
        self._waiting.add(facts.run)
        self._children += here
        try:
            journal = await self._ownership.begin_child(opening, credentials)
            if journal is not None and not here:
                self._services.live.closed(facts.run)
                wake = wake_data(facts.tenant, self._services.process)
                await self._services.store.wakes.post(facts.run, "begun", wake)
            begun.set_result(None)
            if journal is not None and here:
                self._waiting.discard(facts.run)
                child = Activation(self._services, journal)
                drive = partial(self._drive, child)
                await self._guarded(drive, Adopted(facts.run))
        except BaseException as cause:
            if not begun.done():
                begun.set_exception(cause) if isinstance(cause, Exception) else begun.cancel()
            if not isinstance(cause, Exception):
                raise
        finally:
            self._waiting.discard(facts.run)
            self._children -= here

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
        held = self._held.get(run_id)
        if held is not None and wake.check:
            delivery.nak(1.0)  # it looks at its children when it is taken up again
            return
        if held is not None:
            await self._check_inbox(held)
            if self._held.get(run_id) is held:
                delivery.ack()
                return
        if run_id in self._waiting:
            delivery.nak(0.5)
            return
        await self._resume(wake.tenant, run_id, delivery, wake)

    async def _resume(
        self, tenant: str, run_id: str, delivery: Delivery, wake: Wake | None = None
    ) -> None:
        """Continue a run from its journal, unless it ended or its owner lives and holds it."""
        self._waiting.add(run_id)
        try:
            owned = await self._ownership.take_over(tenant, run_id, wake)
        except Fenced:
            owned = None
        finally:
            self._waiting.discard(run_id)
        if owned is None:
            delivery.ack()
            return
        activation = Activation(
            self._services,
            owned.journal,
            resumed_n=owned.resumed_n,
            unparked=owned.unparked,
            slot_free=self._slot_free,
        )
        await self._drive(activation, delivery)

    # -- advancing

    async def _drive(self, activation: Activation, delivery: Delivery) -> None:
        run_id = activation.journal.state.run
        loop = asyncio.get_running_loop()
        self._held[run_id] = _Held(activation, delivery, loop.time())
        if self._stopping:
            activation.leave()
        handed_over = False
        try:
            await activation.drive()
        except Fenced as cause:
            log.warning("%s continues elsewhere: %s", run_id, cause)
        except Handover:
            handed_over = True
            await self._hand_over(activation)
        finally:
            activation.close()
            del self._held[run_id]
            self._services.live.closed(run_id)
        state = activation.journal.state
        if state.phase is Phase.FINISHED:
            await self._ownership.forget(state, run_id)
        elif activation.missed and not handed_over:
            wake = wake_data(activation.journal.tenant)
            await self._services.store.wakes.post(run_id, f"missed:{state.commits}", wake)
        delivery.ack()

    async def _hand_over(self, activation: Activation) -> None:
        journal = activation.journal
        await self._services.store.wakes.post(
            journal.state.run,
            f"handover:{journal.state.commits}",
            wake_data(journal.tenant, self._services.process),
        )

    # -- looking after what is held

    def _poked(self, run_id: str, data: bytes) -> None:
        if data == b"watch":
            self._services.live.watched(run_id)
            self._seen_elsewhere(run_id)
        elif data == b"inbox":
            held = self._held.get(run_id)
            if held is not None:
                self._track(self._check_inbox(held))

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        reported = loop.time()
        while True:
            await asyncio.sleep(INBOX_CHECK_S)
            now = loop.time()
            if now - reported >= WORKING_EVERY_S:
                reported = now
                for held in self._held.values():
                    held.delivery.working()
            for held in list(self._held.values()):
                if now - held.since >= INBOX_CHECK_S:
                    await self._check_inbox(held)

    async def _check_inbox(self, held: _Held) -> None:
        """Tell the run of what is in its inbox; interrupt its effect if that cannot wait."""
        journal = held.activation.journal
        try:
            messages = await self._services.store.log.read(
                journal.inbox_subject, after=journal.inbox_seq
            )
        except LogError:
            return
        if any(_is_urgent(message.data) for message in messages):
            held.activation.interrupt()
        elif messages:
            held.activation.inbox_moved()


def _is_urgent(data: bytes) -> bool:
    try:
        return isinstance(decode_inbox(data), CancelMessage)
    except msgspec.DecodeError:
        return False
