"""Evaluation: judge a run, and read what was judged. Specification: tools.md section 3.14.

Who may do what, and how it is worded; where evaluations are kept is ``loomcycle/evaluations``.
The role of who judges is derived, never taken from the input.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from loomcycle.evaluations.errors import EvaluationsUnavailable
from loomcycle.evaluations.roles import READ_ANY, Judged, may_submit, role_of, scopes_for
from loomcycle.evaluations.store import Evaluations, Submission
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.policy import side_effect_class
from loomcycle.tools.timestamps import rfc3339_nano
from projections.rows import Evaluation as Row

DEFAULT_MAX_JUDGEMENT_BYTES = 32_768
DEFAULT_MAX_RATIONALE_BYTES = 8_192
OVERHEAD_BYTES = 4_096
"""What an input may hold beside its judgement and rationale."""

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000

LARGEST = 1e200
"""Sums over any number of values up to it stay numbers."""

_NULL = Raw(b"null")


class EvaluationInput(Struct):
    """The input of every operation; each reads the fields it needs."""

    op: str | None = None
    run_id: str | None = None
    eval_id: str | None = None
    def_id: str | None = None
    score: float | None = None
    dimensions: dict[str, float] | None = None
    judgement: Raw | UnsetType = UNSET
    rationale: str | None = None
    include_lineage: bool | None = None
    limit: int | None = None


class _Submitted(Struct):
    eval_id: str
    run_id: str
    def_id: str
    emitter_role: str
    score: float
    created_at: str


class _Shown(Struct):
    """One evaluation; all keys are always there."""

    eval_id: str
    run_id: str
    def_id: str
    score: float
    dimensions: Raw
    judgement: Raw
    rationale: str
    emitter_role: str
    emitter_agent_id: str
    emitter_run_id: str
    created_at: str


class Refused(Exception):
    """The text of an error result, behind the operation's name."""


_decoder = msgspec.json.Decoder(EvaluationInput)
_scopes = msgspec.json.Decoder(tuple[str, ...])


class Evaluation:
    """``max_judgement_bytes`` and ``max_rationale_bytes``: 0 or less = no cap."""

    name = "Evaluation"
    repeat = Repeat.OWN_STORE
    side_effect_class = side_effect_class("Evaluation")
    description = (
        "Judge a run and read judgements. submit gives a run (run_id) a score, and optionally"
        " dimensions (numbers by name), a judgement (any JSON) and a rationale; get, list_for_run"
        " and list_for_def show evaluations; aggregate sums up those of a definition."
    )

    def __init__(
        self,
        store: Evaluations | None,
        *,
        max_judgement_bytes: int = DEFAULT_MAX_JUDGEMENT_BYTES,
        max_rationale_bytes: int = DEFAULT_MAX_RATIONALE_BYTES,
    ) -> None:
        self._store = store
        self._max_judgement = max_judgement_bytes
        self._max_rationale = max_rationale_bytes
        self.input_schema = _input_schema()

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        if self._store is None:
            return ToolOutput("evaluation store not configured on this server", True)
        if self._max_judgement > 0 and self._max_rationale > 0:
            most = self._max_judgement + self._max_rationale + OVERHEAD_BYTES
            if len(input_json) > most:
                return ToolOutput(f"input of {len(input_json)} bytes exceeds max {most}", True)
        try:
            input_json.decode()
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return ToolOutput(f"invalid input JSON: {error}", True)
        if not request.op:
            return ToolOutput("missing required field: op", True)
        operation = _OPERATIONS.get(request.op)
        if operation is None:
            known = ", ".join(_OPERATIONS)
            return ToolOutput(f'unknown op "{request.op}" (must be one of: {known})', True)
        limits = (self._max_judgement, self._max_rationale)
        try:
            answer = await operation(_Call(self._store, request, context, *limits))
        except Refused as refusal:
            return ToolOutput(f"{request.op}: {refusal}", True)
        except EvaluationsUnavailable as failure:
            return ToolOutput(f"{request.op}: {failure.reason}", True)
        return ToolOutput(msgspec.json.encode(answer).decode())


class _Call(NamedTuple):
    store: Evaluations
    request: EvaluationInput
    context: CallContext
    max_judgement: int
    max_rationale: int

    @property
    def scopes(self) -> tuple[str, ...]:
        given = self.context.plan.extra.get("evaluation_scopes")
        return _scopes.decode(given) if given is not None else ()

    @property
    def limit(self) -> int:
        limit = self.request.limit or 0
        return min(limit, MAX_LIMIT) if limit > 0 else DEFAULT_LIMIT

    def required(self, field: str) -> str:
        value: str | None = getattr(self.request, field)
        if not value:
            raise Refused(f"missing required field: {field}")
        return value

    def check_reading(self) -> None:
        if READ_ANY not in self.scopes:
            raise Refused(f"evaluation access denied: evaluation_scopes has no {READ_ANY}")


