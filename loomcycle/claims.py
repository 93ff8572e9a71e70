"""Starts that a worker begins at once, without the queue."""

from __future__ import annotations

from collections.abc import Callable

from events.log import LogError
from loomcycle.starts import Start


class Claim:
    """A start that came without the queue, where a worker expects an item of one."""

    __slots__ = ("failed", "start")

    seq, deliveries, data = 0, 1, b""

    def __init__(self, start: Start, failed: Callable[[LogError], None]) -> None:
        self.start, self.failed = start, failed

    @property
    def subject(self) -> str:
        return self.start.item.run

    def ack(self) -> None: ...

    def nak(self, delay_s: float = 0.0) -> None:
        """Its gateway misses the first commit, and queues the start."""

    def working(self) -> None: ...


class Adopted:
    """A child whose first commit was made here: no item of any queue stands for it.

    Should it not be advanced to its end, the sweeper finds it like any run without a worker.
    """

    __slots__ = ("subject",)

    seq, deliveries, data = 0, 1, b""

    def __init__(self, run_id: str) -> None:
        self.subject = run_id

    def ack(self) -> None: ...

    def nak(self, delay_s: float = 0.0) -> None: ...

    def working(self) -> None: ...
