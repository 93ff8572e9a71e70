"""What a budget let an answer be stands in the journal, and its proof derives the same request."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from events.plan import Budget, RunPlan
from events.vocabulary import Event, ModelAnswered, ParentCall, Text
from replay.machine import Finish, closing, next_effect
from replay.request import hash_of, model_request
from replay.verify import verify
from tests.stories import PLAN, answers, committed, costs, fails, opens, stumbles, told

UNDER_BUDGET = replace(PLAN, budget=Budget(tokens=1000))
CHILD = {"root": "r_ab00000000000009", "parent": ParentCall("r_ab00000000000009", 4)}


def bounded(max_tokens: int) -> ModelAnswered:
    return replace(answers(), max_tokens=max_tokens)


def proven(answer: Event, plan: RunPlan = UNDER_BUDGET, **facts: object) -> str:
    """The first difference of a run that ends with ``answer``."""
    turn = [Text(text="ok"), costs(), answer]
    finish = next_effect(told(*opens(**facts), *turn, plan=plan))
    assert isinstance(finish, Finish)
    turn += closing(told(*opens(**facts), *turn, plan=plan), finish)
    return verify(plan, committed(opens(**facts), turn, plan=plan)).difference


def test_a_request_says_what_the_budget_lets_the_answer_be() -> None:
    state = told(*opens(), plan=UNDER_BUDGET)
    assert model_request(state, 70).max_tokens == 70
    assert hash_of(state, model_request(state, 70)) != hash_of(state, model_request(state))


@pytest.mark.parametrize("plan", [UNDER_BUDGET, replace(UNDER_BUDGET, max_tokens=70)])
def test_a_bounded_answer_is_proven(plan: RunPlan) -> None:
    assert proven(bounded(70), plan) == ""
    assert proven(replace(fails(), max_tokens=70), plan) == ""


def test_an_answer_under_the_budget_of_a_run_above_is_proven_bounded_or_not() -> None:
    assert proven(bounded(70), PLAN, **CHILD) == ""
    assert proven(answers(), PLAN, **CHILD) == ""


def test_another_bound_than_the_request_had_is_found() -> None:
    state = told(*opens(), Text(text="ok"), costs(), plan=UNDER_BUDGET)
    asked = hash_of(state, model_request(state, 70))
    assert "request hash" in proven(replace(bounded(71), request=asked))


@pytest.mark.parametrize(
    ("answer", "plan", "difference"),
    [
        (bounded(70), PLAN, "the run has none"),
        (bounded(70), replace(UNDER_BUDGET, max_tokens=69), "by the plan 69"),
        (answers(), UNDER_BUDGET, "does not bound its answer"),
    ],
)
def test_a_bound_that_no_budget_set_is_found(
    answer: ModelAnswered, plan: RunPlan, difference: str
) -> None:
    assert difference in proven(answer, plan)


@pytest.mark.parametrize("machine", [1, 2])
def test_runs_of_earlier_machines_left_it_to_the_vendor(machine: int) -> None:
    assert proven(answers(), machine=machine) == ""
    assert proven(bounded(70), machine=machine) == ""


def test_a_failed_attempt_is_proven_with_its_bound() -> None:
    state = told(*opens(), plan=UNDER_BUDGET)
    asked = hash_of(state, model_request(state, 70))
    failed = replace(stumbles(), request=asked, max_tokens=71)
    report = verify(UNDER_BUDGET, committed(opens(), [failed], plan=UNDER_BUDGET))
    assert "request hash" in report.difference
