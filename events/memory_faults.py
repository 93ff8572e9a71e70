"""Faults that a simulation asks of the log in memory, and where they strike.

Every operation of a client passes here, before and after it takes effect. Nothing here decides
which fault comes: that is the simulation's own function.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import TypeVar

from events.log import LogError, LogUnavailable, OutcomeUnknown
from events.memory_source import ClientState

T = TypeVar("T")

LATE_S = 1.0
"""After so long a LATE operation takes effect."""


class Fault(enum.Enum):
    """What goes wrong with an operation that writes. A read fails for each of them."""

    FAIL_BEFORE = "not sent: LogUnavailable"
    UNKNOWN_STORED = "stored, but the answer is lost: OutcomeUnknown"
    UNKNOWN_LOST = "lost on the way: OutcomeUnknown"
    LATE = "stored only after the caller was told OutcomeUnknown"
    DOUBLE = "sent twice, answered once"


Faults = Callable[[str, str], Awaitable[Fault | None]]
"""Awaited with (client, operation) before each operation, as ``log.append``, and after it, as
``log.append:after``. After an operation only UNKNOWN_STORED has a meaning."""


async def no_faults(client: str, operation: str) -> Fault | None:
    return None


class Calls:
    """Carries one client's operations to the server, with the faults that were asked for."""

    def __init__(self, faults: Faults, client: ClientState) -> None:
        self._faults = faults
        self._client = client

    async def write(self, operation: str, effect: Callable[[], T]) -> T:
        fault = await self._faults(self._client.name, operation)
        if fault is Fault.FAIL_BEFORE or not self._client.reachable:
            raise LogUnavailable(f"{operation}: not connected")
        if fault is Fault.UNKNOWN_LOST:
            raise OutcomeUnknown(f"{operation}: no answer")
        if fault is Fault.LATE:
            asyncio.get_running_loop().call_later(LATE_S, _quietly, effect)
            raise OutcomeUnknown(f"{operation}: no answer yet")
        await asyncio.sleep(0)
        result = effect()
        if fault is Fault.DOUBLE:
            _quietly(effect)
        await asyncio.sleep(0)
        after = await self._faults(self._client.name, f"{operation}:after")
        if Fault.UNKNOWN_STORED in (fault, after) or not self._client.reachable:
            raise OutcomeUnknown(f"{operation}: the answer was lost")
        return result

    async def read(self, operation: str, question: Callable[[], T]) -> T:
        fault = await self._faults(self._client.name, operation)
        if fault is not None or not self._client.reachable:
            raise LogUnavailable(f"{operation}: not connected")
        await asyncio.sleep(0)
        result = question()
        await self._faults(self._client.name, f"{operation}:after")
        return result


def _quietly(effect: Callable[[], object]) -> None:
    try:
        effect()
    except LogError:
        return
