"""When a conversation is compacted, what of it, and what the model sees afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from events.plan import Budget, Compaction, Pair, RunPlan
from events.vocabulary import (
    AwaitingInput,
    AwaitingInputBody,
    CompactionMade,
    CompactionRequested,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    ModelAnswered,
    ModelSwitched,
    RunAmended,
    Text,
    Usage,
    UsageTotals,
)
from replay import conversation
from replay.compaction import (
    GO_ON,
    SUMMARY_LABEL,
    TASK_LABEL,
    Cut,
    body_of,
    cut,
    due,
    effective,
    estimate,
    summariser,
    summary_hash,
    summary_request,
)
from replay.compaction_proof import failure
from replay.conversation import Message, ToolResult, ToolUse
from replay.history import conversation_after
from replay.machine import (
    MACHINE_VERSION,
    AwaitInput,
    CallModel,
    Compact,
    Finish,
    closing,
    next_effect,
)
from replay.state import Phase, State
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
    stumbles,
    told,
)


def plan(**given: Any) -> RunPlan:
    return replace(PLAN, compaction=Compaction(**given))


def user(text: str) -> Message:
    return Message("user", (conversation.Text(text),))


def assistant(text: str) -> Message:
    return Message("assistant", (conversation.Text(text),))


def asks(*ids: str) -> Message:
    return Message("assistant", tuple(ToolUse(i, "Read", Raw(b"{}")) for i in ids))


def gets(*ids: str, text: str = "r") -> Message:
    return Message("user", tuple(ToolResult(i, "Read", text) for i in ids))


def holding(*messages: Message, window: int = 0, **given: Any) -> State:
    state = State(plan(**given), list(messages))
    state.last_usage = UsageTotals(input_tokens=1, output_tokens=1, max_context_tokens=window)
    return state


CHAT = (user("u0"), assistant("a0"), user("u1"), assistant("a1"), user("u2"), assistant("a2"))
TOOLS = (user("task"), asks("1"), gets("1"), asks("2"), gets("2"), asks("3"), gets("3"))


# --- settings -----------------------------------------------------------------------------


def test_unset_settings_have_their_defaults() -> None:
    found = effective(Compaction())
    assert not found.enabled
    assert (found.target_percentage, found.keep_last_n) == (10, 4)
    assert (found.keep_first, found.autocompact_at_pct, found.model) == (True, 80, "")


@pytest.mark.parametrize("target", [9, 51, -1])
def test_a_target_out_of_range_counts_as_unset(target: int) -> None:
    assert effective(Compaction(target_percentage=target)).target_percentage == 10


def test_a_negative_number_of_kept_messages_is_none() -> None:
    assert effective(Compaction(keep_last_n=-3)).keep_last_n == 0


# --- where it is divided ------------------------------------------------------------------


def test_the_task_is_pinned_and_the_last_messages_are_kept() -> None:
    assert cut(holding(*CHAT, keep_last_n=2), "self") == Cut(1, 4, "u0")


def test_everything_is_summarised_when_nothing_is_to_be_kept() -> None:
    assert cut(holding(*CHAT, keep_last_n=0, keep_first=False), "self") == Cut(0, 6, "")


def test_a_division_begins_with_what_a_person_said_where_it_can() -> None:
    assert cut(holding(*CHAT, keep_last_n=3), "self") == Cut(1, 2, "u0")


def test_a_loop_of_tools_is_divided_between_two_rounds() -> None:
    assert cut(holding(*TOOLS, keep_last_n=2), "self") == Cut(1, 5, "task")
    assert cut(holding(*TOOLS, keep_last_n=3), "self") == Cut(1, 3, "task")


def test_a_last_answer_alone_is_no_place_to_divide() -> None:
    messages = (user("task"), asks("1"), gets("1"), assistant("done"))
    assert cut(holding(*messages, keep_last_n=1), "self") == Cut(1, 4, "task")


@pytest.mark.parametrize("messages", [(), (user("u0"),), CHAT[:4]])
def test_short_conversations_are_left_alone(messages: tuple[Message, ...]) -> None:
    assert cut(holding(*messages), "auto") is None


def test_what_was_said_last_is_never_summarised_before_the_model_reads_it() -> None:
    messages = (*TOOLS, user("also this"))
    assert cut(holding(*messages, keep_last_n=0), "self") == Cut(1, 7, "task")


def test_a_tail_over_half_the_window_is_cut_on() -> None:
    big = [user("task")]
    for i in range(6):
        big += [asks(str(i)), gets(str(i), text="x" * 400)]
    assert cut(holding(*big, keep_last_n=8), "auto") == Cut(1, 5, "task")
    assert cut(holding(*big, keep_last_n=8, window=500), "auto") == Cut(1, 9, "task")
    assert cut(holding(*big, keep_last_n=8, window=500), "manual") == Cut(1, 5, "task")


def test_a_tail_without_a_further_place_is_kept_as_it_is() -> None:
    big = (user("task"), asks("1"), gets("1"), asks("2"), gets("2", text="x" * 4000))
    assert cut(holding(*big, keep_last_n=2, window=100), "auto") == Cut(1, 3, "task")


def test_a_person_cannot_compact_less_than_four_messages() -> None:
    three = (user("task"), assistant("a"), user("b"))
    assert cut(holding(*three, keep_last_n=0), "self") is not None
    assert cut(holding(*three, keep_last_n=0), "manual") is None


# --- in the life of a run -----------------------------------------------------------------


def uses(tokens: int, window: int = 1000) -> Usage:
    totals = UsageTotals(input_tokens=tokens, output_tokens=1, max_context_tokens=window)
    return Usage(usage=totals)


def rounds(count: int, tokens: int = 900, first: int = 0) -> list[Event]:
    story: list[Event] = []
    for i in range(first, first + count):
        story += [calls(f"t{i}"), uses(tokens), answers("tool_use"), results(f"t{i}")]
    return story


def compacts(state: State, trigger: str, summary: str = "so far so good") -> list[Event]:
    """What a worker stages for the compaction that is due in ``state``."""
    division = cut(state, trigger)
    assert division is not None
    made = CompactionMade(
        request=summary_hash(summary_request(state, division)),
        trigger=trigger,
        kept_from=division.kept_from,
        pinned=division.pinned,
        usage=UsageTotals(input_tokens=70, output_tokens=7, model="m-small"),
    )
    body = body_of(state, division, summary, trigger)
    return [made, ContextCompaction(context_compaction=body)]


AUTO = plan(enabled=True, keep_last_n=2)


def test_a_full_window_compacts_before_the_next_turn() -> None:
    state = told(*opens(), *rounds(2), plan=AUTO)
    assert next_effect(state) == Compact("auto")


@pytest.mark.parametrize(
    ("tokens", "window", "settings_"),
    [
        (799, 1000, {"enabled": True, "keep_last_n": 2}),
        (900, 0, {"enabled": True, "keep_last_n": 2}),
        (900, 1000, {"keep_last_n": 2}),
        (900, 1000, {"enabled": True, "keep_last_n": 2, "autocompact_at_pct": 95}),
        (900, 1000, {"enabled": True, "keep_last_n": 50}),
    ],
)
def test_it_does_not_compact_without_reason(
    tokens: int, window: int, settings_: dict[str, Any]
) -> None:
    story = [
        replace(e, usage=replace(e.usage, max_context_tokens=window)) if isinstance(e, Usage) else e
        for e in rounds(2, tokens)
    ]
    assert next_effect(told(*opens(), *story, plan=plan(**settings_))) == CallModel(2, 1)


def test_cached_tokens_fill_the_window_too() -> None:
    totals = UsageTotals(
        input_tokens=1,
        output_tokens=1,
        cache_read_input_tokens=500,
        cache_creation_input_tokens=300,
        max_context_tokens=1000,
    )
    story = [Usage(usage=totals) if isinstance(e, Usage) else e for e in rounds(2)]
    assert next_effect(told(*opens(), *story, plan=AUTO)) == Compact("auto")


def test_a_first_turn_is_never_compacted() -> None:
    assert next_effect(told(*opens(), plan=AUTO)) == CallModel(0, 1)


def compacted_run() -> list[Event]:
    story = [*opens("the task"), *rounds(2)]
    return [*story, *compacts(told(*story, plan=AUTO), "auto")]


def test_the_model_goes_on_with_task_summary_and_kept_rounds() -> None:
    state = told(*compacted_run(), plan=AUTO)
    assert next_effect(state) == CallModel(2, 1)
    head, *kept = state.messages
    assert [b.text for b in head.blocks] == [  # type: ignore[union-attr]
        f"{TASK_LABEL}\nthe task",
        f"{SUMMARY_LABEL}\nso far so good\n\n{GO_ON}",
    ]
    assert head.role == "user"
    assert [m.role for m in kept] == ["assistant", "user"]
    assert state.used == estimate(state.messages)


def test_a_conversation_of_which_nothing_is_kept_ends_with_a_user_turn() -> None:
    none = plan(enabled=True, keep_last_n=0, keep_first=False)
    story = [*opens(), *rounds(1)]
    state = told(*story, *compacts(told(*story, plan=none), "auto"), plan=none)
    assert [m.role for m in state.messages] == ["user"]


def test_the_turn_after_a_compaction_does_not_compact_again_and_the_one_after_may() -> None:
    story = [*compacted_run(), *rounds(1, first=2)]
    assert next_effect(told(*story, plan=AUTO)) == CallModel(3, 1)
    story += rounds(1, first=3)
    assert next_effect(told(*story, plan=AUTO)) == Compact("auto")


def test_a_second_compaction_pins_the_original_task_and_summarises_the_first_summary() -> None:
    story = [*compacted_run(), *rounds(2, first=2)]
    state = told(*story, plan=AUTO)
    division = cut(state, "auto")
    assert division == Cut(1, 5, "the task")
    asked = summary_request(state, division).messages[0].blocks[0].text  # type: ignore[union-attr]
    assert asked.startswith(f"user: {SUMMARY_LABEL}\nso far so good")
    assert "the task" not in asked
    state = told(*story, *compacts(state, "auto", "more"), plan=AUTO)
    texts = [b.text for b in state.messages[0].blocks]  # type: ignore[union-attr]
    assert texts == [f"{TASK_LABEL}\nthe task", f"{SUMMARY_LABEL}\nmore\n\n{GO_ON}"]


def test_a_request_of_the_model_compacts_once_and_without_being_enabled() -> None:
    own = plan(keep_last_n=0)
    wishes = [CompactionRequested(trigger="self")] * 2
    story = [*opens(), calls("t0"), costs(), answers("tool_use"), *wishes, results("t0")]
    state = told(*story, plan=own)
    assert next_effect(state) == Compact("self")
    state = told(*story, *compacts(state, "self"), plan=own)
    assert next_effect(state) == CallModel(1, 1)


@pytest.mark.parametrize(
    ("machine", "model"), [(1, "m-small"), (2, "m-small"), (MACHINE_VERSION, "m-2")]
)
def test_after_a_fallback_the_model_that_serves_writes_the_summary(
    machine: int, model: str
) -> None:
    own = plan(model="m-small")
    before = told(*opens(machine=machine), plan=own)
    assert summariser(before) == Pair("mock", "m-small")
    switched = ModelSwitched(provider="other", model="m-2")
    assert summariser(goes_on(before, stumbles(), switched)) == Pair("other", model)
    back = ModelSwitched(provider="mock", model="m-3")
    assert summariser(goes_on(before, stumbles(), back)) == Pair("mock", "m-small")


def test_a_summary_under_a_budget_is_proven_with_its_bound() -> None:
    begun, turns = opens("the task"), rounds(2)
    bounded = replace(AUTO, budget=Budget(tokens=10**6))
    turns = [replace(e, max_tokens=70) if isinstance(e, ModelAnswered) else e for e in turns]
    state = told(*begun, *turns, plan=bounded)
    made, shown = compacts(state, "auto")
    division = cut(state, "auto")
    assert isinstance(made, CompactionMade)
    assert division is not None
    asked = summary_request(state, division, max_tokens=90)
    assert asked.max_tokens == 90
    made = replace(made, request=summary_hash(asked), max_tokens=90)
    for plan_, event, difference in (
        (bounded, made, ""),
        (bounded, replace(made, max_tokens=0), "request hash"),
        (AUTO, made, "the run has none"),
    ):
        groups = (begun, turns if plan_ is bounded else rounds(2), [event, shown])
        assert difference in verify(plan_, committed(*groups, plan=plan_)).difference
        assert difference or verify(plan_, committed(*groups, plan=plan_)).ok


def test_a_failed_or_blank_summary_changes_nothing_and_is_tried_again_one_turn_later() -> None:
    story = [*opens(), *rounds(2)]
    before = told(*story, plan=AUTO)
    skipped = CompactionSkipped(trigger="auto", reason="failed", request="?")
    state = told(*story, Error(error=failure("auto", "503")), skipped, plan=AUTO)
    assert state.messages == before.messages
    assert next_effect(state) == CallModel(2, 1)
    story += [skipped, *rounds(1, first=2)]
    assert next_effect(told(*story, plan=AUTO)) == Compact("auto")


def test_steers_are_taken_before_the_compaction() -> None:
    state = told(*opens(), *rounds(2), says("also", "i_9"), plan=AUTO)
    assert next_effect(state) == Compact("auto")
    division = cut(state, "auto")
    assert division is not None
    assert state.messages[-1] in state.messages[division.kept_from :]


PARKED: list[Event] = [
    *opens("task", interactive=True),
    *(
        e
        for i in range(3)
        for e in (Text(text=f"a{i}"), costs(), answers(), says(f"u{i}", f"i{i}"))
    ),
    Text(text="last"),
    costs(),
    answers(),
    AwaitingInput(awaiting_input=AwaitingInputBody(0)),
]


def test_a_parked_run_is_compacted_and_stays_parked() -> None:
    story = [*PARKED, CompactionRequested(trigger="manual", inbox="i_7")]
    state = told(*story)
    assert next_effect(state) == Compact("manual")
    state = told(*story, *compacts(state, "manual"))
    assert state.phase is Phase.AWAITING
    assert not isinstance(next_effect(state), Compact | AwaitInput)
    assert "i_7" in state.taken


def test_the_summary_is_written_by_the_pair_that_serves_or_by_the_model_set_for_it() -> None:
    state = told(*opens(), ModelSwitched(provider="openai", model="g-1"))
    assert summariser(state) == Pair("openai", "g-1")
    state = told(*opens(), plan=plan(model="small"))
    assert summariser(state) == Pair("mock", "small")


def test_a_summary_counts_as_usage_but_does_not_name_the_run_s_model() -> None:
    state = told(*compacted_run(), plan=AUTO)
    assert state.usage is not None
    assert state.usage.input_tokens == 900 + 900 + 70
    assert state.usage.model != "m-small"
    assert sum(usage.input_tokens for usage in state.spend.values()) == 900 + 900 + 70


# --- proofs -------------------------------------------------------------------------------


def test_a_compacted_run_is_proven() -> None:
    begun, turns = opens("the task"), rounds(2)
    made = compacts(told(*begun, *turns, plan=AUTO), "auto")
    last: list[Event] = [Text(text="done"), costs(), answers()]
    state = told(*begun, *turns, *made, *last, plan=AUTO)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    report = verify(
        AUTO, committed(begun, turns, made, [*last, *closing(state, finish)], plan=AUTO)
    )
    assert report.difference == ""
    assert report.complete


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"request": "0" * 64}, "request hash"),
        ({"kept_from": 1}, "kept from 1"),
        ({"pinned": "another task"}, "another task is pinned"),
        ({"trigger": "self"}, "not due"),
    ],
)
def test_a_forged_compaction_is_found(change: dict[str, Any], difference: str) -> None:
    begun, turns = opens("the task"), rounds(2)
    made, shown = compacts(told(*begun, *turns, plan=AUTO), "auto")
    forged = replace(made, **change)
    report = verify(AUTO, committed(begun, turns, [forged, shown], plan=AUTO))
    assert difference in report.difference


def test_a_forged_frame_of_a_compaction_is_found() -> None:
    begun, turns = opens("the task"), rounds(2)
    made, shown = compacts(told(*begun, *turns, plan=AUTO), "auto")
    assert isinstance(shown, ContextCompaction)
    body = replace(shown.context_compaction, before_tokens=1)
    report = verify(
        AUTO, committed(begun, turns, [made, ContextCompaction(context_compaction=body)], plan=AUTO)
    )
    assert "derived" in report.difference


def test_a_failed_summary_is_proven_and_a_pretended_one_is_not() -> None:
    begun, turns = opens(), rounds(2)
    state = told(*begun, *turns, plan=AUTO)
    division = cut(state, "auto")
    assert division is not None
    asked = summary_hash(summary_request(state, division))
    story: list[Event] = [
        Error(error=failure("auto", "503")),
        CompactionSkipped(trigger="auto", reason="failed", request=asked),
    ]
    assert verify(AUTO, committed(begun, turns, story, plan=AUTO)).difference == ""
    noop: list[Event] = [CompactionSkipped(trigger="auto", reason="noop")]
    assert "a span is derived" in verify(AUTO, committed(begun, turns, noop, plan=AUTO)).difference
    stray: list[Event] = [Error(error=failure("auto", "503"))]
    assert "last word" in verify(AUTO, committed(begun, rounds(1, 10), stray, plan=AUTO)).difference


# --- after the end, and in later runs -----------------------------------------------------


def ended(*story: Event, plan_: RunPlan = PLAN) -> list[Event]:
    state = told(*story, plan=plan_)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    return closing(state, finish)


def amended(
    story: list[Event], plan_: RunPlan = PLAN, history: list[Message] | None = None
) -> list[Event]:
    note = RunAmended(by="p_1", provider="mock", model="m-small")
    state = told(*story, note, plan=plan_, history=history or [])
    return [note, *compacts(state, "manual")]


def test_an_ended_run_is_amended_and_proven() -> None:
    small = plan(keep_last_n=0)
    begun, turns = opens("the task"), rounds(3)
    last: list[Event] = [Text(text="done"), costs(), answers()]
    story = [*begun, *turns, *last, *ended(*begun, *turns, *last, plan_=small)]
    more = amended(story, small)
    state = told(*story, *more, plan=small)
    assert len(state.messages) == 1
    groups = [begun, turns, story[len(begun) + len(turns) :], more]
    report = verify(small, committed(*groups, plan=small))
    assert report.difference == ""
    assert report.complete


def test_calls_without_results_get_theirs_before_an_ended_run_is_compacted() -> None:
    small = plan(keep_last_n=0)
    story = [*opens("the task"), *rounds(2), calls("open"), costs(), answers("tool_use")]
    state = told(*story, plan=small)
    story += closing(state, Finish("cancelled", "enough"))
    state = told(*story, *amended(story, small), plan=small)
    assert_whole(conversation_after([], state))


def test_a_continuation_that_was_compacted_replaces_what_came_before_it() -> None:
    history = list(CHAT)
    small = plan(keep_last_n=0)
    story = [
        *opens("go on", continues=True),
        *rounds(2),
    ]
    before = told(*story, history=history, plan=small)
    made = compacts(before, "self")
    state = told(*story, *made, history=history, plan=small)
    after = conversation_after(history, state)
    assert after == state.messages
    assert after[0].summary
    alone = told(*opens("new", continues=False), Text(text="x"), costs(), answers())
    assert conversation_after(after, alone)[: len(after)] == after


# --- properties ---------------------------------------------------------------------------


def assert_whole(messages: list[Message]) -> None:
    """Every result stands right after its call, every call has its results."""
    asked: list[str] = []
    for message in messages:
        results_ = [b.tool_use_id for b in message.blocks if isinstance(b, ToolResult)]
        assert results_ == asked
        asked = [b.id for b in message.blocks if isinstance(b, ToolUse)]
    assert asked == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("tools"), st.integers(1, 3)),
        st.tuples(st.just("steer"), st.text(max_size=20)),
        st.tuples(st.just("compact"), st.booleans()),
    ),
    max_size=14,
)


def played(
    moves: list[tuple[str, Any]], plan_: RunPlan, history: list[Message]
) -> tuple[list[Event], State]:
    """A journal that follows from ``moves``: as the machine would have had it written."""
    story: list[Event] = opens("the task", continues=bool(history))
    for place, (kind, value) in enumerate(moves):
        if kind == "tools":
            ids = [f"t{place}.{i}" for i in range(value)]
            story += [calls(i) for i in ids]
            story += [uses(900), answers("tool_use"), CompactionRequested(trigger="self")]
            story += [results(i, "r" * 40) for i in ids]
        elif kind == "steer":
            story.append(says(value, f"i{place}"))
        else:
            state = told(*story, plan=plan_, history=history)
            if next_effect(state) == Compact("self") and cut(state, "self"):
                story += compacts(state, "self", "s" * (5 if value else 50))
    return story, told(*story, plan=plan_, history=history)


@settings(max_examples=150, deadline=None)
@given(
    moves=steps,
    keep=st.integers(0, 6),
    first=st.booleans(),
    past=st.sampled_from([[], list(CHAT), list(TOOLS)]),
    at=st.integers(0, 200),
)
def test_any_journal_with_compactions_folds_to_whole_tool_rounds_from_any_prefix(
    moves: list[tuple[str, Any]], keep: int, first: bool, past: list[Message], at: int
) -> None:
    settings_ = plan(keep_last_n=keep, keep_first=first)
    story, state = played(moves, settings_, past)
    assert_whole(state.messages)
    assert state.messages[0].role == "user"
    assert state.messages[-1].role == "user"
    for n in range(1, len(story) + 1):
        part = told(*story[:n], plan=settings_, history=past)
        assert_whole(conversation_after(past, part))
    prefix = min(at, len(story))
    begun = told(*story[:prefix], plan=settings_, history=past)
    goes_on(begun, *story[prefix:])
    assert begun.messages == state.messages
    assert begun.rolling.over(begun.messages) == state.rolling.over(state.messages)
    assert due(begun) == due(state)
