"""A client of the log in memory: whether the server reaches it, and its requests for work.

What runs here runs in the client's process, so that a simulation can make it stand still; the
server's side of the queues is ``events/memory_queue.py``.
"""

from __future__ import annotations

import asyncio

from events.memory_queue import MemoryDelivery, MemoryQueue


class ClientState:
    """What the server knows of one connected process. ``still``: it does nothing, and is there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reachable = True
        self.gone = False
        self.still = False


class MemorySource:
    """See :class:`events.log.WorkSource`."""

    def __init__(self, queue: MemoryQueue, client: ClientState) -> None:
        self._queue = queue
        self._closed = False
        self._asked_until = 0.0
        self.client = client
        self.free = 0
        self.turn = 0

    def listens(self) -> bool:
        """Whether an item can be given to it: a request of it stands."""
        now = asyncio.get_running_loop().time()
        return not self._closed and self.client.reachable and now < self._asked_until

    def allow(self, free: int) -> None:
        self.free = max(free, 0)
        self._queue.dispatch()

    async def get(self) -> MemoryDelivery:
        future: asyncio.Future[MemoryDelivery] = asyncio.get_running_loop().create_future()
        self._ask()
        self._queue.wait(self, future)
        try:
            while not future.done():
                await asyncio.wait((future,), timeout=self._queue.request_s)
                self._ask()
            return future.result()
        except asyncio.CancelledError:
            if future.done():
                future.result().nak()
                self.free += 1
            future.cancel()
            raise

    def _ask(self) -> None:
        """Let a request stand from now on."""
        if self.client.still:
            return
        self._asked_until = asyncio.get_running_loop().time() + self._queue.request_s
        self._queue.dispatch()

    async def close(self) -> None:
        self._closed = True
