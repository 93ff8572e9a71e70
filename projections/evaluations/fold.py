"""Folds evaluations into rows (specification: tools.md section 3.14).

An evaluation never changes, so the first message of an id counts. Its dimensions have rows of
their own, which the statistics are taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from events.evaluations import EvaluationSubmitted
from projections.framework import Change, Params, Projection, Rows
from projections.sources import EvaluationFault, EvaluationWrite

_encode = msgspec.json.Encoder(order="sorted").encode


def fold(items: Sequence[Any]) -> list[Change]:
    """Rows of evaluations and their dimensions; unreadable messages are noted as faults."""
    evaluations: list[Params] = []
    dimensions: list[Params] = []
    faults: list[Params] = []
    for item in items:
        match item:
            case EvaluationWrite(seq, event):
                evaluations.append(_row(seq, event))
                given = sorted((event.dimensions or {}).items())
                dimensions += (
                    (event.eval_id, place, name, value) for place, (name, value) in enumerate(given)
                )
            case EvaluationFault(seq, subject, reason):
                faults.append((seq, subject, reason))
    return [
        Rows("add_evaluation", evaluations),
        Rows("add_dimension", dimensions),
        Rows("note_evaluation_fault", faults),
    ]


def _row(seq: int, event: EvaluationSubmitted) -> Params:
    dimensions = None if event.dimensions is None else _encode(event.dimensions).decode()
    judgement = None
    if event.judgement is not UNSET:
        judgement = bytes(event.judgement).decode("utf-8", "replace")
    return (
        event.eval_id,
        event.tenant,
        event.run_id,
        event.def_id,
        event.score,
        dimensions,
        judgement,
        event.rationale,
        event.emitter_role,
        event.emitter_agent_id,
        event.emitter_run_id,
        event.created_at_ns,
        seq,
    )


PROJECTION = Projection(
    name="evaluations",
    version=1,
    source="state",
    tables={
        "evaluations": ("eval_id",),
        "evaluation_dimensions": ("eval_id", "place"),
        "evaluation_faults": ("seq",),
    },
    fold=fold,
)
