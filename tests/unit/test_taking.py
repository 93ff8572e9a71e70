"""What messages to a run become, and when a person's words have a place."""

from __future__ import annotations

import json

import pytest

from events import inbox
from events.log import Message
from events.memory_store import MemoryServer
from events.vocabulary import (
    AwaitingInput,
    AwaitingInputBody,
    CallWaiting,
    Event,
    InterruptClosed,
    RunParked,
    UserInput,
)
from loomcycle.call_input import answered_text
from loomcycle.journal import RunJournal
from loomcycle.masking import Redaction
from loomcycle.redaction import Redactor
from loomcycle.taking import (
    NOTHING,
    concerns,
    meaning,
    seal_name,
    take_inbox,
    timed_out,
    unsealed,
)
from replay.machine import CloseCall, next_effect
from replay.state import State
from tests.stories import answers, calls, cancels, fails, opens, results, told

ASKED = [
    *opens(),
    calls("t1", "Interruption"),
    answers("tool_use"),
    CallWaiting(tool_use_id="t1", kind="answer", ref="intr_1", until_ns=50),
]
PARKED = [
    *opens(interactive=True),
    answers(),
    AwaitingInput(awaiting_input=AwaitingInputBody(0)),
    RunParked(reason="input"),
]


def message(item: inbox.InboxMessage, seq: int = 1) -> Message:
    return Message("subject", seq, 0, inbox.encode(item))


def says(text: str, ident: str = "i_1", *, sealed: bool = False) -> inbox.InputMessage:
    return inbox.InputMessage(id=ident, text=text, sealed=sealed)


class Silent:
    def committed(self, *_: object) -> None:
        pass


async def taken(
    state: State, *items: inbox.InboxMessage, plain: dict[str, str] | None = None
) -> tuple[RunJournal, list[str]]:
    """The journal after it took ``items``, and the texts that the model sees last."""
    journal = RunJournal(
        MemoryServer().connect("w1"),
        state,
        tenant="",
        run_id="r_ab00000000000001",
        worker="w1",
        epoch=1,
        now_ns=lambda: 100,
        observer=Silent(),
        masker=Redaction(Redactor([], shapes=False)).for_run({"db": "hunter2hunter2"}),
    )
    before = len(state.messages)
    journal.inbox = [message(item, seq) for seq, item in enumerate(items, 1)]
    take_inbox(journal, plain or NOTHING)
    return journal, [block.text for m in state.messages[before:] for block in m.blocks]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "story",
    [
        opens(),
        [*opens(), answers()],
        PARKED,
        [*opens(), calls("t1"), answers("tool_use"), results("t1")],
    ],
    ids=["model", "ending", "parked", "after-tools"],
)
async def test_words_become_turns_in_order_at_a_boundary(story: list[Event]) -> None:
    journal, texts = await taken(told(*story), says("one"), says("two", "i_2"))
    assert texts == ["one", "two"]
    assert journal.inbox == []
    again, texts = await taken(journal.state, says("one"))
    assert (texts, again.staged) == ([], 0)


@pytest.mark.parametrize(
    "story",
    [ASKED, [*opens(), fails()], [*opens(), cancels()]],
    ids=["between-call-and-result", "failed", "cancelled"],
)
async def test_words_wait_where_they_have_no_place(story: list[Event]) -> None:
    journal, texts = await taken(told(*story), says("meanwhile", "i_9"))
    assert texts == []
    assert len(journal.inbox) == 1
    assert journal.staged == 0


async def test_words_that_hold_a_mask_are_known_to_the_model_while_their_seal_is() -> None:
    shown, said = "it is [redacted]", "it is hunter2hunter2"
    journal, _ = await taken(told(*PARKED), says(shown, sealed=True), plain={"i_1": said})
    (event,) = journal.plain.values()
    assert isinstance(event, UserInput)
    assert event.payload[0].content[0].text == said
    journal, texts = await taken(told(*PARKED), says(shown, sealed=True))
    assert (journal.plain, texts) == ({}, [shown])


async def test_an_answer_that_holds_a_mask_is_known_to_the_model_while_its_seal_is() -> None:
    shown, said = "it is [redacted:credential]", "it is hunter2hunter2"
    answer = inbox.AnswerMessage(id="i_1", interrupt_id="intr_1", answer=shown, sealed=True)
    for plain in ({"i_1": said}, {}):
        journal, _ = await taken(told(*ASKED), answer, plain=plain)
        effect = next_effect(journal.state)
        assert isinstance(effect, CloseCall)
        assert json.loads(effect.text)["answer"] == shown
        really = json.loads(answered_text(effect, journal))["answer"]
        assert really == (said if plain else shown)


async def test_what_was_really_said_is_read_from_its_seal_while_it_is_unread() -> None:
    seals = MemoryServer().connect("w1").seals
    for ident in ("i_1", "i_2", "i_3"):
        await seals.put("r_ab00000000000001", seal_name(ident), f"plain {ident}".encode())
    answer = inbox.AnswerMessage(id="i_1", interrupt_id="intr_1", answer="masked", sealed=True)
    clear = inbox.AnswerMessage(id="i_2", interrupt_id="intr_1", answer="clear")
    journal, _ = await taken(told(*opens()))
    journal.inbox = [message(answer), message(clear), message(says("masked", "i_3", sealed=True))]
    assert await unsealed(journal, seals) == {"i_1": "plain i_1", "i_3": "plain i_3"}


def test_only_the_first_word_about_a_question_counts() -> None:
    first = inbox.AnswerMessage(id="i_1", interrupt_id="intr_1", answer="yes", at_ns=7)
    event = meaning(first, told(*ASKED))
    assert event == InterruptClosed(
        interrupt_id="intr_1",
        status="resolved",
        answer="yes",
        resolved_by="api",
        resolved_ns=7,
        inbox="i_1",
    )
    state = told(*ASKED, event)
    second = inbox.AnswerMessage(id="i_2", interrupt_id="intr_1", answer="no")
    back = inbox.WithdrawMessage(id="i_3", interrupt_id="intr_1")
    assert meaning(second, state) is meaning(back, state) is None
    assert not concerns([message(second), message(back)], state)
    assert concerns([message(back)], told(*ASKED))


def test_a_question_is_over_at_its_time_unless_it_was_settled_before() -> None:
    state = told(*ASKED)
    assert timed_out(state, 49) == []
    (event,) = timed_out(state, 50)
    assert isinstance(event, InterruptClosed)
    assert (event.interrupt_id, event.status) == ("intr_1", "timed_out")
    assert timed_out(told(*ASKED, event), 60) == []
