"""Children of a run: started under ids that follow from the call, watched, cancelled with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from loomcycle.journal import RunJournal
from loomcycle.services import Services
from replay.machine import StartChildren


class Children:
    """The children of one run."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal

    async def start(self, effect: StartChildren, commit: Callable[[], Awaitable[None]]) -> None:
        """Start children."""

    async def look_after(self) -> None:
        """After a takeover."""

    async def cancel(self, reason: str) -> None:
        """Cancel all that run."""
