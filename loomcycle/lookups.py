"""Questions to the views that see this process' and everybody's earlier writes.

Each waits until the view has reached the log's end of the streams concerned (kernel.md 7), and
hides what the asking principal may not see.
"""

from __future__ import annotations

from collections.abc import Iterable

from events.log import EventStore
from events.streams import RUN_STREAM_NAMES, STATE, stream_of
from loomcycle.auth import Principal
from loomcycle.errors import LogAway
from projections.rows import Due, Hook, Run, Session, TranscriptRow
from projections.views import Views


class Lookups:
    """``timeout_s``: how long a view may need to reach the log's end (else ViewUnavailable)."""

    def __init__(self, store: EventStore, views: Views, *, timeout_s: float = 5.0) -> None:
        self._store = store
        self._views = views
        self._timeout_s = timeout_s

    def check_log(self) -> None:
        """Raises LogAway when the log has lost messages that were seen before."""
        if self._views.log_cut:
            raise LogAway(f"the log is damaged: {self._views.log_cut}", retry_after_s=60)

    async def _settle(self, run_ids: Iterable[str] = ()) -> None:
        subjects = self._store.subjects
        streams = {stream_of(subjects, subjects.journal("", run_id)).name for run_id in run_ids}
        ends = await self._store.log.ends(sorted(streams) or RUN_STREAM_NAMES)
        await self._views.barrier(ends, self._timeout_s)

    async def run(self, principal: Principal, run_id: str) -> Run | None:
        """A run that ``principal`` may see."""
        await self._settle([run_id])
        run = await self._views.queries.run(run_id)
        return run if run is not None and principal.sees(run.tenant) else None

    async def run_of_handle(self, principal: Principal, agent_id: str) -> Run | None:
        """The most recently started visible run with this agent id."""
        await self._settle()
        tenant = None if principal.is_admin else principal.tenant
        return await self._views.queries.run_by_agent_id(tenant, agent_id)

    async def runs_of_user(
        self, principal: Principal, user_id: str, status: str | None, tenant: str | None
    ) -> list[Run]:
        """Newest first, at most 100; ``tenant`` focuses an admin, others see only their own."""
        await self._settle()
        focus = (tenant or None) if principal.is_admin else principal.tenant
        return await self._views.queries.runs_of_user(user_id, status, focus)

    async def running(self) -> list[Run]:
        """Unparked running runs of everybody."""
        await self._settle()
        return await self._views.queries.running_runs(unparked=True)

    async def overdue(self, now_ns: int, *, paused: bool) -> tuple[list[Due], list[Due]]:
        """Parked runs that have something to do, and running children of ended parents."""
        await self._settle()
        queries = self._views.queries
        parked = await queries.due_parks(now_ns, paused=paused)
        return parked, await queries.abandoned_children()

    async def parked(self) -> int:
        """How many runs of everybody are parked."""
        await self._settle()
        return await self._views.queries.parked_count()

    async def descendants(self, tenant: str, agent_id: str) -> list[Run]:
        return await self._views.queries.descendants(tenant, agent_id)

    async def session(self, principal: Principal, session_id: str) -> Session | None:
        await self._settle([session_id])
        session = await self._views.queries.session(session_id)
        return session if session is not None and principal.sees(session.tenant) else None

    async def transcript(
        self, principal: Principal, session_id: str
    ) -> tuple[Session, list[TranscriptRow]] | None:
        session = await self.session(principal, session_id)
        if session is None:
            return None
        return session, await self._views.queries.transcript(session_id)

    async def hooks(self, principal: Principal) -> list[Hook]:
        """Hooks that ``principal`` may see, in the order of their chain."""
        await self._views.barrier(await self._store.log.ends([STATE.name]), self._timeout_s)
        return await self._views.queries.hooks(None if principal.is_admin else principal.tenant)
