"""What the projector's thread tells the threads that read: state, positions, faults.

Written by one thread, read by any. Barriers wait here without polling when the projector is in
this process; everybody else polls the positions in the database, and asks it to hurry.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

from projections.framework import Position

State = Literal[
    "starting", "serving", "rebuilding", "building", "reader", "failing", "cut", "closed"
]
"""``rebuilding``: the old view serves meanwhile; ``building``: there is nothing to read yet.
``reader``: another process writes. ``failing``: the database or the log cannot be reached.
``cut``: the log has lost what the views had seen; an operator decides."""


class Rebuild(NamedTuple):
    """Progress of a rebuild, in sequence numbers of all streams together."""

    done: int
    total: int


class Progress:
    """Shared between the projector and the readers of one process."""

    def __init__(self, on_rebuild: Callable[[Rebuild], None] | None = None) -> None:
        self.state: State = "starting"
        self.detail = ""
        self.rebuild: Rebuild | None = None
        self.rebuilds = 0
        self.positions: dict[str, Position] = {}
        self.hurry: Callable[[], None] = lambda: None
        self._on_rebuild = on_rebuild
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._asked = False

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for a position or a state: batches should not linger."""
        return self._asked or bool(self._waiting)

    def ask(self) -> None:
        """Somebody in another process waits: the next batch should not linger."""
        if self.positions:
            self._asked = True
            self.hurry()

    def enter(self, state: State, detail: str = "") -> None:
        self.state, self.detail = state, detail
        if state != "serving" and state != "rebuilding":
            self.positions = {}
        self._notify()

    def moved(self, positions: dict[str, Position]) -> None:
        """The served view has reached ``positions`` (a fresh dict, never changed again)."""
        self.positions = positions
        self._asked = False
        self._notify()

    def rebuilt(self, rebuild: Rebuild | None) -> None:
        if rebuild is None and self.rebuild is not None:
            self.rebuilds += 1
        self.rebuild = rebuild
        if rebuild is not None and self._on_rebuild is not None:
            self._on_rebuild(rebuild)
        self._notify()

    def _notify(self) -> None:
        if not self._waiting:
            return
        with self._lock:
            waiting = list(self._waiting)
        for loop, event in waiting:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # that loop is closed
                with self._lock:
                    self._waiting.discard((loop, event))

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait, on any loop, until ``reached()`` is true; checked after every change."""
        if reached():
            return
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(entry)
        try:
            self.hurry()
            while not reached():
                await entry[1].wait()
                entry[1].clear()
        finally:
            with self._lock:
                self._waiting.discard(entry)
