"""Makes time limits hold in a program that has used up its memory.

An engine out of memory cannot make the uncatchable error of an interrupt, so a program that
catches everything would go on for ever. One daemon thread per process gives overdue contexts a
little more memory until the error fits. It never decides an outcome and reads no clock.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import quickjs

_TICK_S = 0.02
_GRANT = 1 << 20
_GRANTS = 1024


class _Guarded:
    __slots__ = ("context", "grants", "limit", "ticks")

    def __init__(self, context: quickjs.Context, ticks: int, limit: int) -> None:
        self.context = context
        self.ticks = ticks
        self.limit = limit
        self.grants = 0

    def tick(self) -> None:
        if self.ticks > 0:
            self.ticks -= 1
        elif self.grants < _GRANTS:
            self.grants += 1
            self.limit += _GRANT
            self.context.set_memory_limit(self.limit)


class Watchdog:
    """Watches contexts while they execute; its thread starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = threading.Event()
        self._pause = threading.Event()
        self._guarded: set[_Guarded] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def guard(self, context: quickjs.Context, time_limit_s: float, limit: int) -> Iterator[None]:
        """Watch ``context``, which has ``limit`` bytes and ``time_limit_s`` seconds."""
        guarded = _Guarded(context, int(time_limit_s / _TICK_S) + 1, limit)
        with self._lock:
            self._guarded.add(guarded)
            self._busy.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="code-js", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._guarded.discard(guarded)

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