async def _submit(call: _Call) -> _Submitted:
    request, context = call.request, call.context
    run_id = call.required("run_id")
    score = request.score
    if score is None:
        raise Refused("missing required field: score")
    _check_sizes(call, score)
    judged = await call.store.judged(context.tenant, run_id)
    if judged is None:
        raise Refused(f'run_id "{run_id}" not found')
    stored = await call.store.submit(_submission(call, judged, score))
    return _Submitted(
        stored.eval_id,
        stored.run_id,
        stored.def_id,
        stored.emitter_role,
        stored.score,
        rfc3339_nano(stored.created_at_ns),
    )


def _submission(call: _Call, judged: Judged, score: float) -> Submission:
    """Raises Refused when the caller may not judge this run."""
    request, context = call.request, call.context
    role = role_of(context.agent_id, judged)
    if not may_submit(role, call.scopes):
        needed = " or ".join(scopes_for(role))
        raise Refused(f"evaluation access denied: role {role} needs {needed} in evaluation_scopes")
    return Submission(
        tenant=context.tenant,
        judged=judged,
        score=score,
        dimensions=request.dimensions,
        judgement=_given(request.judgement),
        rationale=request.rationale or "",
        role=role,
        emitter_agent_id=context.agent_id,
        effect_id=context.effect_id or uuid.uuid4().hex,
        now_ns=context.now_ns,
    )


def _check_sizes(call: _Call, score: float) -> None:
    request = call.request
    judgement = _given(request.judgement)
    if judgement is not UNSET:
        _check_size("judgement", len(bytes(judgement)), call.max_judgement)
    _check_size(
        "rationale", len((request.rationale or "").encode(errors="replace")), call.max_rationale
    )
    for name, value in [("score", score), *(request.dimensions or {}).items()]:
        if abs(value) > LARGEST:
            raise Refused(f"{name}: {value:g} exceeds max {LARGEST:g}")


def _check_size(field: str, size: int, most: int) -> None:
    if 0 < most < size:
        raise Refused(f"{field} of {size} bytes exceeds max {most}")


def _given(value: Raw | UnsetType) -> Raw | UnsetType:
    """JSON null says the same as leaving it out."""
    return UNSET if value is UNSET or bytes(value) == b"null" else value


async def _get(call: _Call) -> _Shown:
    call.check_reading()
    eval_id = call.required("eval_id")
    row = await call.store.get(call.context.tenant, eval_id)
    if row is None:
        raise Refused(f'eval_id "{eval_id}" not found')
    return _shown(row)


async def _list_for_run(call: _Call) -> dict[str, Any]:
    call.check_reading()
    run_id = call.required("run_id")
    rows = await call.store.of_run(call.context.tenant, run_id, call.limit)
    return {"run_id": run_id, "evaluations": [_shown(row) for row in rows]}


async def _list_for_def(call: _Call) -> dict[str, Any]:
    call.check_reading()
    def_id = call.required("def_id")
    rows = await call.store.of_definition(call.context.tenant, def_id, call.limit)
    return {"def_id": def_id, "evaluations": [_shown(row) for row in rows]}


async def _aggregate(call: _Call) -> Struct:
    call.check_reading()
    def_id = call.required("def_id")
    lineage = bool(call.request.include_lineage)
    return await call.store.aggregate(call.context.tenant, def_id, lineage=lineage)


_OPERATIONS: dict[str, Callable[[_Call], Awaitable[object]]] = {
    "submit": _submit,
    "get": _get,
    "list_for_run": _list_for_run,
    "list_for_def": _list_for_def,
    "aggregate": _aggregate,
}


def _shown(row: Row) -> _Shown:
    return _Shown(
        eval_id=row.eval_id,
        run_id=row.run_id,
        def_id=row.def_id,
        score=row.score,
        dimensions=_raw(row.dimensions),
        judgement=_raw(row.judgement),
        rationale=row.rationale,
        emitter_role=row.emitter_role,
        emitter_agent_id=row.emitter_agent_id,
        emitter_run_id=row.emitter_run_id,
        created_at=rfc3339_nano(row.created_ns),
    )


def _raw(json_text: str | None) -> Raw:
    return _NULL if json_text is None else Raw(json_text.encode())


def _input_schema() -> bytes:
    text = {"type": "string"}
    return msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": list(_OPERATIONS)},
                "run_id": {"type": "string", "description": "submit, list_for_run: which run."},
                "eval_id": {"type": "string", "description": "get: which evaluation."},
                "def_id": {"type": "string", "description": "list_for_def, aggregate."},
                "score": {"type": "number", "description": "submit: any number; 0 counts."},
                "dimensions": {
                    "type": "object",
                    "description": "submit: further numbers by name.",
                    "additionalProperties": {"type": "number"},
                },
                "judgement": {"description": "submit: any JSON."},
                "rationale": text | {"description": "submit: why."},
                "include_lineage": {
                    "type": "boolean",
                    "description": "aggregate: count the definition's ancestors too.",
                },
                "limit": {"type": "integer", "description": "list_for_*: how many; 100 if unset."},
            },
            "required": ["op"],
            "additionalProperties": False,
        }
    )
