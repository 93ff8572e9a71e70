"""A worker's standing subscription to work queues: pull requests that wait at the server.

One item comes per outstanding request. While the worker has room each lane has one request
standing; what arrives beyond the room is held for a moment and then handed back, so that another
replica can take it. No fetch loop, no task per item.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from events.log import LogError
from events.nats_api import Api, header, position
from events.nats_link import Link
from events.nats_provision import Provision
from events.streams import REQUEST_S

log = logging.getLogger(__name__)

HOLD_S = 0.05
"""How long an item beyond the worker's room is held before it is handed back."""

_RETRY_S = 0.1
_SECOND_NS = 1_000_000_000


class NatsDelivery:
    """See :class:`events.log.Delivery`. Answers are lost while disconnected: it comes again."""

    __slots__ = ("_link", "_reply", "data", "deliveries", "lane", "seq", "since", "subject")

    def __init__(
        self, link: Link, lane: int, subject: bytes, reply: bytes, data: bytes, since: float
    ) -> None:
        at = position(reply)
        self.subject = subject.decode()
        self.data = data
        self.seq = at.seq
        self.deliveries = at.deliveries
        self.lane = lane
        self.since = since
        self._link = link
        self._reply = reply

    def ack(self) -> None:
        self._answer(b"+ACK")

    def nak(self, delay_s: float = 0.0) -> None:
        self._answer(b'-NAK {"delay": %d}' % int(delay_s * _SECOND_NS) if delay_s else b"-NAK")

    def working(self) -> None:
        self._answer(b"+WPI")

    def _answer(self, verb: bytes) -> None:
        if self._link.is_connected:
            self._link.publish_now(self._reply, verb)


class Consumer(msgspec.Struct, frozen=True):
    """A durable consumer of a queue: its name and the subjects it serves."""

    name: str
    filter_subject: str


class _Lane:
    """Requests outstanding at one consumer, and what it delivered beyond the worker's room."""

    def __init__(self, index: int, consumer: Consumer, stream: str) -> None:
        self.index = index
        self.consumer = consumer
        self.next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}".encode()
        self.inbox = ""
        self.sid = 0
        self.asked = 0
        self.paused = False


