"""What a person's leave to run a call is bound to, and what a journal must show of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from events.plan import ToolSpec
from events.vocabulary import (
    CallPrepared,
    CallReviewed,
    CallWaiting,
    Event,
    HostWidened,
    HostWideningBody,
    InterruptClosed,
    RunParked,
    ToolResult,
    ToolUse,
)
from loomcycle import approvals
from replay import approval
from replay.fold import fold
from replay.machine import CallTools, CloseCall, Park, next_effect
from replay.state import Call, State
from replay.verify import verify
from tests.stories import (
    PLAN,
    answers,
    begins,
    calls,
    claims,
    committed,
    goes_on,
    opens,
    told,
)

GUARDED = replace(
    PLAN,
    tools=(*PLAN.tools, ToolSpec("Pay", "pays", Raw(b"{}"))),
    require_approval=("Pay", "mcp__*"),
)
TURN = [*opens(), calls("t1", "Pay", '{"to":"bob","sum":1}'), answers("tool_use")]
PAID = ToolResult(tool_use=ToolUse("t1", "Pay", Raw(b"{}")), text="paid")


def after(*events: Event) -> State:
    return told(*TURN, *events, plan=GUARDED)


def call_of(state: State) -> Call:
    return state.pending()[0]


def asks(*before: Event) -> CallWaiting:
    """The question that is due after these events."""
    state = after(*before)
    return approvals.question(state, call_of(state), 5).waiting


def answered(waiting: CallWaiting, answer: str, status: str = "resolved") -> InterruptClosed:
    return InterruptClosed(interrupt_id=waiting.ref, status=status, answer=answer)  # type: ignore[arg-type]


def prepares(given: str | None = None, **fields: object) -> CallPrepared:
    rewritten: Raw | UnsetType = UNSET if given is None else Raw(given.encode())
    return CallPrepared(tool_use_id="t1", input=rewritten, **fields)  # type: ignore[arg-type]


def holds(*events: Event) -> bool:
    state = after(*events)
    return approval.holds(state, call_of(state))


def test_rules_name_tools_exactly_or_by_their_beginning() -> None:
    assert approval.required(("Pay", "mcp__*"), "Pay")
    assert approval.required(("Pay", "mcp__*"), "mcp__a__b")
    assert not approval.required(("Pay", "mcp__*"), "Payment")
    assert not approval.required((), "Pay")


def test_a_call_waits_until_it_is_answered() -> None:
    waiting = asks()
    assert next_effect(after(waiting)) == Park("calls")
    assert isinstance(next_effect(after(waiting, answered(waiting, "approve"))), CallTools)
    refused = next_effect(after(waiting, answered(waiting, "deny")))
    assert isinstance(refused, CloseCall)
    assert (refused.text, refused.is_error) == ("Pay was not run: denied", True)
    late = next_effect(after(waiting, answered(waiting, "", "timed_out")))
    assert isinstance(late, CloseCall)
    assert late.text == "Pay was not run: not approved in time"


@pytest.mark.parametrize("answer", ["yes", "", "deny", "[1]", '"approve"', "{broken", "APPROVE"])
def test_nothing_but_approve_or_an_object_lets_a_call_run(answer: str) -> None:
    waiting = asks()
    assert not holds(waiting, answered(waiting, answer))
    assert isinstance(next_effect(after(waiting, answered(waiting, answer))), CloseCall)


def test_what_was_approved_may_run() -> None:
    waiting = asks()
    assert holds(waiting, answered(waiting, "approve"))
    assert not holds(waiting)


def test_a_hook_that_rewrites_what_was_approved_asks_again() -> None:
    waiting = asks()
    story = [waiting, answered(waiting, "approve")]
    assert holds(*story, prepares(' {"sum": 1, "to": "bob"} '))
    assert not holds(*story, prepares('{"to":"eve","sum":1}'))
    again = asks(*story, prepares('{"to":"eve","sum":1}'))
    assert again.ref != waiting.ref
    assert holds(*story, prepares('{"to":"eve","sum":1}'), again, answered(again, "approve"))


def test_an_edit_is_what_runs_and_hooks_see_it_first() -> None:
    waiting = asks(prepares())
    edited = answered(waiting, '{"to":"amy"}')
    story = [prepares(), waiting, edited]
    state = after(*story)
    assert bytes(approval.arguments(call_of(state))) == b'{"to":"amy"}'
    assert not approval.is_prepared(call_of(state))
    assert holds(*story)
    seen = prepares('{"to": "amy"}', edit_of=waiting.ref)
    assert approval.is_prepared(call_of(after(*story, seen)))
    assert holds(*story, seen)
    changed = prepares('{"to":"eve"}', edit_of=waiting.ref)
    assert not holds(*story, changed)
    again = asks(*story, changed)
    state = after(*story, changed, again, answered(again, "approve"))
    assert approval.holds(state, call_of(state))
    assert bytes(approval.arguments(call_of(state))) == b'{"to":"eve"}'


@pytest.mark.parametrize("change", ["principal", "plan", "run"])
def test_leave_is_not_carried_over_to_another_principal_definition_or_run(change: str) -> None:
    waiting = asks()
    story = [waiting, answered(waiting, "approve")]
    other = {"principal": "eve", "plan": "1" * 64, "run": "r_ab00000000000002"}
    begun = opens(**{change: other[change]})
    state = told(*begun, *TURN[len(opens()) :], *story, plan=GUARDED)
    assert not approval.holds(state, call_of(state))


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4))
def test_the_hash_does_not_depend_on_spelling(value: dict[str, object]) -> None:
    def hashed(text: str) -> str:
        return approval.bound("Pay", Raw(text.encode()), "p", "d", 7)

    spelled = json.dumps(value)
    turned = json.dumps(dict(reversed(value.items())), indent=1, ensure_ascii=False)
    assert hashed(spelled) == hashed(turned)
    assert hashed(spelled) != hashed(json.dumps({**value, "more": 1}))


def test_arguments_that_are_no_json_are_bound_by_their_bytes() -> None:
    broken = approval.bound("Pay", Raw(b'{"a":'), "p", "d", 0)
    assert broken != approval.bound("Pay", Raw(b'{"b":'), "p", "d", 0)


# --- expiry ---------------------------------------------------------------------------------------


def until(commit: int) -> CallWaiting:
    """The question of the guarded call, open until the time of this commit."""
    state = after()
    bound = approval.bound_by(state, call_of(state), commit)
    return replace(asks(), until_ns=commit, bound=bound)


def stored(*groups: list[Event]) -> State:
    """The state after these commits, the turn's first; each has its number for its time."""
    return fold(GUARDED, committed(TURN, *groups, plan=GUARDED))


