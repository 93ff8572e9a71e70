"""Proof of waits: parks where nothing is left to do, questions that follow from their calls.

What people said is taken from the journal; that a question was asked within its bounds, settled
while it was open, and that the run let go only where it had to wait, is derived again.
"""

from __future__ import annotations

from events.vocabulary import CallWaiting, Event, InterruptClosed, RunParked
from replay.interrupts import TOOL, interrupt_id, open_questions
from replay.machine import CallModel, CallTools, Compact, Park, StartChildren, next_effect
from replay.state import State

LEFT_FOR_LATER = (CallModel, CallTools, Compact, StartChildren)
"""Effects that do not begin while the runtime is paused."""

DERIVED = 8
"""Digits at the end of an id that follow from its call; those before tell the time."""


def problem(state: State, event: Event) -> str:
    """Why ``event`` cannot stand here; "" when it can, or when it is of no concern."""
    match event:
        case RunParked():
            return _parked(state, event)
        case CallWaiting(kind="answer"):
            return _asked(state, event)
        case InterruptClosed():
            return _settled(state, event)
        case _:
            return ""


def _parked(state: State, event: RunParked) -> str:
    effect = next_effect(state)
    if event.reason == "pause":
        return "" if isinstance(effect, LEFT_FOR_LATER) else "paused where nothing was to begin"
    if not isinstance(effect, Park):
        return f"let go for {event.reason} where something is left to do"
    if (event.reason, event.until_ns) != (effect.reason, effect.until_ns):
        return f"let go for {event.reason} until {event.until_ns}, derived is {effect}"
    return ""


def _asked(state: State, event: CallWaiting) -> str:
    effect = next_effect(state)
    due = effect.calls if isinstance(effect, CallTools) else ()
    call = next((c for c in due if c.id == event.tool_use_id and c.name == TOOL), None)
    if call is None:
        return f"call {event.tool_use_id} asks where it is not due"
    derived = interrupt_id(state.run, call.n, 0)
    if event.ref[-DERIVED:] != derived[-DERIVED:]:
        return f"the question's id is {event.ref}, derived it ends in {derived[-DERIVED:]}"
    cap = state.plan.interruption.max_pending
    if 0 < cap <= open_questions(state, call.n):
        return f"call {call.id} asks beyond {cap} open questions"
    return ""


def _settled(state: State, event: InterruptClosed) -> str:
    for call in state.pending():
        waiting = call.waiting
        if waiting is None or waiting.ref != event.interrupt_id or call.closed is not None:
            continue
        if event.status == "timed_out" and not 0 < waiting.until_ns <= event.resolved_ns:
            return f"{event.interrupt_id} is timed out before its time"
        return ""
    return f"no call waits for {event.interrupt_id}"
