"""Questions to people: their ids, how many a run has open, and what an answer gives back.

Specification: tools.md section 3.13. Pure: everything follows from the run's state.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import UNSET, Struct

from events.frames import rfc3339
from events.vocabulary import CallWaiting, InterruptClosed
from replay.state import Call, State

TOOL = "Interruption"

QUESTION = "question"
"""The kind of every interrupt of this version."""

AGENT_CANCEL = "agent_cancel"


def interrupt_id(run: str, n: int, ask: int, at_ns: int = 0) -> str:
    """Id of the question that call ``n`` of ``run`` asks for the ``ask``-th time (from 0).

    ``at_ns`` is the time of the call (``Call.ts``): ids sort by it (http-runs.md section 1.3).
    """
    derived = sha256(f"{run}.{n}.{ask}".encode()).hexdigest()
    return f"intr_{at_ns:016x}{derived[:8]}"


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
            return (
                f"interruption {closed.interrupt_id} cancelled (resolved_by={closed.resolved_by})",
                True,
            )


class _Asking(Struct):
    op: str = ""
    question: str = ""


_decode = msgspec.json.Decoder(_Asking).decode


def open_questions(state: State, n: int) -> int:
    """How many questions of the run are open when call ``n`` asks.

    Those that wait already, and those that calls before ``n`` in its turn are about to ask: so
    parallel calls agree on who comes first, whatever runs when.
    """
    return sum(_is_open(call) or (call.n < n and _will_ask(call)) for call in state.pending())


def _is_open(call: Call) -> bool:
    return call.waiting is not None and call.waiting.kind == "answer" and call.closed is None


def _will_ask(call: Call) -> bool:
    if call.name != TOOL or call.waiting is not None:
        return False
    given = call.input
    if call.prepared is not None:
        if call.prepared.denied is not None:
            return False
        given = given if call.prepared.input is UNSET else call.prepared.input
    try:
        asking = _decode(given)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    return asking.op == "ask" and bool(asking.question)
