"""Performs ``Compact`` effects: one model call that writes the summary, staged with its facts.

No retry, no other provider: a run goes on with its whole conversation when the call fails
(compaction.md section 4). What is summarised is decided in ``replay/compaction.py``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from events.vocabulary import (
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    UsageTotals,
)
from loomcycle.journal import RunJournal
from loomcycle.masking import plain_messages
from loomcycle.providers.base import (
    Done,
    ProviderError,
    ProviderNotConfigured,
    TextDelta,
    Usage,
)
from loomcycle.services import Providers, Services
from replay.compaction import Cut, body_of, cut, summary_hash, summary_request
from replay.compaction_proof import failure
from replay.conversation import ModelRequest
from replay.machine import CODE_PROVIDER, Compact
from replay.state import State

NOOP, FAILED, BLANK = "noop", "failed", "blank"


class OverBudget(Exception):
    """The summary was not asked for: it does not fit the budget of the run's tree."""


class Summary(NamedTuple):
    """What the summariser wrote, trimmed; ``usage`` is None when the vendor reported none."""

    text: str
    usage: UsageTotals | None


class CompactionTurn:
    """Compactions of one run."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal

    async def perform(self, effect: Compact) -> None:
        """Stage the compaction, or why there is none."""
        state, trigger = self._journal.state, effect.trigger
        division = None if state.provider == CODE_PROVIDER else cut(state, trigger)
        if division is None:
            self._journal.stage(CompactionSkipped(trigger=trigger, reason=NOOP))
            return
        asked = summary_hash(summary_request(state, division))
        plain = summary_request(state, division, plain_messages(self._journal))
        try:
            summary = await self._ask(plain)
        except (ProviderError, ProviderNotConfigured, OverBudget) as cause:
            self._journal.stage(Error(error=failure(trigger, cause)))
            self._journal.stage(CompactionSkipped(trigger=trigger, reason=FAILED, request=asked))
        else:
            for event in outcome(state, division, trigger, asked, summary):
                self._journal.stage(event)
        if self._services.budgets is not None:
            await self._services.budgets.settle(state)

    async def _ask(self, request: ModelRequest) -> Summary:
        services = self._services
        if services.budgets is not None:
            refusal = await services.budgets.reserve(self._journal.state, request)
            if refusal is not None:
                raise OverBudget(refusal.reason)
        return await summarise(services.providers, request)


def outcome(
    state: State, division: Cut, trigger: str, asked: str, summary: Summary
) -> tuple[Event, ...]:
    """The events of a summary that was written: the compaction, or none for a blank one."""
    if not summary.text:
        return (
            CompactionSkipped(trigger=trigger, reason=BLANK, request=asked, usage=summary.usage),
        )
    made = CompactionMade(
        request=asked,
        trigger=trigger,
        kept_from=division.kept_from,
        pinned=division.pinned,
        usage=summary.usage,
    )
    body = body_of(state, division, summary.text, trigger)
    return made, ContextCompaction(context_compaction=body)


async def summarise(providers: Providers, request: ModelRequest) -> Summary:
    """Have ``request`` answered, unseen by clients. Raises ProviderError, ProviderNotConfigured."""
    parts: list[str] = []
    usage: Usage | None = None
    async with aclosing(providers.get(request.provider).stream(request)) as deltas:
        async for delta in deltas:
            match delta:
                case TextDelta(text):
                    parts.append(text)
                case Done():
                    usage = delta.usage
                case _:
                    pass
    return Summary("".join(parts).strip(), _totals(usage) if usage is not None else None)


def _totals(usage: Usage) -> UsageTotals:
    return UsageTotals(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_read_input_tokens=usage.cache_read_input_tokens,
        model=usage.model,
    )
