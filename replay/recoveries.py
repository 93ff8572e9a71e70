"""Proof of what followed a failed model call: within the plan's routing, told before it was done.

Which candidate was usable is not derived again: that was the world's, and is recorded.
"""

from __future__ import annotations

from events.plan import Pair
from events.vocabulary import (
    CacheInvalidated,
    Event,
    FallbackBody,
    ModelDowngraded,
    ModelSwitched,
    ProviderFallback,
    ReasoningInvalidated,
    Retry,
    type_of,
)
from replay.state import State


class Recoveries:
    """Follows the events between a failed call and the one that comes after it."""

    def __init__(self) -> None:
        self._announced: FallbackBody | None = None
        self._downgraded = False

    def problem(self, state: State, event: Event) -> str:
        """What is wrong with ``event`` after the failed call that ``state`` knows of, or ""."""
        routing = state.plan.routing
        match event:
            case Retry():
                if event.retry.attempt != state.retries + 1:
                    return f"retry {event.retry.attempt} after {state.retries}"
                if state.retries >= routing.retry_attempts:
                    return f"more than {routing.retry_attempts} retries"
            case ProviderFallback(fallback=announced):
                self._announced, self._downgraded = announced, False
                return self._fallback(state, announced)
            case CacheInvalidated() | ReasoningInvalidated():
                return ""
            case ModelDowngraded():
                self._downgraded = True
            case ModelSwitched():
                return self._switch(event)
            case _:
                return f"{type_of(event)} before the failed call was dealt with"
        return ""

    def _fallback(self, state: State, announced: FallbackBody) -> str:
        routing = state.plan.routing
        if not routing.fallback or state.switches >= routing.max_switches:
            return "the run may not leave its provider"
        if Pair(announced.new_provider, announced.new_model) not in routing.candidates:
            return f"{announced.new_provider}/{announced.new_model} is no candidate"
        failed = (announced.failed_provider, announced.failed_model, announced.attempt)
        derived = (state.provider, state.asked_model, state.switches + 1)
        return "" if failed == derived else f"the failed pair is derived as {derived}"

    def _switch(self, event: ModelSwitched) -> str:
        announced, self._announced = self._announced, None
        if announced is None or announced.new_provider != event.provider:
            return "a switch that was not announced"
        if event.model != announced.new_model and not self._downgraded:
            return f"a switch to {event.model}, announced was {announced.new_model}"
        return ""
