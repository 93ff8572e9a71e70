"""What a run's owner takes from its inbox into the journal, and when (loop.md section 9).

A person's words become a turn at an iteration's boundary only, never between a call and its
result; answers and children's ends are taken as soon as they come; what concerns nothing (a
second answer, a late child) is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from events.content import ContentBlock, Segment
from events.inbox import (
    AnswerMessage,
    CancelMessage,
    ChildMessage,
    CompactMessage,
    InboxMessage,
    InputMessage,
    WithdrawMessage,
)
from events.inbox import decode as decode_inbox
from events.log import Message, Seals
from events.vocabulary import (
    CancelRequested,
    ChildFinished,
    CompactionRequested,
    Event,
    InterruptClosed,
    UserInput,
)
from loomcycle.journal import RunJournal
from replay.state import Call, Phase, State

AT_BOUNDARY = frozenset({Phase.MODEL, Phase.ENDING, Phase.AWAITING})

NOTHING: Mapping[str, str] = {}


def take_inbox(journal: RunJournal, plain: Mapping[str, str]) -> None:
    """Stage what the unread messages mean now; a person's words stay unread until a boundary.

    ``plain``: what was really said, by message id, where the message holds a mask.
    """
    messages, journal.inbox = journal.inbox, []
    for message in messages:
        item = _read(message)
        if item is None or item.id in journal.state.taken:
            continue
        if isinstance(item, InputMessage) and not _listens(journal.state):
            journal.inbox.append(message)
            continue
        event = meaning(item, journal.state, plain)
        if event is not None:
            journal.stage(event)


async def unsealed(journal: RunJournal, seals: Seals) -> dict[str, str]:
    """What was really said in the unread messages that hold masks, as far as it is still known."""
    plain: dict[str, str] = {}
    for message in journal.inbox:
        item = _read(message)
        if not isinstance(item, InputMessage | AnswerMessage) or item.id in journal.state.taken:
            continue
        if item.sealed:
            said = await seals.get(journal.run_id, seal_name(item.id))
            if said is not None:
                plain[item.id] = said.decode()
    return plain


def seal_name(message_id: str) -> str:
    """Name of the seal that holds what a person really said."""
    return f"said-{message_id}"


def user_turn(text: str, *, source: str = "", inbox: str = "") -> UserInput:
    """The event of a person's words."""
    segment = Segment("user", (ContentBlock("trusted-text", text),))
    return UserInput(payload=(segment,), source=source, inbox=inbox)


def _listens(state: State) -> bool:
    """Whether a person's words have a place now; a run that fails or is cancelled has none."""
    return state.phase in AT_BOUNDARY and not state.error and state.cancel is None


def concerns(messages: list[Message], state: State) -> bool:
    """Whether any of these messages would change the run."""
    for message in messages:
        item = _read(message)
        if item is None or item.id in state.taken:
            continue
        if isinstance(item, InputMessage) or meaning(item, state) is not None:
            return True
    return False


def meaning(item: InboxMessage, state: State, plain: Mapping[str, str] = NOTHING) -> Event | None:
    """The event that a message becomes in this state; None when it concerns nothing."""
    match item:
        case CancelMessage(id=ident, reason=reason):
            return CancelRequested(reason=reason, inbox=ident)
        case InputMessage(id=ident, text=text, source=source):
            return user_turn(plain.get(ident, text), source=source, inbox=ident)
        case AnswerMessage() if _asks(state, item.interrupt_id):
            return InterruptClosed(
                interrupt_id=item.interrupt_id,
                status="resolved",
                answer=plain.get(item.id, item.answer),
                resolved_by=item.resolved_by,
                resolved_ns=item.at_ns,
                inbox=item.id,
            )
        case WithdrawMessage() if _asks(state, item.interrupt_id):
            return InterruptClosed(
                interrupt_id=item.interrupt_id,
                status="cancelled",
                resolved_by=item.resolved_by,
                resolved_ns=item.at_ns,
                inbox=item.id,
            )
        case ChildMessage():
            return _child_ended(item, state)
        case CompactMessage(id=ident) if state.phase is Phase.AWAITING:
            return CompactionRequested(trigger="manual", inbox=ident)
        case _:
            return None


def timed_out(state: State, now_ns: int) -> list[Event]:
    """The questions of the run whose time is over."""
    return [
        InterruptClosed(
            interrupt_id=call.waiting.ref,
            status="timed_out",
            resolved_by="timeout",
            resolved_ns=now_ns,
        )
        for call in state.pending()
        if call.waiting is not None
        and call.closed is None
        and call.waiting.kind != "children"
        and 0 < call.waiting.until_ns <= now_ns
    ]


def _asks(state: State, interrupt_id: str) -> bool:
    return any(_waits_for(call, interrupt_id) for call in state.pending())


def _waits_for(call: Call, interrupt_id: str) -> bool:
    return call.waiting is not None and call.closed is None and call.waiting.ref == interrupt_id


def _child_ended(item: ChildMessage, state: State) -> Event | None:
    for call in state.pending():
        child = call.children.get(item.index) if call.n == item.n else None
        if child is not None and child.finished is None and child.run == item.run:
            return ChildFinished(
                tool_use_id=call.id,
                index=item.index,
                run=item.run,
                ok=item.ok,
                text=item.text,
                error=item.error,
                inbox=item.id,
            )
    return None


def _read(message: Message) -> InboxMessage | None:
    try:
        return decode_inbox(message.data)
    except msgspec.DecodeError:
        return None
