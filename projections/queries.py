"""Every question that is asked of the views, with typed answers.

The SQL stands in each projection's ``queries.sql``. All methods raise ViewUnavailable while the
views cannot answer, and never return rows that stop before an event of a newer version.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from projections.database import Reader, Row
from projections.framework import Params, Projection, ViewHeld
from projections.rows import (
    Due,
    Evaluation,
    EvaluationStats,
    Hook,
    Interrupt,
    LiveCounts,
    MemoryRow,
    MemoryScope,
    Problem,
    Run,
    Session,
    TranscriptRow,
    Witness,
)
from projections.statements import Dialect, Statement


def _run(row: Row) -> Run:
    values: dict[str, Any] = dict(zip(Run.__struct_fields__, row, strict=True))
    waits = values["status"] == "running"
    values["interactive"] = bool(values["interactive"])
    values["parked"] = bool(values["parked"])
    for name in ("awaited_state", "awaited_on"):
        values[name] = (values[name] or "") if waits else ""
    return Run(**values)


def _hook(row: Row) -> Hook:
    values: list[Any] = list(row)
    for patterns in (5, 6):
        if values[patterns] is not None:
            values[patterns] = msgspec.json.decode(values[patterns], type=tuple[str, ...])
    return Hook(*values)


def _memory(row: Row) -> MemoryRow:
    values: list[Any] = list(row)
    values[3] = values[3].decode("utf-8", "surrogatepass")
    return MemoryRow(*values)


def _interrupt(row: Row) -> Interrupt:
    values: list[Any] = list(row)
    values[7] = bool(values[7])
    return Interrupt(*values)


class Queries:
    """Read access for any number of tasks of one event loop."""

    def __init__(self, reader: Reader, projections: Sequence[Projection], dialect: Dialect) -> None:
        self._reader = reader
        self._sql: dict[str, Statement] = {}
        for projection in projections:
            self._sql.update(projection.queries(dialect))

    async def _rows(self, name: str, *params: Any) -> list[Any]:
        given: Params = params
        return await self._reader.fetch(self._sql[name], given)

    # --- sessions and transcripts ---------------------------------------------------------

    async def session(self, session_id: str) -> Session | None:
        rows = await self._rows("session", session_id)
        return Session(*rows[0][:5]) if rows else None

    async def transcript(self, session_id: str, after: int = 0) -> list[TranscriptRow]:
        """All rows with seq > ``after`` of all runs of a session, by seq (http-runs.md 8).

        A damaged journal counts up to its damage; ``run().fault`` says so. Raises ViewHeld.
        """
        rows = await self._rows("transcript_of_session", session_id, after)
        for run_id, fault in await self._rows("held_in_session", session_id):
            raise ViewHeld(f"run {run_id}: {fault}: update this replica")
        return [TranscriptRow(*row) for row in rows]

    async def history(
        self, session_id: str, *, types: Collection[str] = (), since_ns: int = 0, limit: int
    ) -> list[TranscriptRow]:
        """The oldest rows of a session, of ``types`` (none given: all) and not before
        ``since_ns``. Raises ViewHeld."""
        named = "".join(f"|{kind}|" for kind in types)
        rows = await self._rows("history_of_session", session_id, since_ns, named, limit)
        for run_id, fault in await self._rows("held_in_session", session_id):
            raise ViewHeld(f"run {run_id}: {fault}: update this replica")
        return [TranscriptRow(*row) for row in rows]

    async def transcript_of_run(self, run_id: str, after: int = 0) -> list[TranscriptRow]:
        """The rows of one run with seq > ``after``. Raises ViewHeld."""
        rows = await self._rows("transcript_of_run", run_id, after)
        await self.run(run_id)
        return [TranscriptRow(*row) for row in rows]

    # --- runs -----------------------------------------------------------------------------

    async def run(self, run_id: str) -> Run | None:
        """Raises ViewHeld for a run with an event of a newer version."""
        return self._one(await self._rows("run", run_id))

    async def run_by_agent_id(self, tenant: str | None, agent_id: str) -> Run | None:
        """The most recently started run of a handle; ``tenant`` None means any."""
        return self._one(await self._rows("run_by_agent_id", agent_id, tenant))

    def _one(self, rows: list[Row]) -> Run | None:
        if not rows:
            return None
        run = _run(rows[0])
        if run.fault_kind == "held":
            raise ViewHeld(f"run {run.id}: {run.fault}: update this replica")
        return run

    async def runs_of_user(
        self,
        user_id: str,
        status: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Newest start first; None means every status or tenant (filtered before the cut)."""
        rows = await self._rows("runs_of_user", user_id, status, tenant, limit)
        return [_run(row) for row in rows]

    async def runs_of_session(self, session_id: str) -> list[Run]:
        """In the order they started."""
        return [_run(row) for row in await self._rows("runs_of_session", session_id)]

    async def running_runs(self, owner: str | None = None, unparked: bool = False) -> list[Run]:
        """What the sweeper compares with the queues; runs whose fold stopped are left out."""
        rows = (
            await self._rows("advancing_runs")
            if unparked and owner is None
            else await self._rows("running_runs", owner)
        )
        return [run for run in map(_run, rows) if not (unparked and run.parked)]

    async def due_parks(self, now_ns: int, *, paused: bool) -> list[Due]:
        """Parked runs that have something to do, one entry for each cause."""
        return [Due(*row) for row in await self._rows("due_parks", now_ns, int(paused))]

    async def abandoned_children(self) -> list[Due]:
        """Running children whose parent has ended."""
        return [Due(*row) for row in await self._rows("abandoned_children")]

    async def parked_count(self) -> int:
        """How many runs are parked, for whatever reason."""
        count: int = (await self._rows("parked_count"))[0][0]
        return count

    async def descendants(self, tenant: str, agent_id: str) -> list[Run]:
        """Running runs below ``agent_id``, transitively, by start."""
        return [_run(row) for row in await self._rows("descendants", agent_id, tenant)]

    async def witnesses(self) -> list[Witness]:
        """The last commit seen of every run, by run."""
        return [Witness(*row) for row in await self._rows("witnesses")]

    async def live_counts(self) -> LiveCounts:
        rows = await self._rows("live_counts")
        per_user = {(tenant, user): n - parked for tenant, user, n, parked in rows if n > parked}
        return LiveCounts(
            active=sum(row[2] - row[3] for row in rows),
            parked=sum(row[3] for row in rows),
            per_user=per_user,
        )

    # --- memory ---------------------------------------------------------------------------

    async def memory_get(
        self, tenant: str, scope: str, scope_id: str, key: str, *, now_ns: int
    ) -> MemoryRow | None:
        """The row, None when it is missing or expired at ``now_ns``."""
        rows = await self._rows(
            "memory_get", tenant, scope, scope_id, key.encode("utf-8", "surrogatepass"), now_ns
        )
        return _memory(rows[0]) if rows else None

    async def memory_list(
        self,
        tenant: str,
        scope: str,
        scope_id: str,
        *,
        prefix: str = "",
        limit: int,
        now_ns: int,
    ) -> tuple[list[MemoryRow], bool]:
        """(rows by key in byte order, whether more than ``limit`` match). Literal prefix."""
        low = prefix.encode("utf-8", "surrogatepass")
        high = low[:-1] + bytes([low[-1] + 1]) if low else b"\xff"  # UTF-8 never holds 0xff
        rows = await self._rows(
            "memory_list", tenant, scope, scope_id, low, high, now_ns, limit + 1
        )
        return [_memory(row) for row in rows[:limit]], len(rows) > limit

    async def memory_usage(
        self, tenant: str, scope: str, scope_id: str, *, now_ns: int
    ) -> tuple[int, int]:
        """(rows, bytes of keys and values) of live rows."""
        rows = await self._rows("memory_usage", tenant, scope, scope_id, now_ns)
        return rows[0][0], rows[0][1]

    async def memory_scopes(
        self, scope: str, *, tenant: str | None = None, limit: int = 200, now_ns: int
    ) -> list[MemoryScope]:
        """Scope ids with live rows, most recently written first; ``tenant`` None means all."""
        rows = await self._rows("memory_scopes", scope, tenant, now_ns, limit)
        return [MemoryScope(*row) for row in rows]

    # --- questions to people --------------------------------------------------------------

    async def interrupt(self, interrupt_id: str, *, now_ns: int) -> Interrupt | None:
        rows = await self._rows("interrupt", interrupt_id, now_ns)
        return _interrupt(rows[0]) if rows else None

    async def interrupts_of_run(
        self, run_id: str, status: str | None, tenant: str | None, *, now_ns: int, limit: int = 200
    ) -> list[Interrupt]:
        """Newest first; None means every status or tenant."""
        rows = await self._rows("interrupts_of_run", run_id, tenant, status, now_ns, limit)
        return [_interrupt(row) for row in rows]

    async def interrupts_of_user(
        self, user_id: str, status: str | None, tenant: str | None, *, now_ns: int, limit: int = 200
    ) -> list[Interrupt]:
        """Newest first; None means every status or tenant."""
        rows = await self._rows("interrupts_of_user", user_id, tenant, status, now_ns, limit)
        return [_interrupt(row) for row in rows]

    # --- hooks ----------------------------------------------------------------------------

    async def hooks(self, tenant: str | None) -> list[Hook]:
        """In the order of the chain; None means every tenant's."""
        return [_hook(row) for row in await self._rows("hooks", tenant)]

    # --- evaluations ----------------------------------------------------------------------

    async def evaluation(self, eval_id: str, tenant: str | None) -> Evaluation | None:
        """``tenant`` None means any."""
        rows = await self._rows("evaluation", eval_id, tenant)
        return Evaluation(*rows[0]) if rows else None

    async def evaluations_of_run(
        self, run_id: str, tenant: str | None, limit: int = 100
    ) -> list[Evaluation]:
        """Newest first; ``tenant`` None means any."""
        rows = await self._rows("evaluations_of_run", run_id, tenant, limit)
        return [Evaluation(*row) for row in rows]

    async def evaluations_of_def(
        self, def_id: str, tenant: str | None, limit: int = 100
    ) -> list[Evaluation]:
        """Newest first; ``tenant`` None means any. Static agents have no definition id."""
        rows = await self._rows("evaluations_of_def", def_id, tenant, limit)
        return [Evaluation(*row) for row in rows]

    async def evaluation_stats(self, def_id: str, tenant: str | None) -> list[EvaluationStats]:
        """One entry for each group that has values; ``tenant`` None means any."""
        rows = await self._rows("evaluation_stats", def_id, tenant)
        return [EvaluationStats(*row) for row in rows]

    # --- the views themselves -------------------------------------------------------------

    async def problems(self, limit: int = 100) -> list[Problem]:
        """What could not be folded, oldest first in each view."""
        runs = await self._rows("faulty_runs", limit)
        memory = await self._rows("memory_problems", limit)
        hooks = await self._rows("hook_problems", limit)
        judged = await self._rows("evaluation_problems", limit)
        return [
            *(Problem("runs", run, kind, reason, seq) for run, _, kind, reason, seq in runs),
            *(Problem("memory", what, "broken", reason, seq) for seq, what, reason in memory),
            *(Problem("hooks", what, "broken", reason, seq) for seq, what, reason in hooks),
            *(Problem("evaluations", what, "broken", reason, seq) for seq, what, reason in judged),
        ]