class NatsSource:
    """See :class:`events.log.WorkSource`."""

    def __init__(
        self,
        link: Link,
        provision: Provision,
        stream: str,
        consumers: Sequence[Consumer],
        *,
        depth: int = 1,
        request_s: float = REQUEST_S,
    ) -> None:
        """``depth``: items asked for at each consumer at most, never more than the room;
        ``request_s``: how long a request stands before it must be repeated."""
        self._link = link
        self._api = Api(link)
        self._provision = provision
        self._stream = stream
        self._depth = depth
        self._request_s = request_s
        self._lanes = [_Lane(i, c, stream) for i, c in enumerate(consumers)]
        self._free = 0
        self._hand: dict[int, deque[NatsDelivery]] = {lane.index: deque() for lane in self._lanes}
        self._turn = 0
        self._held = 0
        self._getters: deque[asyncio.Future[None]] = deque()
        self._hold_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        provision.ready.append(self._start)
        link.reconnected.append(self._stop_asking)
        self._start()

    # --- the interface --------------------------------------------------------------------

    def allow(self, free: int) -> None:
        self._free = max(free, 0)
        if self._free:
            self._serve()
            self._ask()
        elif self._held:
            self._watch_hand()

    async def get(self) -> NatsDelivery:
        while True:
            while self._free and self._held:
                item = self._take()
                if self._loop.time() - item.since < self._provision.ack_wait_s:
                    return item
                self._free += 1  # nobody asked for so long that somebody else has it now
            waiter = self._loop.create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._getters:
                    self._getters.remove(waiter)
                else:
                    self._serve()
                raise

    async def close(self) -> None:
        self._closed = True
        self._provision.ready.remove(self._start)
        self._link.reconnected.remove(self._stop_asking)
        for task in self._tasks:
            task.cancel()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        for lane in self._lanes:
            if lane.sid:
                self._link.detach(lane.sid)
            while self._hand[lane.index]:
                self._hand[lane.index].popleft().nak()

    # --- giving out -----------------------------------------------------------------------

    def _take(self) -> NatsDelivery:
        """The next item in hand, lanes in turn."""
        count = len(self._lanes)
        for step in range(count):
            index = (self._turn + step) % count
            if self._hand[index]:
                break
        self._turn = (index + 1) % count
        item = self._hand[index].popleft()
        self._held -= 1
        self._free -= 1
        if self._free:
            self._ask_at(self._lanes[index])
        elif self._held:
            self._watch_hand()
        return item

    def _serve(self) -> None:
        """Wake as many getters as there are items and room for them."""
        for _ in range(min(self._free, self._held, len(self._getters))):
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _watch_hand(self) -> None:
        if self._hold_timer is None and not self._closed:
            self._hold_timer = self._loop.call_later(HOLD_S, self._hand_back)

    def _hand_back(self) -> None:
        """Give back what was held too long while there was no room."""
        self._hold_timer = None
        if self._free or not self._held:
            return
        limit = self._loop.time() - HOLD_S
        for items in self._hand.values():
            while items and items[0].since <= limit:
                items.popleft().nak()
                self._held -= 1
        if self._held:
            self._watch_hand()

    # --- asking ---------------------------------------------------------------------------

    def _start(self) -> None:
        """Make sure that the consumers exist, then ask."""
        if not self._closed:
            self._run(self._open_lanes())

    def _stop_asking(self) -> None:
        """Requests of the lost connection are void; wait until the streams are there again."""
        self._open = False
        for lane in self._lanes:
            lane.asked = 0

    async def _open_lanes(self) -> None:
        while not self._closed:
            try:
                await asyncio.gather(*(self._create(lane) for lane in self._lanes))
                break
            except LogError as error:
                log.info("consumers of %s are not ready: %s", self._stream, error)
                await asyncio.sleep(_RETRY_S)
        for lane in self._lanes:
            if not lane.sid:
                lane.inbox = self._link.fresh_inbox()
                lane.sid = self._link.attach(lane.inbox, self._receiver(lane))
            lane.asked = 0
        self._open = True
        self._ask()

    async def _create(self, lane: _Lane) -> None:
        await self._api.create_consumer(
            self._stream,
            {
                "name": lane.consumer.name,
                "durable_name": lane.consumer.name,
                "filter_subject": lane.consumer.filter_subject,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "replay_policy": "instant",
                "ack_wait": int(self._provision.ack_wait_s * _SECOND_NS),
                "max_ack_pending": -1,
                "max_waiting": 8192,
            },
        )

    def _ask(self) -> None:
        for lane in self._lanes:
            self._ask_at(lane)

    def _ask_at(self, lane: _Lane) -> None:
        if not self._open or self._closed or lane.paused:
            return
        room = min(self._depth, self._free)
        coming = lane.asked + len(self._hand[lane.index])
        if coming > room // 2 or not room or not self._link.is_connected:
            return  # few large requests: each must be repeated when its time is over
        lane.asked += room - coming
        request = b'{"batch":%d,"expires":%d}' % (
            room - coming,
            int(self._request_s * _SECOND_NS),
        )
        self._link.publish_now(lane.next, request, lane.inbox.encode())

    def _receiver(self, lane: _Lane):  # type: ignore[no-untyped-def]
        def receive(subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
            if headers is not None and headers.startswith(b"NATS/1.0 "):
                self._status(lane, headers)
                return
            lane.asked = max(lane.asked - 1, 0)
            item = NatsDelivery(self._link, lane.index, subject, reply, data, self._loop.time())
            self._hand[lane.index].append(item)
            self._held += 1
            self._serve()
            if not self._free:
                self._watch_hand()

        return receive

    def _status(self, lane: _Lane, headers: bytes) -> None:
        """A request ended unfilled: ask again, at once only if it was just its time."""
        if headers[9:12] == b"408":
            unfilled = int(header(headers, b"Nats-Pending-Messages") or lane.asked)
            lane.asked = max(lane.asked - unfilled, 0)
            self._ask_at(lane)
            return
        lane.asked = 0
        if not lane.paused:
            lane.paused = True
            self._run(self._repair(lane))

    async def _repair(self, lane: _Lane) -> None:
        while not self._closed:
            await asyncio.sleep(_RETRY_S)
            try:
                await self._create(lane)
                break
            except LogError as error:
                log.debug("consumer %s is not ready: %s", lane.consumer.name, error)
                with contextlib.suppress(LogError):
                    await self._provision.restore_queues()
        lane.paused = False
        self._ask_at(lane)

    def _run(self, coroutine) -> None:  # type: ignore[no-untyped-def]
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
