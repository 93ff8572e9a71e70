"""Stories in virtual time: when everybody waits, the clock jumps to whoever wakes first."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop for tests without sockets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self._loop.now += timeout
        return ready


def play(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``story`` to its end."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(story())
