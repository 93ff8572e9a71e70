"""Proof of budgets: answers were bounded where a budget bounds the run, and only there.

What a budget still held stands in its ledger; that the request said it, in its hash.
"""

from __future__ import annotations

from events.plan import Budget
from replay.state import State

ANSWERS_ARE_BOUNDED = 3
"""From this machine version on every call under a run's own budget says how long its answer may
be; before, a request without ``max_tokens`` left that to the vendor."""

NO_BUDGET = "an answer is bounded by a budget, and the run has none"


def may_bound(state: State) -> bool:
    """Whether the run may have a budget, its own or that of a run above."""
    return state.plan.budget is not None or bool(state.started.root)


def problem(state: State, max_tokens: int) -> str:
    """How a turn whose answer may have ``max_tokens`` (0: not said) differs from what the run's
    plan and budgets ask for, "" when it does not."""
    own = state.plan.max_tokens
    if max_tokens and not may_bound(state):
        return NO_BUDGET
    if own and max_tokens > own:
        return f"an answer may have {max_tokens} tokens, by the plan {own}"
    bounded = max_tokens or state.plan.budget in (None, Budget())
    if not bounded and state.started.machine >= ANSWERS_ARE_BOUNDED:
        return "a call under a budget does not bound its answer"
    return ""
