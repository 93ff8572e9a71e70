"""Work queues over a memory stream: lanes, room, acknowledgements, redelivery.

Items go to waiting sources in the order in which they began to wait. Timing is the event loop's,
so a loop with virtual time runs ack waits and delays without waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from events.log import Message
from events.memory_stream import MemoryStream, matches
from events.streams import REQUEST_S

if TYPE_CHECKING:
    from events.memory_source import ClientState, MemorySource


class MemoryDelivery:
    """See :class:`events.log.Delivery`."""

    def __init__(
        self, queue: MemoryQueue, client: ClientState, message: Message, deliveries: int
    ) -> None:
        self.subject = message.subject
        self.data = message.data
        self.seq = message.seq
        self.deliveries = deliveries
        self._queue = queue
        self._client = client

    def ack(self) -> None:
        if self._client.reachable:
            self._queue.ack(self.seq)

    def nak(self, delay_s: float = 0.0) -> None:
        if self._client.reachable:
            self._queue.nak(self.seq, self.deliveries, delay_s)

    def working(self) -> None:
        if self._client.reachable:
            self._queue.working(self.seq, self.deliveries)


class MemoryQueue:
    """The consumers of one work-queue stream, one per filter, shared by all clients."""

    def __init__(
        self,
        stream: MemoryStream,
        filters: Sequence[str],
        ack_wait_s: float,
        *,
        request_s: float = REQUEST_S,
    ) -> None:
        """``request_s``: for so long a source waits without saying so again."""
        self.stream = stream
        self.request_s = request_s
        self._ack_wait_s = ack_wait_s
        self._lane_of = lru_cache(maxsize=4096)(self._find_lane)
        self._lanes = [pattern.split(".") for pattern in filters]
        self._waiting: deque[tuple[MemorySource, asyncio.Future[MemoryDelivery]]] = deque()
        self._deliveries: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        stream.listeners.append(self.dispatch)

    def adopt(self, stream: MemoryStream) -> None:
        """Go on with an empty stream: the server was started again."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._deliveries.clear()
        self.stream = stream
        stream.listeners.append(self.dispatch)

    def wait(self, source: MemorySource, future: asyncio.Future[MemoryDelivery]) -> None:
        self._waiting.append((source, future))
        self.dispatch()

    def dispatch(self) -> None:
        """Give available items to whoever waits and has room."""
        for source, future in list(self._waiting):
            if future.done():
                self._waiting.remove((source, future))
            elif source.free > 0 and source.listens():
                message = self._next(source)
                if message is None:
                    return
                self._waiting.remove((source, future))
                source.free -= 1
                future.set_result(self._deliver(message, source.client))

    def _next(self, source: MemorySource) -> Message | None:
        """The oldest free item of the next lane that has one."""
        oldest: dict[int, Message] = {}
        for message in self.stream.after(0, len(self.stream)):
            if message.seq not in self._timers:
                lane = self._lane_of(message.subject)
                if lane >= 0:
                    oldest.setdefault(lane, message)
        if not oldest:
            return None
        lane = min(oldest, key=lambda lane: (lane - source.turn) % len(self._lanes))
        source.turn = lane + 1
        return oldest[lane]

    def _find_lane(self, subject: str) -> int:
        tokens = subject.split(".")
        return next((i for i, lane in enumerate(self._lanes) if matches(lane, tokens)), -1)

    def _deliver(self, message: Message, client: ClientState) -> MemoryDelivery:
        count = self._deliveries.get(message.seq, 0) + 1
        self._deliveries[message.seq] = count
        self._hold(message.seq, self._ack_wait_s)
        return MemoryDelivery(self, client, message, count)

    def _hold(self, seq: int, seconds: float) -> None:
        """Nobody else gets the item for so long."""
        if timer := self._timers.pop(seq, None):
            timer.cancel()
        self._timers[seq] = asyncio.get_running_loop().call_later(seconds, self._release, seq)

    def _release(self, seq: int) -> None:
        if timer := self._timers.pop(seq, None):
            timer.cancel()
        self.dispatch()

    def ack(self, seq: int) -> None:
        """Done. Also a late answer removes the item, as JetStream does."""
        if not self._deliveries.pop(seq, 0):
            return
        if timer := self._timers.pop(seq, None):
            timer.cancel()
        self.stream.delete(seq)

    def nak(self, seq: int, deliveries: int, delay_s: float) -> None:
        if self._deliveries.get(seq) == deliveries and seq in self._timers:
            if delay_s > 0:
                self._hold(seq, delay_s)
            else:
                self._release(seq)

    def working(self, seq: int, deliveries: int) -> None:
        if self._deliveries.get(seq) == deliveries and seq in self._timers:
            self._hold(seq, self._ack_wait_s)
