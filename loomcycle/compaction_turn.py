"""Performs ``Compact`` effects: one model call that writes the summary."""

from __future__ import annotations

from events.vocabulary import CompactionSkipped
from loomcycle.journal import RunJournal
from loomcycle.services import Services
from replay.machine import Compact


class CompactionTurn:
    """Compactions of one run."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal

    async def perform(self, effect: Compact) -> None:
        """Stage the compaction, or why there is none."""
        self._journal.stage(CompactionSkipped(trigger=effect.trigger, reason="noop"))
