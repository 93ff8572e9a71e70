"""Makes time limits hold in a program that has used up its memory.

The engine polls its time limit and throws an error that cannot be caught; without memory it
cannot make that error, and a program that catches everything would go on. One daemon thread per
process gives overdue contexts a little more memory again and again. It bounds work and never
decides an outcome: an execution that reached its limit is not believed.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import quickjs

_TICK_S = 0.02
_GRANT = 1 << 20
_GRANTS = 1024


class Guarded:
    """One execution and whether it reached its limit."""

    def __init__(self, context: quickjs.Context, time_s: float, memory: int) -> None:
        self._context = context
        self._memory = memory
        self._time_s = time_s
        self._ticks = int(time_s / _TICK_S) + 2
        self._grants = 0
        self._started = time.process_time()
        self.exceeded = False

    def tick(self) -> None:
        self._ticks -= 1
        if self._ticks < 0 and self._grants < _GRANTS:
            self.exceeded = True
            self._grants += 1
            self._context.set_memory_limit(self._memory + self._grants * _GRANT)

    def stop(self) -> None:
        """Some built-ins swallow the interrupt, so ask the clock that the engine asks."""
        if time.process_time() - self._started >= self._time_s:
            self.exceeded = True


class Watchdog:
    """Watches contexts while they execute; its thread starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = threading.Event()
        self._pause = threading.Event()
        self._guarded: set[Guarded] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def guard(self, context: quickjs.Context, time_s: float, memory: int) -> Iterator[Guarded]:
        """Hold ``context``, which has ``memory`` bytes, to ``time_s`` seconds."""
        guarded = Guarded(context, time_s, memory)
        with self._lock:
            self._guarded.add(guarded)
            self._busy.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="code-js", daemon=True)
                self._thread.start()
        try:
            yield guarded
        finally:
            with self._lock:
                self._guarded.discard(guarded)
            guarded.stop()

    def _watch(self) -> None:
        while True:
            self._busy.wait()
            self._pause.wait(_TICK_S)
            with self._lock:
                if not self._guarded:
                    self._busy.clear()
                for guarded in self._guarded:
                    guarded.tick()


WATCHDOG = Watchdog()
