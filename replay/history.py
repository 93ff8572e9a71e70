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
    return state.messages[state.history :] + completion(state)


def conversation_after(history: list[Message], state: State) -> list[Message]:
    """What a session has said once the run of ``state`` is over; ``history`` came before it.

    A run that compacted the conversation it continues has replaced what came before.
    """
    if state.facts is not None and state.facts.continues:
        return state.messages + completion(state)
    return history + own_messages(state)


def completion(state: State) -> list[Message]:
    """What is missing at the end of ``state``'s messages: its open turn, results of its calls."""
    if state.turn_text or state.turn_calls:
        blocks: list[Block] = [Text(state.turn_text)] if state.turn_text else []
        blocks += [ToolUse(c.id, c.name, c.input) for c in state.turn_calls]
        turn = Message("assistant", tuple(blocks))
        return [turn, _results(state.turn_calls)] if state.turn_calls else [turn]
    return [_results(state.calls)] if state.calls else []


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
