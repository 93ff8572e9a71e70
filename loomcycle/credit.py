"""How a worker tells a queue what it has room for, without telling it at every run."""

from __future__ import annotations

from events.log import Delivery, WorkSource

EXACT_BELOW = 16
"""With more free slots than this, a queue need not know their exact number."""


class CreditedSource:
    """A queue and the number of items it may still deliver; told again only when it matters."""

    def __init__(self, source: WorkSource) -> None:
        self._source = source
        self._granted = 0
        self.close = source.close

    async def get(self) -> Delivery:
        delivery = await self._source.get()
        self._granted -= 1
        return delivery

    def allow(self, free: int) -> None:
        exact = free < EXACT_BELOW
        if self._granted != free if exact else self._granted < EXACT_BELOW:
            self._source.allow(free)
            self._granted = free
