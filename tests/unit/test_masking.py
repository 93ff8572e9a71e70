"""What the masker of a run takes out of its events, and where plaintext goes back in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from events.content import ContentBlock, Segment
from events.log import EventStore
from events.memory_store import MemoryServer
from events.vocabulary import (
    AnswerRejected,
    BudgetRefused,
    CallPrepared,
    ChildFinished,
    CompactionBody,
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Event,
    FallbackBody,
    HostWidened,
    HostWideningBody,
    InterruptClosed,
    InterruptionBody,
    InterruptionPending,
    InterruptNotified,
    ModelAnswered,
    ModelAttemptFailed,
    OutputRejected,
    ProviderFallback,
    RunStarted,
    SpawnChildBody,
    SpawnChildResult,
    Started,
    Text,
    ToolCall,
    ToolUse,
    Usage,
    UsageTotals,
    UserInput,
)
from loomcycle.journal import RunJournal
from loomcycle.masking import Redaction, RunMasker, plain_messages, tool_name, unmasked
from loomcycle.redaction import Redactor
from replay.compaction import cut, summary_hash, summary_request
from replay.request import model_request
from replay.state import State
from tests.stories import PLAN, answers, calls, costs, opens, results
from tests.virtual_time import play

EXACT = "correct-horse-battery"
SHAPED = "ghp_" + "a1B2" * 9


def masker() -> RunMasker:
    return masker_of(EXACT)


def masker_of(*values: str) -> RunMasker:
    return Redaction(Redactor([], shapes=True)).for_run({value: value for value in values})


def asked(text: str) -> InterruptionPending:
    body = InterruptionBody(
        interrupt_id="i",
        kind="question",
        question=text,
        options=(text,),
        context=text,
        priority="normal",
    )
    return InterruptionPending(interruption=body)


def widened(text: str) -> HostWidened:
    body = HostWideningBody(
        tool_call_id="t", tool_name="n", url=text, hook_owner="o", hook_name="h", hosts_added=()
    )
    return HostWidened(host_widening=body)


BOTH = [
    lambda s: BudgetRefused(reason=s),
    lambda s: CallPrepared(tool_use_id="t", input=Raw(msgspec.json.encode({"a": s}))),
    lambda s: CallPrepared(tool_use_id="t", denied=s, notes=(s,)),
    lambda s: ChildFinished(tool_use_id="t", index=0, text=s, error=s),
    lambda s: CompactionSkipped(trigger="auto", reason=s),
    lambda s: ContextCompaction(context_compaction=CompactionBody(summary=s)),
    asked,
    widened,
    lambda s: InterruptClosed(interrupt_id="i", status="resolved", answer=s, resolved_by=s),
    lambda s: InterruptNotified(interrupt_id="i", message=s, context=s),
    lambda s: ModelAttemptFailed(request="", iteration=0, attempt=1, error=s),
    lambda s: ProviderFallback(
        fallback=FallbackBody(
            failed_provider="a", failed_model="b", attempt=1, reason="r", cause_error=s
        )
    ),
    lambda s: SpawnChildResult(
        spawn_child=SpawnChildBody(tool_use_id="t", index=0, output=s, error=s)
    ),
]


def tokens(model: str) -> UsageTotals:
    return UsageTotals(input_tokens=1, output_tokens=1, model=model)


EXACT_ONLY = [
    lambda s: CompactionMade(request="", trigger="auto", kept_from=1, usage=tokens(s)),
    lambda s: CompactionSkipped(trigger="auto", reason="", usage=tokens(s)),
    lambda s: ModelAnswered(request="", iteration=0, stop_reason=s),
    lambda s: ModelAnswered(request="", iteration=0, model=s, reasoning=s),
    lambda s: Usage(usage=tokens(s)),
    lambda s: CompactionMade(request="", trigger="auto", kept_from=1, pinned=s),
    lambda s: AnswerRejected(text=s),
    lambda s: OutputRejected(error=s),
]


@pytest.mark.parametrize("made", BOTH)
@pytest.mark.parametrize("secret", [EXACT, SHAPED])
def test_what_comes_of_tools_and_errors_is_masked_in_both_tiers(made: Any, secret: str) -> None:
    stored = msgspec.json.encode(masker().mask(made(f"see {secret} there"))).decode()
    assert secret not in stored
    assert "[redacted" in stored


@pytest.mark.parametrize("made", EXACT_ONLY)
def test_prose_is_masked_by_exact_values_only(made: Any) -> None:
    assert EXACT not in msgspec.json.encode(masker().mask(made(f"see {EXACT}"))).decode()
    assert SHAPED in msgspec.json.encode(masker().mask(made(f"see {SHAPED}"))).decode()


@pytest.mark.parametrize("made", [*BOTH, *EXACT_ONLY])
def test_an_event_without_secrets_is_the_same_object(made: Any) -> None:
    event = made("nothing of note")
    assert masker().mask(event) is event


@pytest.mark.parametrize("word", ["end_turn", "tool_use", "max_tokens"])
def test_a_stop_reason_that_the_machine_goes_by_is_no_secret(word: str) -> None:
    event = ModelAnswered(request="", iteration=0, stop_reason=word)
    assert Redaction(Redactor([], shapes=True)).for_run({"odd": word}).mask(event) is event


def test_the_keys_of_arguments_are_masked_by_exact_values_only() -> None:
    use = ToolUse("t", "Read", Raw(msgspec.json.encode({EXACT: {f"{EXACT}-2": 1}, SHAPED: 2})))
    masked = masker().mask(ToolCall(tool_use=use))
    assert isinstance(masked, ToolCall)
    assert msgspec.json.decode(masked.tool_use.input) == {
        "[redacted:credential]": {"[redacted:credential]-2": 1},
        SHAPED: 2,
    }


async def test_a_tool_is_not_named_by_a_secret_unless_it_is_one_of_the_run() -> None:
    journal = journal_of(MemoryServer().connect("p"), masker_of("Read", EXACT))
    assert tool_name("Read", journal) == "Read"
    assert tool_name("Write", journal) == "Write"
    assert tool_name(f"get {EXACT}!", journal) == "get_redacted_credential"


@pytest.mark.parametrize("secret", [EXACT, SHAPED])
def test_edited_arguments_are_masked_as_the_arguments_of_the_call_that_they_become(
    secret: str,
) -> None:
    edit = msgspec.json.encode({"key": secret, "token": 5, "sum": 7}).decode()
    closed = masker().mask(InterruptClosed(interrupt_id="i", status="resolved", answer=edit))
    prepared = masker().mask(CallPrepared(tool_use_id="t", input=Raw(edit.encode())))
    assert isinstance(closed, InterruptClosed)
    assert isinstance(prepared, CallPrepared)
    assert secret not in closed.answer
    assert msgspec.json.decode(closed.answer) == msgspec.json.decode(prepared.input)  # type: ignore[arg-type]
    assert msgspec.json.decode(closed.answer)["sum"] == 7


# --- over a compaction --------------------------------------------------------------------


class Nobody:
    def committed(self, *_: object) -> None:
        pass


def journal_of(store: EventStore, masks: RunMasker | None = None) -> RunJournal:
    return RunJournal(
        store,
        State(PLAN),
        tenant="",
        run_id="r_1",
        worker="w",
        epoch=1,
        now_ns=lambda: 1,
        observer=Nobody(),
        masker=masks or masker(),
    )


def tells(journal: RunJournal, *events: Event) -> None:
    for event in events:
        journal.stage(event)


def shown(journal: RunJournal) -> str:
    request = model_request(journal.state)
    return msgspec.json.encode(unmasked(request, journal).messages).decode()


def compacted(journal: RunJournal, summary: str) -> None:
    """Compact ``journal`` as its worker would."""
    state = journal.state
    division = cut(state, "manual")
    assert division is not None
    plain = summary_request(state, division, plain_messages(journal))
    assert EXACT in plain.messages[0].blocks[0].text  # type: ignore[union-attr]
    asked_for = summary_request(state, division)
    assert EXACT not in asked_for.messages[0].blocks[0].text  # type: ignore[union-attr]
    made = CompactionMade(
        request=summary_hash(asked_for),
        trigger="manual",
        kept_from=division.kept_from,
        pinned=division.pinned,
    )
    body = CompactionBody(summary=summary, trigger="manual")
    tells(journal, made, ContextCompaction(context_compaction=body))


def test_masks_stay_in_their_places_when_what_came_before_is_summarised() -> None:
    async def story() -> None:
        journal = journal_of(MemoryServer().connect("p"))
        started, _, begun = opens()
        assert isinstance(started, RunStarted)
        assert isinstance(begun, Started)
        task = UserInput(payload=(Segment("user", (ContentBlock(text=f"use {EXACT}"),)),))
        tells(journal, started, task, begun)
        for i in range(5):
            use = calls(f"t{i}", "Read", f'{{"path": "{EXACT}-{i}"}}')
            tells(journal, Text(text=f"turn {i}"), use, costs(), answers("tool_use"))
            tells(journal, results(f"t{i}", f"found {SHAPED} at {i}"))
        compacted(journal, f"seen: {EXACT} and {SHAPED}")
        assert EXACT not in msgspec.json.encode(journal.state.messages).decode()
        assert SHAPED not in msgspec.json.encode(journal.state.messages).decode()
        plain = unmasked(model_request(journal.state), journal).messages
        head = [block.text for block in plain[0].blocks]  # type: ignore[union-attr]
        assert head[0] == f"The task:\nuse {EXACT}"
        assert f"seen: {EXACT} and {SHAPED}" in head[1]
        kept = msgspec.json.encode(plain[1:]).decode()
        for i in (3, 4):
            assert f"{EXACT}-{i}" in kept
            assert f"found {SHAPED} at {i}" in kept
        for i in range(5, 9):
            use = calls(f"t{i}", "Read", f'{{"path": "{EXACT}-{i}"}}')
            tells(journal, use, costs(), answers("tool_use"), results(f"t{i}", "ok"))
        compacted(journal, f"again: {EXACT}")
        assert f"The task:\\nuse {EXACT}" in shown(journal)
        assert f"again: {EXACT}" in shown(journal)
        assert "seen:" not in shown(journal)

    play(story)
