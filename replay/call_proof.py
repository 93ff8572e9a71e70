"""Proof of what stands around tool calls: hooks' verdicts, granted hosts, leave to run.

What hooks and people said is taken from the journal; that it was said at the right place, binds
what it claims to bind, and was obeyed, is derived again.
"""

from __future__ import annotations

from events.vocabulary import (
    CallPrepared,
    CallReviewed,
    CallWaiting,
    Event,
    HostWidened,
    ToolResult,
    ToolStarted,
)
from replay import approval
from replay.machine import CallTools, CloseCall, next_effect
from replay.state import Call, State


def problem(state: State, event: Event) -> str:
    """Why ``event`` cannot stand here; "" when it can, or when it is of no concern."""
    match event:
        case CallPrepared():
            return _prepared(state, event)
        case CallReviewed():
            due = _due(state, event.tool_use_id)
            closing = next_effect(state)
            if due or (isinstance(closing, CloseCall) and closing.call.id == event.tool_use_id):
                return ""
            return f"hooks reviewed call {event.tool_use_id}, which has no result now"
        case HostWidened():
            return _widened(state, event)
        case CallWaiting(kind=approval.KIND):
            return _asked(state, event)
        case ToolStarted() | CallWaiting():
            return _began(state, event.tool_use_id)
        case ToolResult():
            call = _due(state, event.tool_use.id)
            unknown = event.is_error and event.text.startswith("tool not found: ")
            if call is None or _is_denied(call) or unknown:
                return ""
            return _without_leave(state, call)
        case _:
            return ""


def _due(state: State, tool_use_id: str) -> Call | None:
    """The call, if the machine would perform it now."""
    effect = next_effect(state)
    if not isinstance(effect, CallTools):
        return None
    return next((call for call in effect.calls if call.id == tool_use_id), None)


def _is_denied(call: Call) -> bool:
    return call.prepared is not None and call.prepared.denied is not None


def _prepared(state: State, event: CallPrepared) -> str:
    call = _due(state, event.tool_use_id)
    if call is None:
        return f"hooks were asked about call {event.tool_use_id}, which was not due"
    if call.started:
        return f"hooks were asked about call {call.id} after it began"
    edited = approval.edit_of(call) is not None and call.waiting is not None
    seen = call.waiting.ref if edited and call.waiting is not None else ""
    if event.edit_of != seen:
        return f"hooks saw the arguments of {event.edit_of!r}, not those of {seen!r}"
    if event.denied is not None and event.hosts:
        return f"hosts were granted to call {call.id}, which was denied"
    return ""


def _widened(state: State, event: HostWidened) -> str:
    widening = event.host_widening
    call = _due(state, widening.tool_call_id)
    if call is None or call.prepared is None or call.prepared.hosts != widening.hosts_added:
        return f"hosts {widening.hosts_added} were not granted to call {widening.tool_call_id}"
    return ""


def _asked(state: State, event: CallWaiting) -> str:
    call = _due(state, event.tool_use_id)
    if call is None or not approval.required(state.plan.require_approval, call.name):
        return f"call {event.tool_use_id} needs nobody's leave now"
    if not approval.is_asked_by(state, call, event.ref, call.asked):
        return f"{event.ref} is not the next question about call {call.id}"
    derived = approval.bound_by(state, call, event.until_ns)
    return "" if event.bound == derived else f"leave binds {event.bound}, derived is {derived}"


def _began(state: State, tool_use_id: str) -> str:
    """A call begins when its tool does, or when the tool leaves its result to others."""
    call = _due(state, tool_use_id)
    if call is None:
        return f"call {tool_use_id} began where it was not due"
    if _is_denied(call):
        return f"call {call.id} began although hooks denied it"
    return _without_leave(state, call)


def _without_leave(state: State, call: Call) -> str:
    required = approval.required(state.plan.require_approval, call.name)
    if required and not approval.holds(state, call):
        return f"call {call.id} ran without leave for what it did"
    return ""
