"""Performs ``Compact`` effects: one model call that writes the summary, staged with its facts.

No retry, no other provider: a run goes on with its whole conversation when the call fails
(compaction.md section 4). What is summarised is decided in ``replay/compaction.py``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from msgspec.structs import replace

from events.vocabulary import (
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    UsageTotals,
)
from loomcycle.budget.budgets import Refusal
from loomcycle.journal import RunJournal
from loomcycle.masking import plain_messages
from loomcycle.providers.base import (
    Done,
    ProviderError,
    ProviderNotConfigured,
    TextDelta,
    Usage,
)
from loomcycle.providers.defects import contained
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
        plain = summary_request(state, division, plain_messages(self._journal))
        longest = 0
        try:
            longest = await reserve(self._services, state, plain)
            summary = await summarise(self._services.providers, bounded(plain, longest))
        except (ProviderError, ProviderNotConfigured, OverBudget) as cause:
            asked = summary_hash(summary_request(state, division, max_tokens=longest))
            self._journal.stage(Error(error=failure(trigger, cause)))
            self._journal.stage(
                CompactionSkipped(trigger=trigger, reason=FAILED, request=asked, max_tokens=longest)
            )
        else:
            for event in outcome(state, division, trigger, summary, longest):
                self._journal.stage(event)
        if self._services.budgets is not None:
            await self._services.budgets.settle(state)


async def reserve(services: Services, state: State, request: ModelRequest) -> int:
    """How long the summary may be, 0 when no budget bounds it. Raises OverBudget, LogError."""
    if services.budgets is None:
        return 0
    given = await services.budgets.reserve(state, request)
    if isinstance(given, Refusal):
        raise OverBudget(given.reason)
    return given


def bounded(request: ModelRequest, max_tokens: int) -> ModelRequest:
    """``request`` with what a budget lets its answer be."""
    return replace(request, max_tokens=max_tokens) if max_tokens else request


def outcome(
    state: State, division: Cut, trigger: str, summary: Summary, max_tokens: int
) -> tuple[Event, ...]:
    """The events of a summary that was written: the compaction, or none for a blank one.

    ``max_tokens``: how long a budget let it be, 0 when none bounds it.
    """
    asked = summary_hash(summary_request(state, division, max_tokens=max_tokens))
    if not summary.text:
        return (
            CompactionSkipped(
                trigger=trigger,
                reason=BLANK,
                request=asked,
                usage=summary.usage,
                max_tokens=max_tokens,
            ),
        )
    made = CompactionMade(
        request=asked,
        trigger=trigger,
        kept_from=division.kept_from,
        pinned=division.pinned,
        usage=summary.usage,
        max_tokens=max_tokens,
    )
    body = body_of(state, division, summary.text, trigger)
    return made, ContextCompaction(context_compaction=body)


async def summarise(providers: Providers, request: ModelRequest) -> Summary:
    """Have ``request`` answered, unseen by clients. Raises ProviderError, ProviderNotConfigured."""
    parts: list[str] = []
    usage: Usage | None = None
    async with aclosing(contained(providers.get(request.provider), request)) as deltas:
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
