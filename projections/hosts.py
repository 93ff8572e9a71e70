"""Where a projector runs: in a thread with its own event loop, or as a task of the caller's.

The thread is for serving: a slow disk or a long rebuild stalls nobody. The task is for simulation
and for tests over the in-memory log, whose clients must share one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import uvloop

from projections.database import Backend
from projections.progress import Progress
from projections.projector import Projector

log = logging.getLogger(__name__)

_RESTART_S = 1.0


class Host(Protocol):
    """A running projector."""

    async def close(self) -> None:
        """Stop it and wait until it has let go of the database."""
        ...


class TaskHost:
    """Runs on the loop that makes it."""

    def __init__(self, projector: Projector, backend: Backend, progress: Progress) -> None:
        self._backend = backend
        progress.hurry = projector.hurry
        self._task = asyncio.create_task(_supervise(projector, progress))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._backend.close()


class ThreadHost:
    """Runs in a thread of its own; the constructor returns when its loop is running."""

    def __init__(
        self,
        make: Callable[[Callable[[float], None]], tuple[Projector, Backend]],
        progress: Progress,
    ) -> None:
        """``make`` is called in the thread, with a function that naps (see Projector)."""
        self._make = make
        self._progress = progress
        self._running = threading.Event()
        self._wanted = threading.Event()
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._main, name="projector", daemon=True)
        self._thread.start()
        self._running.wait()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._project())

    async def _project(self) -> None:
        try:
            projector, backend = self._make(self._nap)
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(_supervise(projector, self._progress))
            self._stop = lambda: self._call(loop, task.cancel)
            self._progress.hurry = lambda: self._call(loop, projector.hurry)
        finally:
            self._running.set()
        await asyncio.gather(task, return_exceptions=True)
        await backend.close()

    def _nap(self, seconds: float) -> None:
        """Block the thread, unless somebody wants it."""
        self._wanted.wait(seconds)
        self._wanted.clear()

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
        """Call on the thread's loop at once, unless that loop has ended."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)
        self._wanted.set()

    async def close(self) -> None:
        self._stop()
        await asyncio.to_thread(self._thread.join)


async def _supervise(projector: Projector, progress: Progress) -> None:
    """A defect is shown in the status and logged; trying again is safe at any time."""
    while True:
        try:
            await projector.run()
        except Exception as cause:
            log.exception("the projector failed")
            progress.enter("failing", f"defect: {type(cause).__name__}: {cause}")
        await asyncio.sleep(_RESTART_S)
