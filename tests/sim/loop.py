"""An event loop in virtual time whose callbacks belong to processes that can stop and die.

Time jumps to the next timer when nothing is ready. Which process goes next is drawn from the
seed; inside one process callbacks keep their order. A suspended process runs nothing (SIGSTOP), a
dead one never again, not even ``finally`` blocks (SIGKILL).
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

OF_THE_SERVER = ("events.memory_faults", "events.memory_queue", "events.memory_timers")
"""Callbacks of these modules are timers of the log's server, whoever caused them."""

THREAD_S = 0.002
"""Virtual duration of what runs in a thread."""


class Lane:
    """The callbacks of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[events.Handle] = deque()
        self.frozen = False
        self.dead = False


OWNER: ContextVar[Lane] = ContextVar("owner")
"""The process that a callback belongs to; callbacks without one are the world's."""


class Stuck(RuntimeError):
    """Nothing is ready and no timer is set: the simulation waits for ever."""


class SimLoop(asyncio.BaseEventLoop):
    """Drives coroutines without a clock and without I/O. ``rng`` decides every order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.turns = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self._now = 0.0
        self._world = Lane("world")
        self._lanes = [self._world]
        self._buried: list[events.Handle] = []

    def time(self) -> float:
        return self._now

    def lane(self, name: str) -> Lane:
        """A process; what runs with it as :data:`OWNER` belongs to it."""
        lane = Lane(name)
        self._lanes.append(lane)
        return lane

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run ``func`` now and answer a little later: threads would not be repeatable."""
        future = self.create_future()
        try:
            answer = (future.set_result, func(*args))
        except Exception as error:
            answer = (future.set_exception, error)
        self.call_later(THREAD_S, _unless_done, future, *answer)
        return future

    def bury_all(self) -> None:
        """End every task that is left, dead processes' included; to be called once, at the end."""
        for lane in self._lanes:
            lane.frozen = lane.dead = False
        while self._buried:
            self._put(self._buried.pop())
        for _ in range(100):
            left = [task for task in self.tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.sleep(0.001))
        self.tasks.clear()

    # -- what asyncio asks of a loop

    def _run_once(self) -> None:
        self._sort(self._ready)  # type: ignore[attr-defined]
        runnable = self._runnable()
        if not runnable:
            self._jump()
            runnable = self._runnable()
        if not runnable:
            return
        lane = runnable[0] if len(runnable) == 1 else self.rng.choice(runnable)
        for _ in range(len(lane.ready)):
            if lane.frozen or lane.dead:
                return
            handle = lane.ready.popleft()
            if not handle.cancelled():
                self.turns += 1
                handle._run()

    def _runnable(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane.ready and not lane.frozen and not lane.dead]

    def _sort(self, ready: deque[events.Handle]) -> None:
        while ready:
            handle = ready.popleft()
            if not handle.cancelled():
                self._put(handle)

    def _put(self, handle: events.Handle) -> None:
        lane = self._lane_of(handle)
        if lane.dead:
            self._buried.append(handle)
        else:
            lane.ready.append(handle)

    def _lane_of(self, handle: Any) -> Lane:
        if getattr(handle._callback, "__module__", "") in OF_THE_SERVER:
            return self._world
        lane: Lane = handle._context.get(OWNER, self._world)
        return lane

    def _jump(self) -> None:
        """Go to the time of the next timer and make everything ready that is due then."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
        if not timers:
            if self._stopping:  # type: ignore[attr-defined]
                return
            raise Stuck("nothing is left to happen")
        self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            if not handle.cancelled():
                self._put(handle)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken."""


def _unless_done(future: asyncio.Future[Any], answer: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        answer(value)
