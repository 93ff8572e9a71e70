"""Folds questions and what settled them (specification: http-runs.md section 15.2).

An answer counts from the moment it is in the run's inbox: its owner takes the first one, in the
same order. That a run's end or the clock settles a question too is the queries' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from events.inbox import AnswerMessage, InboxMessage, WithdrawMessage
from events.vocabulary import (
    CallWaiting,
    InterruptClosed,
    InterruptionBody,
    InterruptionPending,
    InterruptNotified,
)
from projections.framework import Change, Projection, Write
from projections.sources import InboxPost, JournalCommit

KIND = "question"

_FOLDED = frozenset((InterruptionPending, CallWaiting, InterruptClosed, InterruptNotified))


def fold(items: Sequence[Any]) -> list[Change]:
    """Changes of questions; all of one run share a key and so keep their order."""
    writes: list[Change] = []
    for item in items:
        if isinstance(item, JournalCommit):
            _fold_commit(item, writes)
        elif isinstance(item, InboxPost):
            _fold_message(item.run, item.message, writes)
    return writes


def _fold_commit(item: JournalCommit, writes: list[Change]) -> None:
    run = item.commit.header.run
    asked: dict[str, InterruptionBody] = {}
    for head, event in zip(item.commit.header.events, item.events, strict=True):
        if type(event) not in _FOLDED:
            continue
        match event:
            case InterruptionPending(interruption=body):
                asked[body.interrupt_id] = body
            case CallWaiting(ref=ref) if ref in asked:
                writes.append(_ask(run, asked[ref], head.ts, event))
            case InterruptClosed():
                writes.append(
                    _close(
                        run,
                        event.interrupt_id,
                        event.status,
                        event.answer,
                        event.resolved_by,
                        event.resolved_ns,
                        event.inbox,
                    )
                )
            case InterruptNotified():
                row = (event.interrupt_id, run, KIND, event.message, event.context)
                writes.append(Write("notify", run, (*row, event.priority, head.ts)))


def _ask(run: str, body: InterruptionBody, at_ns: int, waiting: CallWaiting) -> Write:
    options = msgspec.json.encode(body.options).decode() if body.options else ""
    approval = int(waiting.kind == "approval")
    row = (body.interrupt_id, run, body.kind, approval, body.question, options, body.context)
    return Write("ask", run, (*row, body.priority, at_ns, waiting.until_ns))


def _fold_message(run: str, message: InboxMessage | None, writes: list[Change]) -> None:
    match message:
        case AnswerMessage(id=ident, interrupt_id=interrupt, answer=answer, resolved_by=by):
            writes.append(_close(run, interrupt, "resolved", answer, by, message.at_ns, ident))
        case WithdrawMessage(id=ident, interrupt_id=interrupt, resolved_by=by):
            writes.append(_close(run, interrupt, "cancelled", "", by, message.at_ns, ident))


def _close(
    run: str, interrupt: str, status: str, answer: str, by: str, at_ns: int, message: str
) -> Write:
    return Write("close", run, (interrupt, run, status, answer, by, at_ns, message))


PROJECTION = Projection(
    name="interrupts",
    version=1,
    source="runs",
    tables={"interrupts": ("interrupt_id",)},
    fold=fold,
)
