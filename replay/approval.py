"""Approvals: which calls need one, what exactly a person allowed, and what an answer means.

An approval binds tool, canonical arguments, principal, definition and expiry, in one run;
whatever changes one of them afterwards (a hook, a fork, a replay elsewhere), or lets the expiry
pass before the call could begin, needs another one. Pure: a verifier derives the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw

from events.vocabulary import InterruptClosed
from replay.interrupts import interrupt_id
from replay.state import Call, State

APPROVE = "approve"
DENY = "deny"

KIND: Literal["approval"] = "approval"
"""``CallWaiting.kind`` of a call that waits for leave to run."""

_canonical = msgspec.json.Encoder(order="sorted").encode


def required(rules: Iterable[str], tool: str) -> bool:
    """Whether a rule (an exact name, or a prefix and ``*``) names ``tool``."""
    return any(tool.startswith(rule[:-1]) if rule.endswith("*") else tool == rule for rule in rules)


def bound(tool: str, arguments: Raw, principal: str, definition: str, until_ns: int) -> str:
    """Hex SHA-256 of what an approval allows."""
    value = _value(arguments)
    return sha256(_canonical([tool, value, principal, definition, until_ns])).hexdigest()


def is_answer(text: str) -> bool:
    """Whether ``text`` answers a request for approval: ``approve``, ``deny``, or an object."""
    return text.strip() in (APPROVE, DENY) or arguments_in(text) is not None


def edited(closed: InterruptClosed) -> Raw | None:
    """The arguments that the person gave instead of the model's; None when there are none."""
    return arguments_in(closed.answer)


def allows(closed: InterruptClosed) -> bool:
    """Whether the answer lets the call run."""
    if closed.status != "resolved":
        return False
    return closed.answer.strip() == APPROVE or edited(closed) is not None


def edit_of(call: Call) -> Raw | None:
    """The arguments that the answer to the call's question put in place of those it showed.

    None when the leave has expired: the next question shows what the last one did.
    """
    if not call.allowed or call.closed is None or is_over(call):
        return None
    return edited(call.closed)


def is_over(call: Call) -> bool:
    """Whether the leave had expired when the call could begin; one that began, began in time.

    Judged by the journal: by the commit that holds the answer, or the last claim after it.
    """
    waiting = call.waiting
    return waiting is not None and not call.started and 0 < waiting.until_ns <= call.leave_ns


def is_prepared(call: Call) -> bool:
    """Whether hooks have seen the arguments that the call would run with."""
    if call.prepared is None:
        return False
    return edit_of(call) is None or _is_edit_prepared(call)


def arguments(call: Call) -> Raw:
    """What the call would run with, masked where the journal is: the latest of the model's
    input, a person's edit, and what hooks made of either."""
    edit = edit_of(call)
    if edit is not None and not _is_edit_prepared(call):
        return edit
    return shown(call)


def shown(call: Call) -> Raw:
    """What the call's question shows: its arguments before a person edits them."""
    prepared = call.prepared
    return call.input if prepared is None or prepared.input is UNSET else prepared.input


def question_id(state: State, call: Call, asked: int) -> str:
    """Id of the ``asked``-th question (from 0) whether ``call`` may run.

    Numbers below zero, for a tool that asks counts its own questions from zero.
    """
    return interrupt_id(state.run, call.n, -1 - asked, call.ts)


def is_asked_by(state: State, call: Call, ref: str, asked: int) -> bool:
    """Whether ``ref`` is the ``asked``-th question about the call, in this very run.

    The time in an id is not compared: it is that of a clock, not of the journal.
    """
    digits = 8
    return ref[-digits:] == question_id(state, call, asked)[-digits:]


def bound_by(state: State, call: Call, until_ns: int) -> str:
    """The hash of what the call would do now, asked until ``until_ns``."""
    facts = state.started
    return bound(call.name, arguments(call), facts.principal, facts.plan, until_ns)


def holds(state: State, call: Call) -> bool:
    """Whether what a person allowed is what would run now."""
    waiting = call.waiting
    if not call.allowed or waiting is None or waiting.kind != KIND or is_over(call):
        return False
    if not is_asked_by(state, call, waiting.ref, call.asked - 1):
        return False
    edit = edit_of(call)
    if edit is not None and _is_edit_prepared(call):
        return bool(_value(shown(call)) == _value(edit))
    facts = state.started
    now = bound(call.name, shown(call), facts.principal, facts.plan, waiting.until_ns)
    return now == waiting.bound


def _is_edit_prepared(call: Call) -> bool:
    prepared, waiting = call.prepared, call.waiting
    return prepared is not None and waiting is not None and prepared.edit_of == waiting.ref


def arguments_in(text: str) -> Raw | None:
    """The JSON object that an answer is; None when it is none."""
    text = text.strip()
    if not text.startswith("{"):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Raw(text.encode()) if isinstance(value, dict) else None


def _value(arguments: Raw) -> Any:
    """The JSON value, or the bytes where a model's arguments are none."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return bytes(arguments)
