"""Proof of journals whose model calls failed on the way: each lie is found where it stands."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from events.plan import Pair, Routing
from events.vocabulary import (
    Event,
    FallbackBody,
    ModelDowngraded,
    ModelSwitched,
    ProviderFallback,
    Retry,
    RetryBody,
)
from replay.machine import MACHINE_VERSION, Finish, closing, next_effect
from replay.verify import verify
from tests.stories import PLAN, answers, committed, costs, opens, stumbles, told

OTHER = Pair("openai", "gpt")
ROUTES = Routing(
    candidates=(Pair("mock", "mock-generic"), OTHER),
    pinned=False,
    fallback=True,
    max_switches=1,
    retry_attempts=1,
)
PLANNED = replace(PLAN, routing=ROUTES)


def waits(attempt: int = 1) -> Retry:
    return Retry(
        retry=RetryBody(provider="mock", attempt=attempt, wait_ms=100, reason="exponential backoff")
    )


def leaves(**fields: Any) -> ProviderFallback:
    given: dict[str, Any] = {
        "failed_provider": "mock",
        "failed_model": "mock-generic",
        "new_provider": "openai",
        "new_model": "gpt",
        "attempt": 1,
        "reason": "retryable",
    }
    return ProviderFallback(fallback=FallbackBody(**(given | fields)))


def goes(provider: str = "openai", model: str = "gpt") -> ModelSwitched:
    return ModelSwitched(provider=provider, model=model)


def difference(*middle: Event, machine: int = MACHINE_VERSION) -> str:
    """What ``verify`` says of a run with these events between its opening and its answer."""
    opening = opens(machine=machine)
    story = [*opening, *middle, costs(), answers()]
    state = told(*story, plan=PLANNED)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    commits = committed(
        opening, [*middle, costs(), answers(), *closing(state, finish)], plan=PLANNED
    )
    return verify(PLANNED, commits).difference


@pytest.mark.parametrize(
    "middle",
    [
        [stumbles(), waits()],
        [stumbles(partial=True), waits(), stumbles(partial=True), leaves(), goes()],
        [stumbles(), waits(), stumbles(), leaves(), goes()],
        [stumbles(), leaves(), ModelDowngraded(text="x"), goes(model="sibling")],
        [waits(4)],
    ],
)
def test_a_run_that_recovered_is_proven(middle: list[Event]) -> None:
    assert difference(*middle) == ""


@pytest.mark.parametrize(
    ("middle", "text"),
    [
        ([stumbles()], "usage before the failed call was dealt with"),
        ([stumbles(), waits(2)], "retry 2 after 0"),
        ([stumbles(), waits(), stumbles(), waits(2)], "more than 1 retries"),
        ([stumbles(partial=True), waits(), stumbles(partial=True), waits()], "retry 1 after 1"),
        (
            [stumbles(partial=True), waits(), stumbles(partial=True), waits(2)],
            "more than 1 retries",
        ),
        ([goes()], "a switch that was not announced"),
        ([stumbles(), goes()], "a switch that was not announced"),
        ([stumbles(), leaves(new_model="best"), goes()], "openai/best is no candidate"),
        ([stumbles(), leaves(failed_model="other"), goes()], "the failed pair is derived as"),
        ([stumbles(), leaves(attempt=2), goes()], "the failed pair is derived as"),
        ([stumbles(), leaves(), goes(model="best")], "a switch to best, announced was gpt"),
        (
            [stumbles(), leaves(), goes(), stumbles(), leaves(), goes()],
            "the run may not leave its provider",
        ),
        (
            [replace(stumbles(), request="f" * 64), waits()],
            "request hash",
        ),
        ([stumbles(), waits(0)], "retry 0 after 0"),
    ],
)
def test_a_lie_about_a_recovery_is_found(middle: list[Event], text: str) -> None:
    assert text in difference(*middle)


def test_a_run_of_the_first_machine_is_proven_by_its_own_rule() -> None:
    cut = [stumbles(partial=True), waits()]
    assert difference(*cut, *cut, *cut, machine=1) == ""
    assert "retry 2 after 0" in difference(*cut, stumbles(partial=True), waits(2), machine=1)


def test_failed_attempts_use_iterations_up() -> None:
    short = replace(PLANNED, max_iterations=2)
    state = told(*opens(), stumbles(), waits(), stumbles(), leaves(), goes(), plan=short)
    assert (state.spent, state.iteration) == (2, 0)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    assert finish.status == "failed"
