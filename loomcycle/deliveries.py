"""What a worker has in hand: items of its queues, and runs that came to it without one.

What becomes of an item whose handling fails is decided here, for all of them alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from events.commit import FutureEvent, JournalError
from events.log import Delivery, LogError
from loomcycle.starts import Start

log = logging.getLogger("loomcycle.worker")

BUSY_ELSEWHERE_S = 5.0
"""When an item that belongs to somebody else is offered again."""

D = TypeVar("D", bound=Delivery)


class Claim:
    """A start that came without the queue, where a worker expects an item of one.

    ``failed`` is told when no first commit could be made. ``dropped``: its caller was refused in
    the meantime, it must not begin any more.
    """

    __slots__ = ("dropped", "failed", "start")

    seq, deliveries, data = 0, 1, b""

    def __init__(self, start: Start, failed: Callable[[LogError], None]) -> None:
        self.start, self.failed = start, failed
        self.dropped = False

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


async def handled(handle: Callable[[D], Awaitable[None]], delivery: D) -> None:
    """``handle`` the item; should that fail, put it back, or drop what can never be handled."""
    try:
        await handle(delivery)
    except (LogError, KeyError) as cause:
        log.warning("item %s put back: %s", delivery.subject, cause)
        if isinstance(delivery, Claim) and isinstance(cause, LogError):
            delivery.failed(cause)
        delivery.nak(1.0)
    except FutureEvent as cause:
        log.warning("left to newer replicas: %s", cause)
        delivery.nak(BUSY_ELSEWHERE_S)
    except JournalError as cause:
        log.error("not continued: %s", cause)
        delivery.ack()
    except Exception:
        log.exception("item %s failed", delivery.subject)
        delivery.nak(1.0)
