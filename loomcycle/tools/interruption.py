"""Interruption: a run asks a person, tells one something, or takes a question back.

Specification: tools.md section 3.13. An ask gives no result: the call waits, and the machine
closes it with the answer (``replay/interrupts.py``). Answering is ``loomcycle/commands``.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from events.frames import rfc3339
from events.inbox import WithdrawMessage
from events.log import LogError
from events.plan import Interruption as Policy
from events.vocabulary import (
    CallWaiting,
    InterruptClosed,
    InterruptionBody,
    InterruptionPending,
    InterruptNotified,
)
from loomcycle.questions import Questions
from loomcycle.said import stir
from loomcycle.tools.base import CallContext, Deferred, Repeat, ToolOutput
from loomcycle.tools.policy import side_effect_class
from projections.framework import ViewUnavailable
from projections.rows import Interrupt
from replay.interrupts import AGENT_CANCEL, QUESTION, TOOL, interrupt_id, open_questions

OPERATIONS = ("ask", "notify", "cancel")
PRIORITIES = ("low", "normal", "high")
ELSEWHERE = "mcp_server:"

MAX_TIMEOUT_MS = 10**12
"""Times in nanoseconds stay numbers that views can hold."""

Priority = Literal["low", "normal", "high"]


class InterruptionInput(Struct):
    op: str | None = None
    question: str | None = None
    options: list[str] | None = None
    context: str | None = None
    timeout_ms: int | None = None
    priority: str | None = None
    message: str | None = None
    interruption_id: str | None = None


class _Notified(Struct):
    interrupt_id: str
    status: str
    created_at: str


class _Cancelled(Struct):
    interrupt_id: str
    status: str
    was_pending: bool


_decoder = msgspec.json.Decoder(InterruptionInput)


class Refused(Exception):
    """The text of an error result."""


class Interruption:
    """``questions`` finds those of other runs."""

    name = TOOL
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class(TOOL)
    description = (
        "Ask the people who operate this run. ask waits for an answer (free text, or one of"
        " options) or for timeout_ms to pass; notify tells them something and goes on; cancel"
        " takes back a question by its interruption_id."
    )
    input_schema = msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": OPERATIONS},
                "question": {"type": "string", "description": "ask: what to ask."},
                "options": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "ask: the answers to choose from; without them, free text.",
                },
                "context": {"type": "string", "description": "What helps to answer."},
                "timeout_ms": {"type": "integer", "description": "ask: how long to wait."},
                "priority": {"type": "string", "enum": PRIORITIES},
                "message": {"type": "string", "description": "notify: what to tell."},
                "interruption_id": {"type": "string", "description": "cancel: which one."},
            },
            "required": ["op"],
            "additionalProperties": False,
        }
    )

    def __init__(self, questions: Questions | None = None) -> None:
        self._questions = questions

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput | Deferred:
        try:
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return ToolOutput(f"invalid input JSON: {error}", True)
        try:
            _check_policy(context.plan.interruption, request.op)
            match request.op:
                case "ask":
                    return _ask(request, context)
                case "notify":
                    return _notify(request, context)
                case _:
                    return await self._cancel(request, context)
        except Refused as refusal:
            return ToolOutput(str(refusal), True)

    async def _cancel(self, request: InterruptionInput, context: CallContext) -> ToolOutput:
        ident = request.interruption_id
        if not ident:
            raise Refused("cancel: missing required field: interruption_id")
        own = _waiting_here(context, ident)
        if own:
            closed = InterruptClosed(
                interrupt_id=ident,
                status="cancelled",
                resolved_by=AGENT_CANCEL,
                resolved_ns=context.now_ns,
            )
            return ToolOutput(_cancelled(ident, was_pending=True), events=(closed,))
        try:
            was_pending = await self._withdraw(ident, context)
        except (ViewUnavailable, LogError) as cause:
            raise Refused(
                f"cancel: interruption {ident} cannot be looked up now: {cause}"
            ) from None
        return ToolOutput(_cancelled(ident, was_pending=was_pending))

    async def _withdraw(self, ident: str, context: CallContext) -> bool:
        """Take back a question of another run of the same user; whether it was open."""
        questions = self._questions
        found = await questions.find(ident) if questions is not None else None
        same = found is not None and (found.tenant, found.user_id) == (
            context.tenant,
            context.user_id,
        )
        if questions is None or found is None or not same:
            raise Refused(f"cancel: interruption {ident} not found")
        message = WithdrawMessage(
            id=f"w_{context.effect_id}", interrupt_id=ident, at_ns=context.now_ns
        )
        try:
            await questions.settle(found.tenant, found.run_id, message, _check_open)
        except _Settled:
            return False
        await stir(questions.store, found.tenant, found.run_id, message.id)
        return True


class _Settled(Exception):
    """The question is open no more."""


def _check_open(question: Interrupt | None) -> None:
    if question is None or question.status != "pending":
        raise _Settled


def _check_policy(policy: Policy, op: str | None) -> None:
    """Raises Refused for what the agent may not do, or this deployment cannot."""
    if not policy.enabled:
        raise Refused("interruption is not enabled for this agent: set interruption.enabled")
    if not op:
        raise Refused("missing required field: op")
    if op not in OPERATIONS:
        raise Refused(f'unknown op "{op}" (must be one of: {", ".join(OPERATIONS)})')
    if op == "cancel":
        return
    if policy.kinds and QUESTION not in policy.kinds:
        raise Refused(f'{op}: kind "{QUESTION}" is not among the agent\'s interruption.kinds')
    if op == "ask" and policy.backend.startswith(ELSEWHERE):
        raise Refused(
            f"ask: interruption.backend {policy.backend} needs MCP servers, which this version"
            " does not call: use webui or cli"
        )


def _ask(request: InterruptionInput, context: CallContext) -> Deferred:
    state = context.state
    assert state is not None
    if not request.question:
        raise Refused("ask: missing required field: question")
    policy = context.plan.interruption
    pending = open_questions(state, context.call_n)
    if 0 < policy.max_pending <= pending:
        raise Refused(f"ask: max_pending reached: {pending} of {policy.max_pending} are open")
    timeout_ms = _timeout_ms(request.timeout_ms, policy)
    until_ns = context.now_ns + timeout_ms * 1_000_000 if timeout_ms else 0
    ident = _ident(context)
    body = InterruptionBody(
        interrupt_id=ident,
        kind=QUESTION,
        question=request.question,
        options=tuple(request.options or ()),
        context=request.context or "",
        priority=_priority(request.priority),
        expires_at=rfc3339(until_ns) if until_ns else "",
    )
    waiting = CallWaiting(
        tool_use_id=context.tool_use_id, kind="answer", ref=ident, until_ns=until_ns
    )
    return Deferred(waiting, (InterruptionPending(interruption=body),))


def _timeout_ms(asked: int | None, policy: Policy) -> int:
    """0 = wait for ever. The operator's default is not clamped."""
    if asked is None or asked <= 0:
        return min(policy.default_timeout_ms, MAX_TIMEOUT_MS)
    return min(asked, policy.max_timeout_ms or MAX_TIMEOUT_MS, MAX_TIMEOUT_MS)


def _notify(request: InterruptionInput, context: CallContext) -> ToolOutput:
    if not request.message:
        raise Refused("notify: missing required field: message")
    ident = _ident(context)
    told = InterruptNotified(
        interrupt_id=ident,
        message=request.message,
        context=request.context or "",
        priority=_priority(request.priority),
    )
    done = _Notified(ident, "delivered", rfc3339(context.now_ns))
    return ToolOutput(msgspec.json.encode(done).decode(), events=(told,))


def _cancelled(ident: str, *, was_pending: bool) -> str:
    return msgspec.json.encode(_Cancelled(ident, "cancelled", was_pending)).decode()


def _waiting_here(context: CallContext, ident: str) -> bool:
    return context.state is not None and any(
        call.waiting is not None and call.waiting.ref == ident and call.closed is None
        for call in context.state.pending()
    )


def _ident(context: CallContext) -> str:
    """The same for the same call, whatever happens to its first attempt."""
    assert context.state is not None
    times = [call.ts for call in context.state.calls if call.n == context.call_n]
    return interrupt_id(context.run_id, context.call_n, 0, times[0] if times else 0)


def _priority(given: str | None) -> Priority:
    match given:
        case "low" | "high":
            return given
        case _:
            return "normal"
