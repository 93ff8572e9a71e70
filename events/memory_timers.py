"""Timers in memory: handles of the event loop that put an item on the due queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from events.memory_faults import Calls
from events.memory_queue import MemoryQueue
from events.memory_source import ClientState, MemorySource
from events.subjects import Subjects


class TimerTable:
    """The server's side: schedules, and the queue that they end in."""

    def __init__(self, subjects: Subjects, due: MemoryQueue, now_ns: Callable[[], int]) -> None:
        self.subjects = subjects
        self.due = due
        self.now_ns = now_ns
        self.handles: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def forget_all(self) -> None:
        for handle in self.handles.values():
            handle.cancel()
        self.handles.clear()


class MemoryTimers:
    """See :class:`events.log.Timers`."""

    def __init__(self, table: TimerTable, client: ClientState, calls: Calls) -> None:
        self._table = table
        self._client = client
        self._calls = calls

    async def set(self, kind: str, timer_id: str, at_ns: int, data: bytes) -> None:
        await self._calls.write("timers.set", lambda: self._set(kind, timer_id, at_ns, data))

    def _set(self, kind: str, timer_id: str, at_ns: int, data: bytes) -> None:
        self._cancel_schedule(kind, timer_id)
        delay_s = max(at_ns - self._table.now_ns(), 0) / 1e9
        self._table.handles[kind, timer_id] = asyncio.get_running_loop().call_later(
            delay_s, self._fire, kind, timer_id, data
        )

    def _fire(self, kind: str, timer_id: str, data: bytes) -> None:
        del self._table.handles[kind, timer_id]
        due = self._table.subjects.due(kind, timer_id)
        self._table.due.stream.purge(due)
        self._table.due.stream.append(due, data)

    def _cancel_schedule(self, kind: str, timer_id: str) -> None:
        handle = self._table.handles.pop((kind, timer_id), None)
        if handle is not None:
            handle.cancel()

    async def cancel(self, kind: str, timer_id: str) -> None:
        await self._calls.write("timers.cancel", lambda: self._cancel(kind, timer_id))

    def _cancel(self, kind: str, timer_id: str) -> None:
        self._cancel_schedule(kind, timer_id)
        self._table.due.stream.purge(self._table.subjects.due(kind, timer_id))

    async def pending(self) -> Collection[tuple[str, str]]:
        return await self._calls.read("timers.pending", lambda: frozenset(self._table.handles))

    def due(self) -> MemorySource:
        return MemorySource(self._table.due, self._client)

    async def clear(self) -> None:
        await self._calls.write("timers.clear", self._clear)

    def _clear(self) -> None:
        for kind, timer_id in list(self._table.handles):
            self._cancel_schedule(kind, timer_id)
        self._table.due.stream.purge(self._table.subjects.any("due"))