@pytest.mark.parametrize("answer", ["approve", '{"to":"amy"}'])
def test_leave_that_is_journaled_after_its_expiry_is_none(answer: str) -> None:
    waiting = until(4)
    closed = answered(waiting, answer)
    in_time = stored([waiting], [closed])
    assert approval.holds(in_time, call_of(in_time))
    late = stored([waiting], [prepares()], [closed])
    assert isinstance(next_effect(late), CallTools)
    assert not approval.holds(late, call_of(late))
    assert approval.arguments(call_of(late)) == approval.shown(call_of(late))
    again = approvals.question(late, call_of(late), 5).waiting
    asked = goes_on(late, again, answered(again, "approve"))
    assert approval.holds(asked, call_of(asked))


def test_leave_ends_when_the_run_is_taken_up_after_its_expiry() -> None:
    waiting = until(5)
    story: list[list[Event]] = [[waiting], [answered(waiting, "approve")]]
    early = stored(*story, [claims()])
    assert approval.holds(early, call_of(early))
    late = stored(*story, [RunParked(reason="pause")], [claims()])
    assert not approval.holds(late, call_of(late))
    begun = stored(*story, [begins("t1")], [claims()])
    assert approval.holds(begun, call_of(begun))


def test_a_call_that_ran_on_expired_leave_is_found_out() -> None:
    waiting = until(5)
    asked: list[list[Event]] = [TURN, [waiting], [answered(waiting, "approve")]]
    paused: list[list[Event]] = [[RunParked(reason="pause")], [claims()]]

    def proven(*groups: list[Event]) -> str:
        return verify(GUARDED, committed(*asked, *groups, plan=GUARDED)).difference

    assert not proven([begins("t1")], [PAID])
    assert not proven([begins("t1")], [claims()], [claims("w3")], [PAID])
    assert "without leave" in proven(*paused, [begins("t1")])
    assert "without leave" in proven(*paused, [PAID])
    again = approvals.question(stored(*asked[1:], *paused), call_of(after()), 99).waiting
    again = replace(again, ref=approval.question_id(after(), call_of(after()), 1))
    assert not proven(*paused, [again], [answered(again, "approve")], [begins("t1")], [PAID])


# --- proofs ---------------------------------------------------------------------------------------


def difference(*events: Event) -> str:
    return verify(GUARDED, committed(TURN, list(events), plan=GUARDED)).difference


def test_a_journal_with_leave_is_proven() -> None:
    waiting = asks(prepares(hosts=("a.com",)))
    assert not difference(
        prepares(hosts=("a.com",)),
        widens("a.com"),
        waiting,
        answered(waiting, "approve"),
        begins("t1"),
        CallReviewed(tool_use_id="t1", notes=("x",)),
        PAID,
    )


def widens(host: str) -> HostWidened:
    return HostWidened(
        host_widening=HostWideningBody(
            tool_call_id="t1",
            tool_name="Pay",
            url="",
            hook_owner="a",
            hook_name="b",
            hosts_added=(host,),
        )
    )


def test_a_call_that_ran_without_leave_is_found_out() -> None:
    waiting = asks()
    changed = prepares('{"to":"eve"}')
    for story in ([], [waiting, answered(waiting, "approve"), changed]):
        assert "without leave" in difference(*story, PAID)
        assert "without leave" in difference(*story, begins("t1"))
    assert "derived as" in difference(waiting, answered(waiting, "deny"), PAID)
    assert not difference(replace(PAID, text="tool not found: Pay", is_error=True))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([widens("a.com")], "not granted"),
        ([prepares(hosts=("b.com",)), widens("a.com")], "not granted"),
        ([prepares(denied="no", hosts=("b.com",))], "which was denied"),
        ([prepares(edit_of="intr_1")], "hooks saw"),
        ([prepares(denied="no"), begins("t1")], "although hooks denied it"),
        ([replace(asks(), bound="0" * 64)], "leave binds"),
        ([replace(asks(), ref="intr_" + "0" * 24)], "not the next question"),
        ([asks(), prepares()], "was not due"),
        ([asks(), asks()], "needs nobody's leave"),
        ([asks(), CallReviewed(tool_use_id="t1")], "no result now"),
    ],
)
def test_what_stands_at_the_wrong_place_is_found_out(events: list[Event], reason: str) -> None:
    assert reason in difference(*events)


def test_what_hooks_denied_needs_no_leave() -> None:
    assert not difference(prepares(denied="no"), replace(PAID, text="no"))
