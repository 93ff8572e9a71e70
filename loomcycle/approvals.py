"""Asking people whether a tool call may run: the question, committed before anybody can answer.

What an answer allows is ``replay/approval.py``; the answer's way into the journal is that of
every interrupt. The question shows the arguments as the journal holds them, masks included.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from events.frames import rfc3339
from events.vocabulary import CallWaiting, InterruptionBody, InterruptionPending
from loomcycle.tools.base import Deferred
from replay import approval
from replay.interrupts import QUESTION
from replay.state import Call, State

_MS = 1_000_000


class Subject(Struct, frozen=True):
    """What a person is asked about: the question's ``context``, as JSON."""

    tool: str
    arguments: Raw


_encode = msgspec.json.Encoder().encode


def is_missing(state: State, call: Call) -> bool:
    """Whether a person has to be asked before ``call`` may run as it would now."""
    rules = state.plan.require_approval
    return bool(rules) and approval.required(rules, call.name) and not approval.holds(state, call)


def question(state: State, call: Call, now_ns: int) -> Deferred:
    """The call waits for leave to run, for ``plan.approval_timeout_ms`` (0: for ever)."""
    timeout_ms = state.plan.approval_timeout_ms
    until_ns = now_ns + timeout_ms * _MS if timeout_ms > 0 else 0
    ident = approval.question_id(state, call, call.asked)
    asked = InterruptionPending(
        interruption=InterruptionBody(
            interrupt_id=ident,
            kind=QUESTION,
            question=f"May the tool {call.name} run with these arguments?",
            options=(approval.APPROVE, approval.DENY),
            context=_encode(Subject(call.name, approval.arguments(call))).decode(),
            priority="normal",
            expires_at=rfc3339(until_ns) if until_ns else "",
        )
    )
    waiting = CallWaiting(
        tool_use_id=call.id,
        kind=approval.KIND,
        ref=ident,
        until_ns=until_ns,
        bound=approval.bound_by(state, call, until_ns),
    )
    return Deferred(waiting, (asked,))
