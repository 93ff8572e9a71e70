"""Whether an answer fits a schema, and what the model is told when it does not."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from events.plan import RunPlan, decode_plan, encode_plan
from events.vocabulary import AnswerRejected, Event, OutputRejected, Text
from replay.machine import (
    MACHINE_VERSION,
    NO_ANSWER,
    AwaitInput,
    CallModel,
    Finish,
    RejectOutput,
    closing,
    next_effect,
    rejection,
)
from replay.output import MAX_DEPTH, MAX_PROBLEM, TOO_DEEP, problem, schema_problem
from replay.request import model_request
from replay.verify import verify
from tests.stories import (
    PLAN,
    answers,
    calls,
    committed,
    costs,
    goes_on,
    opens,
    results,
    says,
    told,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def raw(schema: Any) -> Raw:
    return Raw(json.dumps(schema).encode())


@pytest.mark.parametrize("text", ['{"name":"Ann"}', ' \n{"name": "Ann", "age": 3}\n'])
def test_an_answer_that_fits_has_no_problem(text: str) -> None:
    assert problem(raw(PERSON), text) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not JSON"),
        ("", "not JSON"),
        ('{"name":"Ann"} and more', "not JSON"),
        ('```json\n{"name":"Ann"}\n```', "a code fence is not JSON"),
        ("{}", "/: 'name' is a required property"),
        ('{"name":"Ann","age":-1}', "/age: -1 is less than the minimum of 0"),
        ('{"name":NaN}', "not JSON"),
    ],
)
def test_an_answer_that_does_not_fit_is_explained_with_its_place(text: str, said: str) -> None:
    assert said in problem(raw(PERSON), text)


def test_a_place_is_a_json_pointer() -> None:
    schema = {"properties": {"a/b": {"items": {"type": "string"}}}}
    assert problem(raw(schema), '{"a/b":["x",1]}') == "/a~1b/1: 1 is not of type 'string'"


def test_an_explanation_is_short_however_long_the_answer() -> None:
    text = json.dumps(["x" * 1000] * 1000)
    said = problem(raw({"type": "object"}), text)
    assert said.startswith("/: ")
    assert len(said) <= MAX_PROBLEM + 1


LISTS = {"$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}, "$ref": "#/$defs/list"}


@pytest.mark.parametrize("levels", [MAX_DEPTH + 2, 900, 100_000])
def test_an_answer_nested_too_deeply_is_refused_whatever_the_stack(levels: int) -> None:
    assert problem(raw(LISTS), "[" * levels + "]" * levels) == f"/: {TOO_DEEP}"


def test_an_answer_as_deep_as_allowed_is_checked() -> None:
    assert problem(raw(LISTS), "[" * MAX_DEPTH + "]" * MAX_DEPTH) == ""


def test_a_schema_that_refers_to_itself_without_end_is_a_problem_and_no_crash() -> None:
    assert "the schema cannot be used" in problem(raw({"$ref": "#"}), "1")


def test_unique_items_of_a_huge_answer_are_checked_in_linear_time() -> None:
    rows: list[Any] = [{"id": i} for i in range(20_000)]
    began = time.process_time()
    assert problem(raw({"uniqueItems": True}), json.dumps(rows)) == ""
    assert problem(raw({"uniqueItems": True}), json.dumps([*rows, {"id": 7.0}])).startswith("/: ")
    assert time.process_time() - began < 5


def test_true_and_one_are_different_items() -> None:
    assert problem(raw({"uniqueItems": True}), "[1, true, 0, false]") == ""


def test_no_reference_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a network was asked")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    elsewhere = {"$ref": "http://127.0.0.1:1/person.json"}
    assert "the schema cannot be used" in problem(raw(elsewhere), "{}")
    assert "leads nowhere" in schema_problem(elsewhere)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (PERSON, ""),
        (True, ""),
        ({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, ""),
        ({"$ref": "#/$defs/missing"}, "leads nowhere"),
        ({"type": "person"}, "/type: 'person' is not valid"),
        ([], "/: []"),
    ],
)
def test_a_schema_is_checked_before_any_answer(schema: Any, said: str) -> None:
    assert said in schema_problem(schema)
    assert bool(said) == bool(schema_problem(schema))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_every_json_value_fits_the_schema_that_allows_all(value: Any) -> None:
    assert problem(raw({}), json.dumps(value)) == ""


# --- in the machine -----------------------------------------------------------------------

STRICT = replace(PLAN, output_schema=raw(PERSON))
WRONG: list[Event] = [Text(text="hello"), costs(), answers()]
RIGHT: list[Event] = [Text(text='{"name":"Ann"}'), costs(), answers()]


def test_a_plan_keeps_its_schema_byte_for_byte() -> None:
    again = decode_plan(encode_plan(STRICT)[1])
    assert bytes(again.output_schema) == bytes(STRICT.output_schema)  # type: ignore[arg-type]
    assert decode_plan(encode_plan(PLAN)[1]) == PLAN


def rejected(machine: int = MACHINE_VERSION) -> Event:
    state = told(*opens(machine=machine), *WRONG, plan=STRICT)
    effect = next_effect(state)
    assert isinstance(effect, RejectOutput)
    return rejection(state, effect)


def test_an_answer_that_fits_ends_the_run() -> None:
    assert next_effect(told(*opens(), *RIGHT, plan=STRICT)) == Finish("completed", "end_turn")


def test_the_model_is_told_once_what_is_wrong() -> None:
    state = told(*opens(), *WRONG, rejected(), plan=STRICT)
    asked = model_request(state).messages
    assert [m.role for m in asked] == ["user", "assistant", "user"]
    assert "does not fit the required JSON Schema (not JSON" in asked[-1].blocks[0].text  # type: ignore[union-attr]
    assert next_effect(told(*opens(), *WRONG, rejected(), *RIGHT, plan=STRICT)) == Finish(
        "completed", "end_turn"
    )


def test_a_second_wrong_answer_fails_the_run() -> None:
    finish = next_effect(told(*opens(), *WRONG, rejected(), *WRONG, plan=STRICT))
    assert isinstance(finish, Finish)
    assert (finish.status, finish.stop_reason) == ("failed", "output_invalid")
    assert finish.error.startswith("output_schema: not JSON")


def test_an_interactive_run_with_a_fitting_answer_waits_for_the_next_input() -> None:
    state = told(*opens(interactive=True), *RIGHT, plan=STRICT)
    assert isinstance(next_effect(state), AwaitInput)


ONCE = replace(STRICT, max_iterations=1)
TOOLS: list[Event] = [calls("t1"), costs(), answers("tool_use"), results("t1")]


def test_the_repair_is_allowed_beyond_the_turn_cap() -> None:
    state = told(*opens(), *WRONG, rejected(), plan=ONCE)
    assert next_effect(state) == CallModel(1, 1)
    goes_on(state, *RIGHT)
    assert next_effect(state) == Finish("completed", "end_turn")


def test_a_repair_beyond_the_cap_that_does_not_fit_fails_the_run() -> None:
    finish = next_effect(told(*opens(), *WRONG, rejected(), *WRONG, plan=ONCE))
    assert isinstance(finish, Finish)
    assert (finish.status, finish.stop_reason) == ("failed", "output_invalid")


@pytest.mark.parametrize("story", [TOOLS, [*WRONG, rejected(), *TOOLS]])
def test_a_run_without_an_answer_at_its_cap_fails(story: list[Event]) -> None:
    finish = next_effect(told(*opens(), *story, plan=ONCE))
    assert finish == Finish("failed", "output_invalid", NO_ANSWER)


@pytest.mark.parametrize("machine", [1, 2])
@pytest.mark.parametrize("story", [TOOLS, [*WRONG, rejected(2)]])
def test_older_machines_are_content_at_their_cap(story: list[Event], machine: int) -> None:
    state = told(*opens(machine=machine), *story, plan=ONCE)
    assert next_effect(state) == Finish("completed", "max_iterations")


def test_each_input_has_a_repair_of_its_own() -> None:
    first = [*WRONG, rejected(), *RIGHT, says("Another.", inbox="i_1")]
    state = told(*opens(interactive=True), *first, *WRONG, plan=STRICT)
    assert isinstance(next_effect(state), RejectOutput)
    goes_on(state, rejected(), *WRONG)
    assert isinstance(next_effect(state), Finish)


def test_older_machines_repair_once_a_run() -> None:
    first = [*WRONG, rejected(2), *RIGHT, says("Another.", inbox="i_1")]
    state = told(*opens(interactive=True, machine=2), *first, *WRONG, plan=STRICT)
    assert isinstance(next_effect(state), Finish)


@pytest.mark.parametrize("machine", [2, MACHINE_VERSION])
@pytest.mark.parametrize("plan", [STRICT, replace(STRICT, max_iterations=2)])
def test_a_repaired_run_is_proven_and_a_forged_rejection_is_not(
    plan: RunPlan, machine: int
) -> None:
    opening, told_off = opens(machine=machine), rejected(machine)
    story = [opening, [*WRONG, told_off], RIGHT]
    state = told(*(event for group in story for event in group), plan=plan)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    ended = [*story[:2], [*RIGHT, *closing(state, finish)]]
    assert verify(plan, committed(*ended, plan=plan)).difference == ""
    assert "another reason" in difference(plan, opening, [*WRONG, made_up(told_off)])
    assert "rejected where" in difference(plan, opening, [*RIGHT, made_up(told_off)])
    other = rejected(MACHINE_VERSION + 2 - machine)
    assert "the rejection is derived as" in difference(plan, opening, [*WRONG, other])


def made_up(event: Event) -> Event:
    """A rejection of this kind, for a reason that is none."""
    if isinstance(event, AnswerRejected):
        return AnswerRejected(text="whatever")
    return OutputRejected(error="whatever")


def difference(plan: RunPlan, *groups: list[Event]) -> str:
    return verify(plan, committed(*groups, plan=plan)).difference
