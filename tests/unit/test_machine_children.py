"""Children of an Agent call as the machine sees them, and as a verifier does."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from events.plan import ToolSpec
from events.vocabulary import (
    CallPrepared,
    CallWaiting,
    ChildFinished,
    ChildStarted,
    Event,
    InterruptClosed,
    RunFinished,
)
from loomcycle import approvals
from replay.children import ChildIds, child_ids, outcome
from replay.machine import CallTools, CloseCall, Finish, Park, StartChildren, next_effect
from replay.state import State
from replay.verify import verify
from tests.stories import PLAN, answers, calls, cancels, claims, committed, opens, results, told

SPAWNS = '{"op":"parallel_spawn","spawns":[%s]}'
RUN, CALL_N = "r_ab00000000000001", 4
"""The run of the stories, and where its first call stands in them."""

AGENTIC = replace(
    PLAN,
    tools=(*PLAN.tools, ToolSpec("Agent", "spawns", Raw(b"{}"))),
    max_concurrent_children=2,
)


def asks(width: int = 3, call_id: str = "t1") -> list[Event]:
    entries = ",".join(f'{{"name":"w{i}","prompt":"p{i}"}}' for i in range(width))
    return [*opens(), calls(call_id, "Agent", SPAWNS % entries), answers("tool_use")]


def waits(call_id: str = "t1") -> CallWaiting:
    return CallWaiting(tool_use_id=call_id, kind="children")


def starts(index: int, call_id: str = "t1", name: str = "") -> ChildStarted:
    run, session, agent_id = child_ids(RUN, CALL_N, index)
    return ChildStarted(
        tool_use_id=call_id, index=index, run=run, session=session,
        agent=name or f"w{index}", agent_id=agent_id,
    )  # fmt: skip


def ends(index: int, text: str = "done", call_id: str = "t1") -> ChildFinished:
    run = child_ids(RUN, CALL_N, index).run
    return ChildFinished(tool_use_id=call_id, index=index, run=run, ok=True, text=text)


def refuses(index: int, error: str = "no such") -> ChildFinished:
    return ChildFinished(tool_use_id="t1", index=index, error=error)


def state_of(*events: Event) -> State:
    return told(*events, plan=AGENTIC)


def due(state: State) -> list[int]:
    effect = next_effect(state)
    assert isinstance(effect, StartChildren)
    return [index for index, _ in effect.spawns]


def test_a_call_that_waits_has_its_first_children_started() -> None:
    effect = next_effect(state_of(*asks(), waits()))
    assert isinstance(effect, StartChildren)
    assert [(i, s.name, s.prompt) for i, s in effect.spawns] == [(0, "w0", "p0"), (1, "w1", "p1")]


def test_a_child_that_ended_makes_room_for_the_next() -> None:
    begun = [*asks(), waits(), starts(0), starts(1)]
    assert next_effect(state_of(*begun)) == Park("calls")
    assert due(state_of(*begun, ends(1))) == [2]


def test_one_that_could_not_be_started_takes_no_room() -> None:
    assert due(state_of(*asks(4), waits(), refuses(0))) == [1, 2]


def test_results_stand_in_the_order_of_the_entries() -> None:
    state = state_of(
        *asks(), waits(), starts(0), refuses(1), ends(0, "zero"), starts(2), ends(2, "")
    )
    effect = next_effect(state)
    assert isinstance(effect, CloseCall)
    assert not effect.is_error
    assert json.loads(effect.text) == {
        "results": [
            {"index": 0, "agent": "w0", "ok": True, "output": "zero"},
            {"index": 1, "agent": "w1", "ok": False, "error": "no such"},
            {"index": 2, "agent": "w2", "ok": True},
        ]
    }


@pytest.mark.parametrize(("ok", "given"), [(True, ("said", False)), (False, ("why", True))])
def test_a_single_spawn_gives_back_what_the_child_said(ok: bool, given: tuple[str, bool]) -> None:
    call = calls("t1", "Agent", '{"name":"w0","prompt":"p","spawns":null,"def_id":null}')
    end = replace(ends(0), ok=ok, text="said", error="why")
    state = state_of(*opens(), call, answers("tool_use"), waits(), starts(0), end)
    effect = next_effect(state)
    assert isinstance(effect, CloseCall)
    assert (effect.text, effect.is_error) == given


def test_spawning_comes_first_and_other_calls_run_beside_the_children() -> None:
    events = [
        *opens(),
        calls("t1", "Agent", SPAWNS % '{"name":"w0","prompt":"p"}'),
        calls("t2", "Read"),
        answers("tool_use"),
    ]
    effect = next_effect(state_of(*events))
    assert isinstance(effect, CallTools)
    assert [call.id for call in effect.calls] == ["t1"]
    assert due(state_of(*events, waits())) == [0]
    effect = next_effect(state_of(*events, waits(), starts(0)))
    assert isinstance(effect, CallTools)
    assert [call.id for call in effect.calls] == ["t2"]
    assert next_effect(state_of(*events, waits(), starts(0), results("t2"))) == Park("calls")


def test_a_cancel_does_not_wait_for_children() -> None:
    state = state_of(*asks(), waits(), starts(0), cancels())
    assert isinstance(next_effect(state), Finish)


def test_children_are_those_of_the_input_as_hooks_left_it() -> None:
    rewritten = CallPrepared(
        tool_use_id="t1", input=Raw(b'{"name":"other","prompt":"instead"}'), notes=("x",)
    )
    effect = next_effect(state_of(*asks(), rewritten, waits()))
    assert isinstance(effect, StartChildren)
    assert [(s.name, s.prompt) for _, s in effect.spawns] == [("other", "instead")]


def test_children_are_those_of_the_input_as_a_person_left_it() -> None:
    asked = CallWaiting(tool_use_id="t1", kind="approval", ref="intr_1", bound="b")
    edit = InterruptClosed(
        interrupt_id="intr_1", status="resolved", answer='{"name":"other","prompt":"instead"}'
    )
    effect = next_effect(state_of(*asks(), asked, edit, waits()))
    assert isinstance(effect, StartChildren)
    assert [(s.name, s.prompt) for _, s in effect.spawns] == [("other", "instead")]


def test_ids_follow_from_the_call_and_share_their_digits() -> None:
    ids = child_ids(RUN, 4, 0)
    assert len({ids, child_ids(RUN, 4, 1), child_ids(RUN, 5, 0), child_ids("r_x", 4, 0)}) == 4
    assert {part[2:] for part in ids} == {ids.run[2:]}
    assert len(ids.run) == 18


IDS = ChildIds("r_1", "s_1", "a_1")


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        (RunFinished(status="completed"), (True, "[sub-agent agent_id=a_1]\nsaid", "")),
        (
            RunFinished(status="failed", error="mock 500: broken"),
            (False, "", 'sub-agent "w" failed (agent=a_1 session=s_1 run=r_1): mock 500: broken'),
        ),
        (
            RunFinished(status="cancelled", stop_reason="enough"),
            (False, "", 'sub-agent "w" failed (agent=a_1 session=s_1 run=r_1): cancelled: enough'),
        ),
    ],
    ids=["completed", "failed", "cancelled"],
)
def test_what_a_parent_is_told(finished: RunFinished, expected: tuple[bool, str, str]) -> None:
    assert outcome("w", IDS, finished, "said") == expected


GOOD: list[list[Event]] = [
    asks(2),
    [waits(), starts(0), starts(1)],
    [ends(1)],
    [claims(), ends(0)],
]


def difference(*groups: list[Event]) -> str:
    return verify(AGENTIC, committed(*groups, plan=AGENTIC)).difference


def result_of(*groups: list[Event]) -> Event:
    effect = next_effect(state_of(*[event for group in groups for event in group]))
    assert isinstance(effect, CloseCall)
    return results("t1", effect.text, "Agent")


def test_a_fan_out_is_proven() -> None:
    assert difference(*GOOD, [result_of(*GOOD)]) == ""


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([asks(2), [waits(), starts(1)]], "entry 0"),
        ([asks(2), [waits(), starts(0, name="stranger")]], "derived"),
        ([asks(2), [waits(), replace(starts(0), run="r_00")]], "derived"),
        ([asks(3), [waits(), starts(0), starts(1), starts(2)]], "do nothing"),
        ([asks(2), [waits(), starts(0), refuses(0)]], "entry 1"),
        ([*GOOD, [results("t1", "forged", "Agent")]], "derived"),
    ],
    ids=["order", "agent", "run", "too many", "refused twice", "result"],
)
def test_a_journal_that_says_otherwise_is_not(groups: list[list[Event]], said: str) -> None:
    assert said in difference(*groups)


def test_children_need_leave_where_their_call_does() -> None:
    guarded = replace(AGENTIC, require_approval=("Agent",))
    state = told(*asks(1), plan=guarded)
    asked = approvals.question(state, state.pending()[0], 5).waiting
    answer = InterruptClosed(interrupt_id=asked.ref, status="resolved", answer="approve")

    def difference(*events: Event) -> str:
        return verify(guarded, committed([*asks(1), *events], plan=guarded)).difference

    assert not difference(asked, answer, waits(), starts(0), ends(0))
    assert "without leave" in difference(waits(), starts(0))
    assert "was not due" in difference(asked, waits())
    rewritten = CallPrepared(tool_use_id="t1", input=Raw(b'{"name":"w1","prompt":"p"}'))
    assert "without leave" in difference(asked, answer, rewritten, waits())


def test_children_of_a_call_that_hooks_denied_are_found_out() -> None:
    denied = CallPrepared(tool_use_id="t1", denied="no")
    report = verify(AGENTIC, committed([*asks(1), denied, waits()], plan=AGENTIC))
    assert "although hooks denied it" in report.difference
