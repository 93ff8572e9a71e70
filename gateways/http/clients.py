"""Requests that wait or stream, and what ends them early: the client leaves, the server stops.

Both interrupt the task that serves the request at whatever it awaits; what that means for a run
is decided by the endpoint.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType

from starlette.types import Receive

from gateways.http.errors import ShuttingDown


class Departure(Enum):
    CLIENT = "client"
    SERVER = "server"


class Watch:
    """A context in which the current task is cancelled when somebody departs.

    That cancellation is swallowed at the end of the context: look at ``departed`` after it.
    Enter it when the request's body has been read, and do not call ``receive`` inside.
    """

    __slots__ = ("_cancelling", "_clients", "_receive", "_task", "_watcher", "departed")

    def __init__(self, clients: Clients, receive: Receive) -> None:
        self._clients = clients
        self._receive = receive
        self.departed: Departure | None = None

    def __enter__(self) -> Watch:
        """Raises ShuttingDown."""
        if self._clients.stopping:
            raise ShuttingDown
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._until_disconnect())
        self._clients.watched.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._watcher.cancel()
        self._clients.watched.discard(self)
        if self.departed is None:
            return False
        left = self._task.uncancel()
        return kind is asyncio.CancelledError and left <= self._cancelling

    def interrupt(self, departure: Departure) -> None:
        if self.departed is None:
            self.departed = departure
            self._task.cancel()

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(Departure.CLIENT)


class Clients:
    """Everybody who is being served by this process and might have to wait."""

    def __init__(self) -> None:
        self.watched: set[Watch] = set()
        self.stopping = False

    def watch(self, receive: Receive) -> Watch:
        return Watch(self, receive)

    def stop(self) -> None:
        """End all streams and refuse new ones; no client counts as having left."""
        self.stopping = True
        for watch in list(self.watched):
            watch.interrupt(Departure.SERVER)
