"""After a failed model call: again, elsewhere, or not at all; told as stories of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from events.plan import Pair, Routing, RunPlan
from events.vocabulary import (
    CacheInvalidated,
    Event,
    ModelAnswered,
    ModelAttemptFailed,
    ModelDowngraded,
    ModelSwitched,
    ProviderFallback,
    ReasoningInvalidated,
    type_of,
)
from loomcycle.providers.base import ProviderError
from loomcycle.providers.errors import TransportFailure
from loomcycle.routing.recovery import (
    BACKOFF_MS,
    GiveUp,
    RetrySame,
    Stay,
    SwitchTo,
    failure_of,
    recover,
    retry_event,
    switch_events,
)
from replay.fold import apply
from replay.machine import CallModel, Finish, closing, next_effect
from replay.state import State
from tests.stories import answers, calls, costs, opens, results, told

CLAUDE = Pair("anthropic", "claude")
GPT = Pair("openai", "gpt")
THINKER = Pair("deepseek", "deepseek-reasoner")

BUSY = failure_of(ProviderError("anthropic 503: busy"))
LIMITED = failure_of(ProviderError("anthropic 429: slow down"))
RETIRED = failure_of(ProviderError("anthropic 404: this model has been deprecated"))
CUT = failure_of(TransportFailure("stream read: closed", partial=True), partial=True)
ANYWHERE: Callable[[Pair], bool] = lambda pair: True  # noqa: E731


def plan(**routing: Any) -> RunPlan:
    given: dict[str, Any] = {"candidates": (CLAUDE, GPT), "pinned": False, "fallback": True}
    return RunPlan(
        agent="teller",
        provider="anthropic",
        model="claude",
        effort="high",
        context_window=200_000,
        routing=Routing(**(given | routing)),
    )


def after(state: State, *events: Event) -> State:
    for event in events:
        apply(state, event, state.n + 1, state.n + 1)
    return state


def failed(state: State, *, partial: bool = False) -> ModelAttemptFailed:
    return ModelAttemptFailed(
        request="r", iteration=state.iteration, attempt=state.attempt, error="e", partial=partial
    )


def retried(state: State, *, partial: bool = False) -> State:
    after(state, failed(state, partial=partial))
    return after(state, retry_event(state, RetrySame(1, 100)))


def switched(state: State, switch: SwitchTo, window: int = 128_000) -> State:
    after(state, failed(state))
    return after(state, *switch_events(state, switch, "e", window))


# --- the same pair again


def test_retries_of_a_pair_wait_longer_and_longer_until_they_are_used_up() -> None:
    state = told(*opens(), plan=plan(retry_attempts=5, fallback=False))
    for number, wait in enumerate(BACKOFF_MS, 1):
        assert recover(state, BUSY, ANYWHERE) == RetrySame(number, wait)
        retried(state)
    assert BACKOFF_MS == (100, 300, 900, 2700, 8100)
    assert recover(state, BUSY, ANYWHERE) == GiveUp()


def test_a_stream_that_breaks_uses_a_retry_up_like_any_failed_call() -> None:
    state = told(*opens(), plan=plan(retry_attempts=2))
    retried(state, partial=True)
    assert recover(state, BUSY, ANYWHERE) == RetrySame(2, 300)
    assert recover(state, CUT, ANYWHERE) == RetrySame(2, 300)


def test_a_model_whose_streams_always_break_is_left_when_its_retries_are_used_up() -> None:
    state = told(*opens(), plan=plan(retry_attempts=2))
    assert recover(state, CUT, ANYWHERE) == RetrySame(1, 100)
    retried(state, partial=True)
    retried(state, partial=True)
    assert recover(state, CUT, ANYWHERE) == SwitchTo(GPT, "gpt", "retryable")


def test_a_run_of_the_first_machine_counts_from_one_again_for_its_whole_life() -> None:
    state = told(*opens(machine=1), plan=plan(retry_attempts=2))
    retried(state)
    assert recover(state, BUSY, ANYWHERE) == RetrySame(2, 300)
    assert recover(state, CUT, ANYWHERE) == RetrySame(1, 100)
    retried(state, partial=True)
    assert recover(state, CUT, ANYWHERE) == RetrySame(1, 100)
    assert recover(state, BUSY, ANYWHERE) == RetrySame(2, 300)


def test_an_answered_turn_gives_all_retries_back() -> None:
    state = retried(told(*opens(), plan=plan(retry_attempts=1, fallback=False)))
    assert recover(state, BUSY, ANYWHERE) == GiveUp()
    after(state, calls("t1"), costs(), answers("tool_use"), results("t1"))
    assert recover(state, BUSY, ANYWHERE) == RetrySame(1, 100)


def test_a_wait_inside_of_a_call_is_no_retry() -> None:
    state = told(*opens(), plan=plan(retry_attempts=1))
    after(state, retry_event(state, RetrySame(1, 10_000)))
    assert recover(state, BUSY, ANYWHERE) == RetrySame(1, 100)


def test_broken_streams_that_count_no_retries_are_given_up_even_without_an_iteration_cap() -> None:
    unbounded = replace(plan(retry_attempts=1, fallback=False), max_iterations=2**20)
    state = told(*opens(machine=1), plan=unbounded)
    tries = 0
    while recover(state, CUT, ANYWHERE) != GiveUp():
        retried(state, partial=True)
        tries += 1
    assert tries == 31


@pytest.mark.parametrize(
    "text",
    ["openai 400: bad", "openai 401: who", "openai 404: no such model", "overloaded_error: busy"],
)
def test_what_is_permanent_or_unknown_is_neither_retried_nor_switched(text: str) -> None:
    state = told(*opens(), plan=plan(retry_attempts=5))
    assert recover(state, failure_of(ProviderError(text)), ANYWHERE) == GiveUp()


# --- another pair


def test_the_next_usable_candidate_takes_over() -> None:
    state = told(*opens(), plan=plan(candidates=(CLAUDE, THINKER, GPT)))
    assert recover(state, BUSY, ANYWHERE) == SwitchTo(THINKER, "deepseek-reasoner", "retryable")
    assert recover(state, BUSY, lambda pair: pair == GPT) == SwitchTo(GPT, "gpt", "retryable")
    assert recover(state, BUSY, lambda pair: False) == GiveUp()


def test_retries_come_before_the_switch() -> None:
    state = told(*opens(), plan=plan(retry_attempts=1))
    assert recover(state, LIMITED, ANYWHERE) == RetrySame(1, 100)
    assert recover(retried(state), LIMITED, ANYWHERE) == SwitchTo(GPT, "gpt", "retryable")


def test_a_retired_model_is_left_at_once() -> None:
    state = told(*opens(), plan=plan(retry_attempts=5))
    assert recover(state, RETIRED, ANYWHERE) == SwitchTo(GPT, "gpt", "deprecated")


def test_without_leave_to_fall_back_the_failure_is_the_runs() -> None:
    state = told(*opens(), plan=plan(fallback=False))
    assert recover(state, BUSY, ANYWHERE) == GiveUp()


def test_switches_are_counted_and_limited() -> None:
    state = told(*opens(), plan=plan(max_switches=2))
    switched(state, SwitchTo(GPT, "gpt", "retryable"))
    assert recover(state, BUSY, ANYWHERE) == SwitchTo(CLAUDE, "claude", "retryable")
    switched(state, SwitchTo(CLAUDE, "claude", "retryable"))
    assert recover(state, BUSY, ANYWHERE) == GiveUp()


def test_a_new_pair_has_its_own_retries() -> None:
    state = retried(told(*opens(), plan=plan(retry_attempts=1)))
    switched(state, SwitchTo(GPT, "gpt", "retryable"))
    assert recover(state, BUSY, ANYWHERE) == RetrySame(1, 100)


def test_a_pinned_agent_switches_to_itself_until_the_cap() -> None:
    state = told(*opens(), plan=plan(candidates=(CLAUDE,), pinned=True, max_switches=1))
    again = recover(state, BUSY, lambda pair: False)
    assert again == SwitchTo(CLAUDE, "claude", "retryable")
    assert isinstance(again, SwitchTo)
    switched(state, again)
    assert recover(state, BUSY, ANYWHERE) == GiveUp()


def test_after_a_success_a_latched_run_stays() -> None:
    state = told(*opens(), plan=plan(pin_after_success=True))
    assert isinstance(recover(state, BUSY, ANYWHERE), SwitchTo)
    after(state, calls("t1"), costs(), answers("tool_use"), results("t1"))
    assert recover(state, BUSY, ANYWHERE) == Stay()


def test_the_last_iteration_is_not_spent_on_a_retry_that_could_not_be_made() -> None:
    state = told(*opens(), plan=replace(plan(retry_attempts=5), max_iterations=2))
    assert recover(state, BUSY, ANYWHERE) == RetrySame(1, 100)
    assert recover(retried(state), BUSY, ANYWHERE) == GiveUp()
    assert next_effect(state) == CallModel(0, 2)


# --- what a switch says


def says(state: State, switch: SwitchTo, cause: str = "busy") -> dict[str, Any]:
    after(state, failed(state))
    return {type_of(event): event for event in switch_events(state, switch, cause, 128_000)}


def thoughtful(state: State) -> State:
    turn = ModelAnswered(request="?", iteration=0, stop_reason="tool_use", reasoning="because")
    return after(state, calls("t1"), costs(), turn, results("t1"))


def test_a_switch_tells_who_failed_and_who_goes_on() -> None:
    state = told(*opens(), plan=plan(user_tier="gold"))
    events = says(state, SwitchTo(GPT, "gpt", "retryable"), "x" * 201)
    assert list(events) == ["provider_fallback", "cache_invalidated", "model.switched"]
    fallback = events["provider_fallback"].fallback
    assert (fallback.failed_provider, fallback.failed_model) == ("anthropic", "claude")
    assert (fallback.new_provider, fallback.new_model) == ("openai", "gpt")
    assert (fallback.attempt, fallback.user_tier, fallback.reason) == (1, "gold", "retryable")
    assert fallback.cause_error == "x" * 200 + "…(truncated)"
    assert events["model.switched"] == ModelSwitched(
        provider="openai", model="gpt", context_window=128_000
    )


def test_all_that_is_lost_is_told_in_order() -> None:
    state = thoughtful(told(*opens(), plan=plan()))
    events = says(state, SwitchTo(THINKER, "deepseek-chat", "retryable"))
    assert [type(event) for event in events.values()] == [
        ProviderFallback, CacheInvalidated, ReasoningInvalidated, ModelDowngraded, ModelSwitched,
    ]  # fmt: skip
    assert events["provider_fallback"].fallback.new_model == "deepseek-reasoner"
    assert events["model.switched"] == ModelSwitched(
        provider="deepseek",
        model="deepseek-chat",
        context_window=128_000,
        effort="",
        clear_reasoning=True,
    )


def test_a_thinking_deepseek_takes_a_fresh_history_only() -> None:
    routes = plan(candidates=(CLAUDE, THINKER))
    fresh = told(*opens(), plan=routes)
    assert recover(fresh, BUSY, ANYWHERE) == SwitchTo(THINKER, "deepseek-reasoner", "retryable")
    assert recover(thoughtful(fresh), BUSY, ANYWHERE) == SwitchTo(
        THINKER, "deepseek-chat", "retryable"
    )


def test_a_failed_sibling_is_not_chosen_again_in_the_name_of_its_candidate() -> None:
    state = thoughtful(told(*opens(), plan=plan(candidates=(CLAUDE, THINKER))))
    switched(state, SwitchTo(THINKER, "deepseek-chat", "retryable"))
    assert recover(state, BUSY, ANYWHERE) == SwitchTo(CLAUDE, "claude", "retryable")
    assert recover(state, BUSY, lambda pair: pair == THINKER) == GiveUp()


def test_effort_comes_back_with_a_model_that_takes_it() -> None:
    state = thoughtful(told(*opens(), plan=plan()))
    switched(state, SwitchTo(THINKER, "deepseek-chat", "retryable"))
    assert state.effort == ""
    switched(state, SwitchTo(GPT, "gpt", "retryable"))
    assert (state.effort, state.asked_model, state.context_window) == ("high", "gpt", 128_000)


def test_a_pair_that_goes_on_itself_loses_nothing() -> None:
    state = thoughtful(told(*opens(), plan=plan(candidates=(CLAUDE,), pinned=True)))
    events = says(state, SwitchTo(CLAUDE, "claude", "retryable"))
    assert list(events) == ["provider_fallback", "model.switched"]
    assert any(message.reasoning for message in after(state, *events.values()).messages)


def test_another_model_of_anthropic_keeps_the_cache_silent_but_not_the_reasoning() -> None:
    haiku = Pair("anthropic", "haiku")
    state = thoughtful(told(*opens(), plan=plan(candidates=(CLAUDE, haiku))))
    events = says(state, SwitchTo(haiku, "haiku", "retryable"))
    assert list(events) == ["provider_fallback", "reasoning_invalidated", "model.switched"]


def test_the_end_names_the_pair_that_served_last() -> None:
    state = thoughtful(told(*opens(), plan=plan()))
    switched(state, SwitchTo(GPT, "gpt", "retryable"))
    after(
        state,
        answers(),
    )
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    done = closing(state, finish)[0]
    assert (done.usage.provider, done.usage.model) == ("openai", "gpt")  # type: ignore[attr-defined]
