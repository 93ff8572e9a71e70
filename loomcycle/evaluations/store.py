"""Evaluations: submitted once as events of STATE, read from their view.

The id of an evaluation follows from the effect that submits it, and its subject must be empty:
so a submission that is repeated after a crash or a lost answer is the same one, however late.
Known secrets are masked on the way in (exact values only, kernel.md section 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from events import evaluations
from events.commit import JournalError
from events.evaluations import EvaluationSubmitted
from events.log import EventStore, LogError, LogUnavailable, OutcomeUnknown, WrongSequence
from events.state import StateError
from loomcycle.evaluations.errors import EvaluationsUnavailable
from loomcycle.evaluations.roles import Judged, Role
from loomcycle.evaluations.statistics import Aggregate, aggregate
from loomcycle.loading import Plans, opening, whole_commit
from loomcycle.redaction import Redactor
from projections.framework import ViewUnavailable
from projections.rows import Evaluation
from projections.views import Views

PATIENCE_S = 600.0
"""How long an operation waits for an unavailable log before it gives up."""

_RETRY_S = 0.1
_STREAM = "STATE"

T = TypeVar("T")


class Submission(Struct, frozen=True, kw_only=True):
    """What is to be stored. ``effect_id`` names the submitter's effect and is never used twice."""

    tenant: str
    judged: Judged
    score: float
    dimensions: dict[str, float] | None = None
    judgement: Raw | UnsetType = UNSET
    rationale: str = ""
    role: Role
    emitter_agent_id: str = ""
    effect_id: str
    now_ns: int


class Evaluations:
    """``redactor`` None masks nothing. ``timeout_s``: how long the view may need to catch up.

    Reads show what was submitted before, on any replica; ``tenant`` None means every tenant's.
    All methods raise EvaluationsUnavailable.
    """

    def __init__(
        self,
        store: EventStore,
        views: Views,
        plans: Plans,
        *,
        redactor: Redactor | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._store = store
        self._views = views
        self._plans = plans
        self._redactor = redactor
        self._timeout_s = timeout_s

    async def judged(self, tenant: str | None, run_id: str) -> Judged | None:
        """The run that somebody wants to judge; None when the tenant has no such run."""
        return await self._patiently(lambda: self._judged(tenant, run_id))

    async def submit(self, submission: Submission) -> EvaluationSubmitted:
        """Store an evaluation, once; the answer is the one that was stored."""
        event = self._masked(submission)
        for attempt in count():
            ident = evaluations.eval_id(submission.effect_id, attempt)
            draft = replace(event, eval_id=ident)
            stored = await self._patiently(partial(self._store_once, draft))
            if stored.effect_id == submission.effect_id:
                return stored
        raise AssertionError("unreachable")

    async def get(self, tenant: str | None, eval_id: str) -> Evaluation | None:
        queries = self._views.queries
        return await self._read(lambda: queries.evaluation(eval_id, tenant))

    async def of_run(self, tenant: str | None, run_id: str, limit: int) -> list[Evaluation]:
        """Newest first."""
        queries = self._views.queries
        return await self._read(lambda: queries.evaluations_of_run(run_id, tenant, limit))

    async def of_definition(self, tenant: str | None, def_id: str, limit: int) -> list[Evaluation]:
        """Newest first, of all runs that were pinned to it."""
        queries = self._views.queries
        return await self._read(lambda: queries.evaluations_of_def(def_id, tenant, limit))

    async def aggregate(self, tenant: str | None, def_id: str, *, lineage: bool) -> Aggregate:
        """Statistics of a definition; ``lineage`` adds those of its ancestors.

        Static definitions, the only ones there are, have no ancestors.
        """
        queries = self._views.queries
        groups = await self._read(lambda: queries.evaluation_stats(def_id, tenant))
        return aggregate(def_id, groups, lineage=lineage)

    # --- the log --------------------------------------------------------------------------

    async def _judged(self, tenant: str | None, run_id: str) -> Judged | None:
        first = await self._store.log.first(self._store.subjects.journals(run_id))
        if first is None:
            return None
        try:
            started = opening(await whole_commit(self._store, first))
            if started is None or tenant not in (None, started.tenant):
                return None
            plan = await self._plans.get(started.plan)
        except (JournalError, KeyError) as fault:
            raise EvaluationsUnavailable(f"run {run_id} cannot be read: {fault}") from None
        return Judged(run_id, started.agent_id, started.parent_agent_id, plan.agent_def_id)

    async def _store_once(self, event: EvaluationSubmitted) -> EvaluationSubmitted:
        """Append ``event`` unless its id is taken; what is stored there."""
        subject = self._store.subjects.state("eval", event.tenant, event.run_id, event.eval_id)
        try:
            await self._store.log.append(subject, evaluations.encode(event), after=0)
        except WrongSequence:
            last = await self._store.log.last(subject)
            if last is None:
                raise LogUnavailable(f"{subject} was purged meanwhile") from None
            return _understood(last.data, event.eval_id)
        return event

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation that can be repeated while the log does not answer."""
        clock = asyncio.get_running_loop().time
        end = clock() + PATIENCE_S
        while True:
            try:
                return await operation()
            except (LogUnavailable, OutcomeUnknown) as error:
                if clock() + _RETRY_S > end:
                    raise EvaluationsUnavailable(f"the log is unavailable: {error}") from None
            except LogError as error:
                raise EvaluationsUnavailable(f"the log refused: {error}") from None
            await asyncio.sleep(_RETRY_S)

    # --- the view -------------------------------------------------------------------------

    async def _read(self, query: Callable[[], Awaitable[T]]) -> T:
        ends = await self._patiently(lambda: self._store.log.ends([_STREAM]))
        try:
            await self._views.barrier(ends, self._timeout_s)
            return await query()
        except ViewUnavailable as cause:
            raise EvaluationsUnavailable(f"evaluations cannot be read now: {cause}") from None

    # --- masks ----------------------------------------------------------------------------

    def _masked(self, given: Submission) -> EvaluationSubmitted:
        dimensions = given.dimensions
        if dimensions is not None:
            dimensions = {self._text(name): value for name, value in dimensions.items()}
        judgement = given.judgement
        if judgement is not UNSET and self._redactor is not None:
            judgement = Raw(self._redactor.redact_json(bytes(judgement), exact_only=True)[0])
        return EvaluationSubmitted(
            eval_id="",
            tenant=given.tenant,
            run_id=given.judged.run_id,
            def_id=given.judged.def_id,
            score=given.score,
            dimensions=dimensions,
            judgement=judgement,
            rationale=self._text(given.rationale),
            emitter_role=given.role,
            emitter_agent_id=given.emitter_agent_id,
            created_at_ns=given.now_ns,
            effect_id=given.effect_id,
        )

    def _text(self, text: str) -> str:
        if self._redactor is None:
            return text
        return self._redactor.redact(text, exact_only=True)[0]


def _understood(data: bytes, eval_id: str) -> EvaluationSubmitted:
    try:
        event = evaluations.decode(data)
    except StateError as fault:
        raise EvaluationsUnavailable(f"{eval_id} cannot be read: {fault.reason}") from None
    if event is None:
        raise EvaluationsUnavailable(f"{eval_id} was written by a newer version of this server")
    return event
