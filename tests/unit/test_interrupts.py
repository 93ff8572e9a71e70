"""Questions to people: ids that sort, a cap that parallel calls share, and what answers give."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.vocabulary import CallWaiting, InterruptClosed
from replay.interrupts import interrupt_id, open_questions, result
from replay.machine import CallTools, CloseCall, Park, next_effect
from replay.state import State
from tests.stories import answers, calls, opens, told

RUN = "r_ab00000000000001"


def asks(count: int) -> State:
    """A turn of ``count`` questions, none of them asked yet."""
    turn = [calls(f"t{i}", "Interruption", '{"op":"ask","question":"?"}') for i in range(count)]
    return told(*opens(), *turn, answers("tool_use"))


def waits(call: str, ref: str, until_ns: int = 0) -> CallWaiting:
    return CallWaiting(tool_use_id=call, kind="answer", ref=ref, until_ns=until_ns)


def closed(ref: str, status: str = "resolved", **fields: object) -> InterruptClosed:
    return InterruptClosed(interrupt_id=ref, status=status, **fields)  # type: ignore[arg-type]


def test_ids_follow_from_the_call_and_sort_by_time() -> None:
    first, again = interrupt_id(RUN, 7, 0, 100), interrupt_id(RUN, 7, 0, 100)
    assert first == again
    assert len(first) == len("intr_") + 16 + 8
    others = {interrupt_id(RUN, 8, 0, 100), interrupt_id(RUN, 7, 1, 100)}
    assert first not in others
    assert len(others) == 2
    assert interrupt_id(RUN, 7, 0, 99) < first < interrupt_id(RUN, 7, 0, 2**62)


@given(count=st.integers(1, 6), cap=st.integers(1, 7), order=st.randoms())
def test_as_many_parallel_questions_are_asked_as_the_cap_allows_in_any_order(
    count: int, cap: int, order: object
) -> None:
    state = asks(count)
    turn = list(state.calls)
    order.shuffle(turn)  # type: ignore[attr-defined]
    asked = []
    for call in turn:
        if open_questions(state, call.n) < cap:
            asked.append(call.n)
            call.waiting = waits(call.id, f"intr_{call.n}")
    assert sorted(asked) == [call.n for call in state.calls[:cap]]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Interruption", '{"op":"notify","message":"x"}'),
        ("Interruption", '{"op":"ask","question":""}'),
        ("Interruption", '{"op":"ask","question":1}'),
        ("Interruption", '"ask"'),
        ("Read", '{"op":"ask","question":"?"}'),
    ],
)
def test_calls_that_ask_nothing_do_not_count(name: str, arguments: str) -> None:
    state = told(*opens(), calls("t1", name, arguments), answers("tool_use"))
    assert open_questions(state, state.calls[0].n + 1) == 0


def test_settled_questions_do_not_count() -> None:
    state = told(
        *opens(),
        calls("t1", "Interruption", '{"op":"ask","question":"?"}'),
        answers("tool_use"),
        waits("t1", "intr_1"),
    )
    assert open_questions(state, 99) == 1
    state = told(
        *opens(),
        calls("t1", "Interruption", '{"op":"ask","question":"?"}'),
        answers("tool_use"),
        waits("t1", "intr_1"),
        closed("intr_1"),
    )
    assert open_questions(state, 99) == 0


def test_questions_are_asked_before_other_calls_run_and_the_run_waits_for_the_first_deadline() -> (
    None
):
    turn = [calls("t1"), calls("t2", "Interruption"), calls("t3", "Interruption")]
    effect = next_effect(told(*opens(), *turn, answers("tool_use")))
    assert isinstance(effect, CallTools)
    assert [call.id for call in effect.calls] == ["t2", "t3"]
    waiting = told(
        *opens(), *turn[1:], answers("tool_use"), waits("t2", "a", 50), waits("t3", "b", 40)
    )
    assert next_effect(waiting) == Park("calls", 40)


def test_an_answer_closes_the_call_that_asked() -> None:
    state = told(
        *opens(),
        calls("t1", "Interruption"),
        calls("t2", "Interruption"),
        answers("tool_use"),
        waits("t1", "a"),
        waits("t2", "b"),
        closed("b", answer="yes", resolved_by="api", resolved_ns=1_500_000_000),
    )
    effect = next_effect(state)
    assert isinstance(effect, CloseCall)
    assert effect.call.id == "t2"
    assert json.loads(effect.text) == {
        "interrupt_id": "b",
        "answer": "yes",
        "resolved_at": "1970-01-01T00:00:01.5Z",
        "resolved_by": "api",
    }
    assert not effect.is_error


@pytest.mark.parametrize(
    ("status", "words"),
    [("timed_out", ["timed_out", "a"]), ("cancelled", ["cancelled", "resolved_by=agent_cancel"])],
)
def test_a_question_without_answer_is_an_error_result(status: str, words: list[str]) -> None:
    call = asks(1).calls[0]
    text, is_error = result(call, waits("t0", "a"), closed("a", status, resolved_by="agent_cancel"))
    assert is_error
    assert all(word in text for word in words)
