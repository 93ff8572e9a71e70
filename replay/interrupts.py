"""What a call that asked a person gives back, once the question is settled (tools.md 3.13)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from events.vocabulary import CallWaiting, InterruptClosed
from replay.state import Call


def result(call: Call, waiting: CallWaiting, closed: InterruptClosed) -> tuple[str, bool]:
    """(text, is_error) of the call's result."""
    if waiting.kind == "approval":
        reason = {"resolved": "denied", "timed_out": "not approved in time"}
        return f"{call.name} was not run: {reason.get(closed.status, 'approval withdrawn')}", True
    match closed.status:
        case "resolved":
            answer = {
                "interrupt_id": closed.interrupt_id,
                "answer": closed.answer,
                "resolved_at": rfc3339(closed.resolved_ns),
                "resolved_by": closed.resolved_by,
            }
            return msgspec.json.encode(answer).decode(), False
        case "timed_out":
            return f"interruption {closed.interrupt_id} timed_out: nobody answered", True
        case _:
            return f"interruption {closed.interrupt_id} cancelled (resolved_by=agent_cancel)", True


def rfc3339(ns: int) -> str:
    """UTC with nine fractional digits."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
