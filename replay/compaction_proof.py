"""Proof of compactions: the machine wanted one here, of this span, asked for with this request.

What the summary says is the model's; everything beside it is derived again.
"""

from __future__ import annotations

from msgspec.structs import replace

from events.vocabulary import CompactionMade, CompactionSkipped, ContextCompaction, Error, Event
from replay import budget_proof
from replay.compaction import Cut, body_of, cut, summary_hash, summary_request
from replay.machine import CODE_PROVIDER, Compact, next_effect
from replay.state import Phase, State

FAILURE = "compaction summary failed ("
"""Begins the public error of a summary that was not written; the run goes on."""

MASK = "[redacted"


def failure(trigger: str, cause: object) -> str:
    """The public error of a summary that was not written."""
    return f"{FAILURE}{trigger}): {cause}"


def is_failure(state: State, event: Event) -> bool:
    """Whether ``event`` tells of a failed summary, not of the run's end."""
    if not isinstance(event, Error) or not event.error.startswith(FAILURE):
        return False
    effect = next_effect(state)
    return isinstance(effect, Compact) and event.error.startswith(failure(effect.trigger, ""))


def problem(state: State, event: Event) -> str:
    """How ``event`` differs from what is derived in ``state``, "" when it does not."""
    match event:
        case CompactionMade():
            return _wanted(state, event.trigger) or _made(state, event)
        case CompactionSkipped():
            return _wanted(state, event.trigger) or _skipped(state, event)
        case ContextCompaction():
            return _body(state, event)
        case _:
            return ""


def _wanted(state: State, trigger: str) -> str:
    if state.phase is Phase.FINISHED:
        amended = state.amended is not None and trigger == "manual"
        return "" if amended else "a compaction of an ended run that was not amended"
    effect = next_effect(state)
    if isinstance(effect, Compact) and effect.trigger == trigger:
        return ""
    return f"a compaction ({trigger}) that was not due"


def _division(state: State, trigger: str) -> Cut | None:
    return None if state.provider == CODE_PROVIDER else cut(state, trigger)


def _made(state: State, event: CompactionMade) -> str:
    division = _division(state, event.trigger)
    if division is None:
        return "a compaction where there is nothing to summarise"
    if event.kept_from != division.kept_from:
        return f"kept from {event.kept_from}, derived is {division.kept_from}"
    if event.pinned != division.pinned and MASK not in event.pinned:
        return "another task is pinned than derived"
    return _request(state, division, event)


def _skipped(state: State, event: CompactionSkipped) -> str:
    division = _division(state, event.trigger)
    if event.reason == "noop":
        return "" if division is None else "nothing was compacted, though a span is derived"
    if division is None:
        return "a summary was asked for where there is nothing to summarise"
    return _request(state, division, event)


def _request(state: State, division: Cut, event: CompactionMade | CompactionSkipped) -> str:
    if event.max_tokens and not budget_proof.may_bound(state):
        return budget_proof.NO_BUDGET
    asked = summary_hash(summary_request(state, division, max_tokens=event.max_tokens))
    recorded = event.request
    return "" if recorded == asked else f"request hash {recorded} recorded, {asked} derived"


def _body(state: State, event: ContextCompaction) -> str:
    made = state.made
    if made is None:
        return "a compaction without its facts"
    recorded = event.context_compaction
    division = Cut(0, made.kept_from, made.pinned)
    derived = body_of(state, division, recorded.summary, made.trigger)
    if MASK in recorded.summary:
        derived = replace(derived, after_tokens=recorded.after_tokens)
    return "" if recorded == derived else f"derived {derived!r}"
