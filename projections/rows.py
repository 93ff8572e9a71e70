"""Rows as queries return them. Times are unix nanoseconds; 0 means "not yet"."""

from __future__ import annotations

from msgspec import Struct


class Session(Struct, frozen=True):
    id: str
    tenant: str
    agent: str
    user_id: str
    created_ns: int


class Run(Struct, frozen=True):
    """One run (http-runs.md sections 5 and 10). ``parent_context`` is JSON text or "".

    ``owner`` wrote the last commit, in ``epoch``; ``last_*`` name that commit. ``plan`` names
    the plan blob, which holds the resolved model while no usage was reported yet. ``fault``
    says why the fold stopped: ``fault_kind`` is "", ``broken`` or ``held``.
    """

    id: str
    session_id: str
    tenant: str
    agent: str
    agent_id: str
    user_id: str
    user_tier: str
    parent_agent_id: str
    parent_context: str
    status: str
    stop_reason: str
    error: str
    started_ns: int
    completed_ns: int
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    max_context_tokens: int
    model: str
    provider: str
    interactive: bool
    origin: str
    reader: str
    principal: str
    plan: str
    machine: int
    owner: str
    epoch: int
    parked: bool
    last_n: int
    last_commit: int
    last_hash: str
    last_commit_ns: int
    last_seq: int
    fault_kind: str
    fault: str
    fault_seq: int
    awaited_state: str
    awaited_on: str


class Due(Struct, frozen=True):
    """A run that the sweeper has to see to, and ``cause``: why (``parks/queries.sql``).

    ``last_commit`` and ``last_seq`` name the commit that this was told from. ``mark`` rises when
    there is more of the cause.
    """

    id: str
    tenant: str
    last_commit: int
    last_seq: int
    cause: str
    mark: int


class Witness(Struct, frozen=True):
    """A commit that was stored once; ``last_seq`` is its stream sequence."""

    run_id: str
    tenant: str
    last_commit: int
    last_seq: int


class TranscriptRow(Struct, frozen=True):
    """``event`` is JSON text; ``payload`` too, for user_input and system_prompt, else None."""

    seq: int
    session_id: str
    run_id: str
    tenant: str
    ts_ns: int
    type: str
    event: str
    payload: str | None


class MemoryRow(Struct, frozen=True):
    """``value`` is JSON text as written; ``expires_ns`` None means never."""

    tenant: str
    scope: str
    scope_id: str
    key: str
    value: str
    expires_ns: int | None
    created_ns: int
    updated_ns: int


class MemoryScope(Struct, frozen=True):
    """``bytes`` counts keys and values of live rows."""

    tenant: str
    scope_id: str
    key_count: int
    bytes: int
    updated_ns: int


class Interrupt(Struct, frozen=True):
    """A question to a person (http-runs.md section 15.2). ``options`` is a JSON array or "".

    ``status`` is what holds at the reader's clock; ``message`` the inbox message that settled it.
    ``approval``: the answer decides whether a tool call may run.
    """

    id: str
    run_id: str
    tenant: str
    user_id: str
    agent_id: str
    agent: str
    kind: str
    approval: bool
    status: str
    question: str
    options: str
    context: str
    priority: str
    answer: str
    created_ns: int
    expires_ns: int
    resolved_ns: int
    resolved_by: str
    message: str


class Hook(Struct, frozen=True):
    """A registered hook (hooks.md section 2); None where no patterns were given."""

    id: str
    tenant: str
    owner: str
    name: str
    phase: str
    agents: tuple[str, ...] | None
    tools: tuple[str, ...] | None
    callback_url: str
    fail_mode: str
    timeout_ms: int
    registered_ns: int


class Evaluation(Struct, frozen=True):
    """What somebody said of a run (tools.md section 3.14). ``dimensions`` and ``judgement`` are
    JSON text, None when not given."""

    eval_id: str
    tenant: str
    run_id: str
    def_id: str
    score: float
    dimensions: str | None
    judgement: str | None
    rationale: str
    emitter_role: str
    emitter_agent_id: str
    emitter_run_id: str
    created_ns: int


class EvaluationStats(Struct, frozen=True):
    """Statistics of one group of values: ``kind`` is ``score`` (all of them), ``role`` (scores
    given by ``name``) or ``dimension`` (values of ``name``)."""

    kind: str
    name: str
    mean: float
    median: float
    min: float
    max: float
    latest: float
    count: int


class LiveCounts(Struct, frozen=True):
    """Running runs. ``per_user``: (tenant, user id) -> runs that are not parked."""

    active: int
    parked: int
    per_user: dict[tuple[str, str], int]


class Problem(Struct, frozen=True):
    """Something that could not be folded: ``kind`` is ``broken`` or ``held``."""

    view: str
    what: str
    kind: str
    reason: str
    seq: int
