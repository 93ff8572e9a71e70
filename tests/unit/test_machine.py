"""Given these events, the next effect is that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from events.content import ContentBlock, Segment
from events.plan import SystemBlock
from events.vocabulary import (
    Done,
    Error,
    ModelStarted,
    RunFinished,
    Started,
    Text,
    UserInput,
)
from replay import conversation
from replay.fold import Misplaced, apply_commit, fold
from replay.history import NO_RESULT, own_messages
from replay.machine import (
    MACHINE_VERSION,
    MAX_IDLE_CLAIMS,
    MOVES,
    AwaitInput,
    CallModel,
    CallTools,
    Finish,
    Halt,
    closing,
    next_effect,
)
from replay.request import hash_of, model_request
from replay.state import Phase, State
from replay.verify import verify
from tests.stories import (
    PLAN,
    answers,
    begins,
    calls,
    cancels,
    claims,
    committed,
    costs,
    fails,
    goes_on,
    opens,
    results,
    says,
    told,
)


def test_an_opened_run_asks_the_model() -> None:
    assert next_effect(told(*opens())) == CallModel(0, 1)


def test_a_turn_without_calls_ends_the_run() -> None:
    state = told(*opens(), Text(text="ok"), costs(), answers())
    assert next_effect(state) == Finish("completed", "end_turn")


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens"])
def test_calls_of_a_turn_that_did_not_stop_for_tools_are_not_run(reason: str) -> None:
    assert next_effect(told(*opens(), calls("t1"), answers(reason))) == Finish("completed", reason)


def test_a_turn_that_stops_for_tools_without_a_call_ends_the_run() -> None:
    assert next_effect(told(*opens(), answers("tool_use"))) == Finish("completed", "tool_use")


def test_all_calls_are_due_after_a_tool_turn_and_only_those_without_result() -> None:
    state = told(*opens(), calls("t1"), calls("t2"), answers("tool_use"))
    effect = next_effect(state)
    assert isinstance(effect, CallTools)
    assert [c.id for c in effect.calls] == ["t1", "t2"]
    state = told(*opens(), calls("t1"), calls("t2"), answers("tool_use"), results("t2"))
    effect = next_effect(state)
    assert isinstance(effect, CallTools)
    assert [c.id for c in effect.calls] == ["t1"]


def test_a_call_begun_before_a_crash_is_known_as_begun() -> None:
    state = told(*opens(), calls("t1"), answers("tool_use"), begins("t1"), claims())
    effect = next_effect(state)
    assert isinstance(effect, CallTools)
    assert effect.calls[0].started


def test_results_reach_the_model_in_the_order_of_the_calls() -> None:
    state = told(
        *opens(),
        calls("t1"),
        calls("t2"),
        answers("tool_use"),
        results("t2", "two"),
        results("t1", "one"),
    )
    assert next_effect(state) == CallModel(1, 1)
    last = model_request(state).messages[-1]
    assert [b.text for b in last.blocks] == ["one", "two"]  # type: ignore[union-attr]


def test_a_failed_model_call_fails_the_run_with_its_text() -> None:
    assert next_effect(told(*opens(), fails("mock 500: x"))) == Finish("failed", "", "mock 500: x")
    state = told(*opens(), Text(text="par"), fails("stream read: cut", partial=True))
    finish = next_effect(state)
    assert finish == Finish("failed", "", "provider error: stream read: cut")
    assert isinstance(finish, Finish)
    assert closing(state, finish)[0] == Error(error="stream read: cut")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [calls("t1"), answers("tool_use")],
        [calls("t1"), answers("tool_use"), results("t1")],
        [Text(text="done"), answers()],
    ],
)
def test_a_cancel_wins_at_every_boundary(events: list) -> None:  # type: ignore[type-arg]
    state = told(*opens(), *events, cancels("stop it"))
    assert next_effect(state) == Finish("cancelled", "stop it")


def test_the_first_cancel_counts() -> None:
    state = told(*opens(), cancels("first"), cancels("second"))
    assert next_effect(state) == Finish("cancelled", "first")


def test_the_turn_cap_ends_the_run_after_its_tools() -> None:
    plan = replace(PLAN, max_iterations=1)
    story = [*opens(), calls("t1"), answers("tool_use"), results("t1")]
    state = told(*story, plan=plan)
    assert next_effect(state) == Finish("completed", "max_iterations")


ONE_TURN = replace(PLAN, max_iterations=1)
LATE = [Text(text="one"), answers(), says("and also", inbox="i_1")]
"""Input that came while the model spoke for the last time that its plan permits."""


def test_the_turn_cap_leaves_room_for_an_answer_to_the_last_input() -> None:
    state = told(*opens(), *LATE, plan=ONE_TURN)
    assert next_effect(state) == CallModel(1, 1)
    goes_on(state, Text(text="two"), answers("max_tokens"))
    assert next_effect(state) == Finish("completed", "max_tokens")


def test_an_input_between_the_last_tools_and_the_cap_is_answered() -> None:
    story = [calls("t1"), answers("tool_use"), results("t1"), says("and also", inbox="i_1")]
    state = told(*opens(), *story, plan=ONE_TURN)
    assert next_effect(state) == CallModel(1, 1)


def test_an_input_beyond_the_turn_cap_gets_one_turn() -> None:
    story = [*LATE, calls("t1"), answers("tool_use"), results("t1")]
    state = told(*opens(), *story, plan=ONE_TURN)
    assert next_effect(state) == Finish("completed", "max_iterations")


@pytest.mark.parametrize("machine", [1, 2])
def test_older_machines_end_at_their_cap_whatever_was_said(machine: int) -> None:
    state = told(*opens(machine=machine), *LATE, plan=ONE_TURN)
    assert next_effect(state) == Finish("completed", "max_iterations")


def test_an_interactive_run_ends_at_its_cap_and_takes_no_input_that_it_could_not_answer() -> None:
    state = told(*opens(interactive=True), answers(), plan=ONE_TURN)
    assert next_effect(state) == Finish("completed", "max_iterations")
    goes_on(state, says("in time", inbox="i_1"))
    assert next_effect(state) == CallModel(1, 1)
    before = told(*opens(interactive=True, machine=2), answers(), plan=ONE_TURN)
    assert isinstance(next_effect(before), AwaitInput)


@pytest.mark.parametrize("machine", [2, 3])
def test_an_end_at_the_cap_is_proven_by_the_rule_of_its_machine(machine: int) -> None:
    opening, more = opens(machine=machine), [Text(text="two"), costs(), answers()]
    story = [opening, LATE, more if machine == 3 else []]
    state = told(*(event for group in story for event in group), plan=ONE_TURN)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    groups = [*story[:2], [*story[2], *closing(state, finish)]]
    assert verify(ONE_TURN, committed(*groups, plan=ONE_TURN)).difference == ""
    other = [replace(opening[0], machine=5 - machine), *opening[1:]]
    assert not verify(ONE_TURN, committed(other, *groups[1:], plan=ONE_TURN)).ok


def test_a_run_claimed_too_often_without_progress_fails() -> None:
    many = [claims() for _ in range(MAX_IDLE_CLAIMS)]
    assert next_effect(told(*opens(), *many)) == CallModel(0, 1)
    assert next_effect(told(*opens(), *many, claims())) == Finish(
        "failed", "heartbeat_timeout", "heartbeat timeout"
    )
    progress = [*many, calls("t1"), answers("tool_use"), *many]
    assert isinstance(next_effect(told(*opens(), *progress)), CallTools)


def test_a_repeated_model_call_forgets_what_the_first_one_had_shown() -> None:
    again = ModelStarted(iteration=0, attempt=2)
    state = told(
        *opens(), Text(text="par"), claims(), again, Text(text="all", attempt=2), answers()
    )
    assert state.messages[-1].blocks == (conversation.Text("all"),)


@pytest.mark.parametrize(("machine", "cached"), [(1, True), (2, True), (MACHINE_VERSION, False)])
def test_an_untrusted_block_of_the_system_is_never_cached(machine: int, cached: bool) -> None:
    blocks = tuple(
        ContentBlock(kind, "x", cacheable=True) for kind in ("trusted-text", "untrusted-block")
    )
    started, _, last = opens(machine=machine)
    state = told(started, UserInput(payload=(Segment("system", blocks),)), last)
    assert [block.cacheable for block in state.system] == [True, cached]


def test_nothing_is_left_to_do_after_the_end() -> None:
    state = told(*opens(), answers(), RunFinished(status="completed"))
    assert next_effect(state) == Halt()


def test_totals_are_sums_over_turns() -> None:
    state = told(
        *opens(), calls("t1"), costs(5), answers("tool_use"), results("t1"), costs(7), answers()
    )
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    done = closing(state, finish)[0]
    assert isinstance(done, Done)
    assert (done.usage.input_tokens, done.usage.output_tokens) == (12, 2)
    assert (done.usage.model, done.usage.provider) == ("mock-generic", "mock")


@pytest.mark.parametrize(
    ("story", "misplaced"),
    [
        ([], Started()),
        (opens(), results("t1")),
        ([*opens(), calls("t1"), answers("tool_use")], says("steer")),
        ([*opens(), calls("t1"), answers("tool_use"), results("t1")], results("t1")),
        ([*opens(), calls("t1"), answers("tool_use")], results("t9")),
        ([*opens(), answers(), RunFinished(status="failed")], RunFinished(status="failed")),
        ([*opens(), answers()], Text(text="late")),
    ],
)
def test_an_event_out_of_place_is_refused(story: list, misplaced: object) -> None:  # type: ignore[type-arg]
    with pytest.raises(Misplaced):
        told(*story, misplaced)  # type: ignore[arg-type]


def test_untrusted_input_is_fenced_and_system_segments_follow_the_prompt() -> None:
    payload = (
        Segment("system", (ContentBlock(text="S"),)),
        Segment("user", (ContentBlock("untrusted-block", "<b>", True, "web_content"),)),
        Segment("other", (ContentBlock(text="dropped"),)),
        Segment("user", (ContentBlock("trusted-text", "plain", True),)),
    )
    plan = replace(PLAN, system=(SystemBlock("P", True),))
    first, _, started = opens(metadata=Raw(b'{"a":1}'))
    request = model_request(told(first, UserInput(payload=payload), started, plan=plan))
    assert [b.text.splitlines()[-1] for b in request.system] == ["P", "}", "S"]
    assert '{\n  "a": 1\n}' in request.system[1].text
    assert request.messages[0].blocks == (
        conversation.Text("<web_content>\n&lt;b>\n</web_content>"),
        conversation.Text("plain", True),
    )


def test_the_request_hash_depends_on_every_message_and_parameter() -> None:
    base = told(*opens("a"))
    hashes = {hash_of(s, model_request(s)) for s in (base, told(*opens("b")))}
    other = told(*opens("a"), plan=replace(PLAN, max_tokens=7))
    hashes.add(hash_of(other, model_request(other)))
    assert len(hashes) == 3
    again = told(*opens("a"))
    assert hash_of(again, model_request(again)) in hashes


def test_history_gets_a_result_for_every_call() -> None:
    messages = own_messages(
        told(*opens(), calls("t1"), calls("t2"), answers("tool_use"), results("t2"))
    )
    assert messages[-1].blocks == (
        conversation.ToolResult("t1", "Read", NO_RESULT, True),
        conversation.ToolResult("t2", "Read", "ok"),
    )


STORY = [
    [*opens()],
    [Text(text="look"), calls("t1"), calls("t2"), costs(), answers("tool_use")],
    [results("t2")],
    [results("t1")],
    [claims("w3"), ModelStarted(iteration=1, attempt=2)],
    [Text(text="done", attempt=2), costs(), answers()],
]


@given(st.integers(0, len(STORY)))
def test_folding_a_prefix_and_then_the_rest_is_folding_all(cut: int) -> None:
    commits = committed(*STORY)
    whole = fold(PLAN, commits)
    state = State(PLAN)
    for commit in commits[:cut]:
        apply_commit(state, commit)
    for commit in commits[cut:]:
        apply_commit(state, commit)
    for slot in State.__slots__:
        if slot not in ("rolling", "calls", "recorded", "turn_calls"):
            assert getattr(state, slot) == getattr(whole, slot), slot
    assert hash_of(state, model_request(state)) == hash_of(whole, model_request(whole))


def test_a_true_journal_is_proven() -> None:
    state = told(*(e for group in STORY for e in group))
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    groups = [*STORY[:-1], [*STORY[-1], *closing(state, finish)]]
    report = verify(PLAN, committed(*groups))
    assert report.difference == ""
    assert report.complete
    assert report.effects == 5


@pytest.mark.parametrize(
    "groups",
    [
        [opens(), [Text(text="x"), replace(answers(), request="f" * 64)]],
        [opens(), [answers(), Done(usage=costs().usage, stop_reason="tired")]],
        [opens(), [replace(answers(), request="?"), RunFinished(status="completed")]],
        [opens(), [Error(error="made up"), RunFinished(status="failed", error="made up")]],
        [opens(), [RunFinished(status="completed")]],
    ],
)
def test_a_journal_that_the_machine_would_not_have_written_is_not(groups: list) -> None:  # type: ignore[type-arg]
    report = verify(PLAN, committed(*groups))
    assert not report.ok
    assert "sequence 2" in report.difference


def test_every_phase_is_reachable_and_every_move_leads_to_a_phase() -> None:
    reached = {phase for moves in MOVES.values() for to in moves.values() for phase in to}
    assert reached == set(Phase)
    assert set(MOVES) == set(Phase)
