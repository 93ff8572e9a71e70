"""What earlier runs of a session add to the conversation of a run that continues it.

Specification: loop.md section 4.1. A call that never got a result gets an error result here, so
that no provider refuses the history.
"""

from __future__ import annotations

from replay.conversation import Block, Message, Text, ToolResult, ToolUse
from replay.state import Call, State

NO_RESULT = "The run ended before this tool call had a result."


def own_messages(state: State) -> list[Message]:
    """The messages that ``state``'s run added, made complete."""
    messages = state.messages[state.history :]
    if state.turn_text or state.turn_calls:
        blocks: list[Block] = [Text(state.turn_text)] if state.turn_text else []
        blocks += [ToolUse(c.id, c.name, c.input) for c in state.turn_calls]
        messages.append(Message("assistant", tuple(blocks)))
        if state.turn_calls:
            messages.append(_results(state.turn_calls))
    elif state.calls:
        messages.append(_results(state.calls))
    return messages


def _results(calls: list[Call]) -> Message:
    return Message(
        "user",
        tuple(
            ToolResult(c.id, c.name, c.text, c.is_error)
            if c.done
            else ToolResult(c.id, c.name, NO_RESULT, True)
            for c in calls
        ),
    )
