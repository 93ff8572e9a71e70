"""What follows a failed model call: the same pair again, another pair, or the run's failure.

Specification: providers.md section 9. Pure: a run's state and what is usable in, a decision and
its events out. The decision is journaled before anything comes of it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from events.plan import Pair
from events.vocabulary import (
    CacheInvalidated,
    Event,
    FallbackBody,
    FallbackSuppressed,
    ModelDowngraded,
    ModelSwitched,
    ProviderFallback,
    ReasoningInvalidated,
    Retry,
    RetryBody,
)
from loomcycle.providers import deepseek
from loomcycle.providers.errors import ErrorClass, classify, is_rate_limit
from replay.conversation import Message
from replay.machine import BROKEN_STREAMS_COUNT
from replay.state import State

BACKOFF_MS = (100, 300, 900, 2700, 8100)
"""Wait before the n-th retry of the same pair; there are no more of them."""

BACKOFF_REASON = "exponential backoff"

MAX_CALLS_OF_A_TURN = 32
"""A turn called so often is not retried, however often its pair was switched."""

CAUSE_LIMIT = 200
"""Characters of the cause in a ``provider_fallback``."""

SWITCHABLE = (ErrorClass.RETRYABLE, ErrorClass.DEPRECATED)


class Failure(Struct, frozen=True, kw_only=True):
    """A failed call. ``partial``: it had begun to answer."""

    kind: ErrorClass
    text: str
    partial: bool = False
    rate_limited: bool = False


class RetrySame(Struct, frozen=True):
    """Wait, then ask the same pair again; ``attempt`` counts from 1."""

    attempt: int
    wait_ms: int


class SwitchTo(Struct, frozen=True):
    """Go on with ``pair``; ``model`` is its own, or the sibling that takes its place."""

    pair: Pair
    model: str
    reason: str


class Stay(Struct, frozen=True):
    """No switch, although there is a reason for one: an earlier turn succeeded here."""


class GiveUp(Struct, frozen=True):
    """The failure is the run's."""


Decision = RetrySame | SwitchTo | Stay | GiveUp


def failure_of(cause: BaseException, *, partial: bool = False) -> Failure:
    """``cause`` as it counts here."""
    return Failure(
        kind=classify(cause),
        text=str(cause),
        partial=partial,
        rate_limited=is_rate_limit(cause),
    )


def recover(state: State, failure: Failure, usable: Callable[[Pair], bool]) -> Decision:
    """What to do about ``failure`` of the call that ``state`` was due to make."""
    routing = state.plan.routing
    if state.iteration + state.spent + 1 >= state.plan.max_iterations:
        return GiveUp()
    used = state.retries
    if failure.partial and state.started.machine < BROKEN_STREAMS_COUNT:
        used = 0
    if (
        failure.kind is ErrorClass.RETRYABLE
        and used < min(routing.retry_attempts, len(BACKOFF_MS))
        and state.attempt < MAX_CALLS_OF_A_TURN
    ):
        return RetrySame(used + 1, BACKOFF_MS[used])
    if (
        not routing.fallback
        or failure.kind not in SWITCHABLE
        or state.switches >= routing.max_switches
    ):
        return GiveUp()
    if routing.pin_after_success and state.answered:
        return Stay()
    for pair in routing.candidates:
        if not routing.pinned and not usable(pair):
            continue
        model = _model_on(state, pair)
        if routing.pinned or (pair.provider, model) != (state.provider, state.asked_model):
            return SwitchTo(pair, model, failure.kind.value)
    return GiveUp()


def retry_event(state: State, retry: RetrySame) -> Retry:
    """The wait, as clients see it."""
    return Retry(
        retry=RetryBody(
            provider=state.provider,
            attempt=retry.attempt,
            wait_ms=retry.wait_ms,
            reason=BACKOFF_REASON,
        )
    )


def switch_events(state: State, switch: SwitchTo, cause: str, window: int) -> list[Event]:
    """What stands in the journal after the failed attempt, in this order.

    ``cause`` is the failure's text as it may be shown; ``window`` the new provider's, in tokens.
    """
    new = switch.pair
    fallback = FallbackBody(
        failed_provider=state.provider,
        failed_model=state.asked_model,
        new_provider=new.provider,
        new_model=new.model,
        attempt=state.switches + 1,
        user_tier=state.plan.routing.user_tier,
        reason=switch.reason,
        cause_error=_shortened(cause),
    )
    events: list[Event] = [ProviderFallback(fallback=fallback)]
    if state.provider == "anthropic" and new.provider != "anthropic":
        text = f"the prompt cache of anthropic is of no use to {new.provider}"
        events.append(CacheInvalidated(text=text))
    clears = _leaves(state, new)
    dropped = sum(bool(message.reasoning) for message in state.messages) if clears else 0
    if dropped:
        text = f"stored reasoning of {dropped} turn(s) dropped: {_name(new)} cannot read it"
        events.append(ReasoningInvalidated(text=text))
    effort = None if state.effort == state.plan.effort else state.plan.effort
    if switch.model != new.model:
        effort = ""
        text = (
            f"{_name(new)} refuses a history without reasoning: {switch.model} is used instead "
            "for the rest of the run, without effort"
        )
        events.append(ModelDowngraded(text=text))
    switched = ModelSwitched(
        provider=new.provider,
        model=switch.model,
        context_window=window,
        effort=effort,
        clear_reasoning=dropped > 0,
    )
    return [*events, switched]


def suppressed_event(state: State, failure: Failure) -> FallbackSuppressed:
    """Why the run fails where it could have gone on elsewhere."""
    return FallbackSuppressed(
        text=f"no fallback from {state.provider}, which served earlier turns of this run: "
        f"{failure.text}"
    )


def _model_on(state: State, pair: Pair) -> str:
    """The model that can take over this run's history: the pair's own, or its sibling."""
    if pair.provider != deepseek.DEEPSEEK.id:
        return pair.model
    bare = any(
        _lacks_reasoning(message, cleared=_leaves(state, pair)) for message in state.messages
    )
    return (deepseek.downgrade(pair.model) if bare else None) or pair.model


def _lacks_reasoning(message: Message, *, cleared: bool) -> bool:
    return message.role == "assistant" and (cleared or not message.reasoning)


def _leaves(state: State, pair: Pair) -> bool:
    return (pair.provider, pair.model) != (state.provider, state.asked_model)


def _name(pair: Pair) -> str:
    return f"{pair.provider}/{pair.model}"


def _shortened(cause: str) -> str:
    return cause if len(cause) <= CAUSE_LIMIT else f"{cause[:CAUSE_LIMIT]}…(truncated)"
