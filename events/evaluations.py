"""Evaluations of runs: one JSON object per message on ``eval.<tenant>.<run>.<eval id>`` of STATE.

Specification: tools.md section 3.14. An evaluation is submitted once and never changed, so its
subject holds one message. Nothing here reads a clock or appends.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from events.state import STATE_VERSION, FutureState, UnreadableState


class EvaluationSubmitted(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="evaluation.submitted"
):
    """Somebody judged a run.

    ``def_id`` is the pinned definition of the judged run, "" for a static agent. ``judgement`` is
    JSON, byte for byte as submitted. ``emitter_role`` is what the submitter was to the run
    (``external``, ``self``, ``parent`` or ``unrelated``). ``effect_id`` lets a recovered run find
    its own submission (kernel.md section 5). Times are unix nanoseconds.
    """

    eval_id: str
    tenant: str = ""
    run_id: str
    def_id: str = ""
    score: float
    dimensions: dict[str, float] | None = None
    judgement: Raw | UnsetType = UNSET
    rationale: str = ""
    emitter_role: str
    emitter_agent_id: str = ""
    emitter_run_id: str = ""
    created_at_ns: int
    effect_id: str = ""
    v: int = STATE_VERSION
    must_understand: bool = True


class _Envelope(Struct):
    type: str = ""
    v: int = STATE_VERSION
    must_understand: bool = True


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EvaluationSubmitted).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def eval_id(effect_id: str, attempt: int = 0) -> str:
    """The id of what an effect submits: ``eval_`` and 16 hex digits, the same whenever asked.

    ``attempt`` rises when another effect has the same digits.
    """
    name = f"{effect_id}#{attempt}" if attempt else effect_id
    return "eval_" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def decode(data: bytes) -> EvaluationSubmitted | None:
    """Inverse of ``encode``; None for a newer event that need not be understood.

    Raises UnreadableState, FutureState.
    """
    try:
        envelope = _decode_envelope(data)
        known = envelope.type == EvaluationSubmitted.__struct_config__.tag
        if known and envelope.v <= STATE_VERSION:
            return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise UnreadableState(f"not an evaluation: {cause}") from None
    if not envelope.type:
        raise UnreadableState("names no type")
    if envelope.must_understand:
        raise FutureState(f"event has unknown type {envelope.type!r} version {envelope.v}")
    return None
