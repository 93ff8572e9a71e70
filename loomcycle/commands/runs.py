"""Starting and continuing runs: validate, resolve, queue, and wait for the promise.

Specification: http-runs.md sections 3 and 7; the order of checks is part of it. A start is
accepted when its first commit is on disk, and only then does the caller get its feed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from events.commit import JournalError, decode
from events.ids import agent_id_of, first_run_of, next_run_of
from events.log import LogError
from events.vocabulary import RunRef, RunStarted
from loomcycle.admission import SESSION_BUSY, SESSION_DAMAGED, ended, withdrawn
from loomcycle.auth import Principal
from loomcycle.cluster import Cluster
from loomcycle.commands.requests import (
    RunRequest,
    check_credentials,
    check_ident,
    credentials,
    lineage,
    narrowing_of,
)
from loomcycle.definitions import Definitions
from loomcycle.errors import (
    AgentIdInUse,
    Backpressure,
    CommandError,
    InvalidArgument,
    LogAway,
    RuntimePaused,
    SessionBusy,
    SessionDamaged,
    SessionNotFound,
)
from loomcycle.feed import FeedFrame, RunFeed
from loomcycle.lookups import Lookups
from loomcycle.ownership import CREDENTIALS
from loomcycle.promises import Limits, Promises
from loomcycle.said import words
from loomcycle.services import Services
from loomcycle.session_lock import Amending, line_of, take
from loomcycle.starts import Start, StartItem, opening_of
from loomcycle.worker import Worker
from replay.machine import HANDLE_TAKEN, MACHINE_VERSION

_encode = msgspec.json.Encoder().encode


@dataclass
class StartedRun:
    """An accepted run: ``first`` are the frames of its first commit, ``feed`` has the rest."""

    run_id: str
    session_id: str
    agent_id: str
    tenant: str
    parent_context: dict[str, str] | None
    feed: RunFeed
    first: list[FeedFrame]
    reader: str


class SessionPlace(Struct, frozen=True, kw_only=True):
    """Where a new run of an existing session goes; ``after``: its subject's last sequence."""

    session_id: str
    tenant: str
    agent: str
    user_id: str
    after: int
    previous: RunRef


class RunCommands:
    """``worker`` is this process' own."""

    def __init__(
        self,
        services: Services,
        definitions: Definitions,
        lookups: Lookups,
        cluster: Cluster,
        worker: Worker,
        limits: Limits,
    ) -> None:
        self._services = services
        self._definitions = definitions
        self._lookups = lookups
        self._cluster = cluster
        self._queue_timeout_s = limits.queue_timeout_s
        self._promises = Promises(services, worker, limits, cluster.alone)

    async def start(
        self,
        request: RunRequest,
        principal: Principal,
        *,
        origin: str = "http",
        detached: bool = False,
    ) -> StartedRun:
        """``POST /v1/runs``. ``detached``: it goes on without readers. Raises CommandError."""
        if not request.agent:
            raise InvalidArgument("agent is required", "agent")
        if not request.segments and not request.prompt:
            raise InvalidArgument("no input: give segments with content, or a prompt", "segments")
        if request.user_id:
            check_ident(request.user_id, "user_id")
        if request.agent_id:
            check_ident(request.agent_id, "agent_id")
        tenant, user_id = principal.identity(request.tenant_id, request.user_id)
        self._definitions.agent(request.agent, tenant)
        self._definitions.check_user_tier(request.user_tier)
        check_credentials(request)
        place = None
        resolved = await self._definitions.resolve(request.agent, tenant, narrowing_of(request))
        if request.session_id:
            place = await self._place(request.session_id, principal)
            tenant, user_id = place.tenant, user_id or place.user_id
        return await self._run(
            request,
            principal,
            agent=request.agent,
            tenant=tenant,
            user_id=user_id,
            plan=resolved.name,
            system_prompt=resolved.system_prompt,
            place=place,
            continues=False,
            origin=origin,
            detached=detached,
        )

    async def continue_session(
        self,
        session_id: str,
        request: RunRequest,
        principal: Principal,
        *,
        origin: str = "http",
        detached: bool = False,
    ) -> StartedRun:
        """``POST /v1/sessions/{id}/messages``. Raises CommandError."""
        place = await self._place(session_id, principal)
        try:
            self._definitions.agent(place.agent, place.tenant)
        except InvalidArgument:
            raise InvalidArgument(
                f'session refers to unknown agent "{place.agent}"', "session_id"
            ) from None
        self._definitions.check_user_tier(request.user_tier)
        check_credentials(request)
        resolved = await self._definitions.resolve(place.agent, place.tenant, narrowing_of(request))
        if request.agent_id:
            check_ident(request.agent_id, "agent_id")
        return await self._run(
            request,
            principal,
            agent=place.agent,
            tenant=place.tenant,
            user_id=place.user_id,
            plan=resolved.name,
            system_prompt=resolved.system_prompt,
            place=place,
            continues=True,
            origin=origin,
            detached=detached,
        )

    @property
    def waiting(self) -> int:
        """Accepted requests of this process that wait for a slot."""
        return self._promises.waiting

    async def close(self) -> None:
        """Let withdrawals under way finish (bounded)."""
        await self._promises.close()

    async def _place(self, session_id: str, principal: Principal) -> SessionPlace:
        """Raises SessionNotFound (and allocates nothing then), SessionBusy, SessionDamaged."""
        session = await self._lookups.session(principal, session_id)
        if session is None:
            raise SessionNotFound(session_id)
        services = self._services
        store, tenant = services.store, session.tenant
        try:
            line = await line_of(store, tenant, session_id)
            holder = line.runs[-1] if line.runs else first_run_of(session_id)
            free = await ended(
                store,
                tenant,
                holder,
                SESSION_BUSY,
                writer=services.process,
                ts=services.now_ns(),
            )
            if not free:
                raise SessionBusy(session_id)
            after = line.end
            if line.amending:
                subject = store.subjects.session(tenant, session_id)
                after = await take(store, subject, Amending(by=services.new_hex()), after)
                if not after:
                    raise SessionBusy(session_id)
            previous = await self._last_run(tenant, session_id, line.runs)
        except LogError as cause:
            raise LogAway(f"the log cannot be asked about the session: {cause}") from None
        except JournalError as cause:
            raise SessionDamaged(session_id, str(cause)) from None
        return SessionPlace(
            session_id=session_id,
            tenant=tenant,
            agent=session.agent,
            user_id=session.user_id,
            after=after,
            previous=previous,
        )

    async def _last_run(self, tenant: str, session_id: str, runs: tuple[str, ...]) -> RunRef:
        """The newest run of a session that did begin: withdrawn ones said nothing."""
        store = self._services.store
        for run_id in reversed(runs):
            last = await store.log.last(store.subjects.journal(tenant, run_id))
            if last is not None and not withdrawn(last):
                return RunRef(run_id, decode(last.data, last.seq).last_n)
        first = first_run_of(session_id)
        last = await store.log.last(store.subjects.journal(tenant, first))
        if last is None:
            raise SessionNotFound(session_id)
        return RunRef(first, decode(last.data, last.seq).last_n)

    async def _run(
        self,
        request: RunRequest,
        principal: Principal,
        *,
        agent: str,
        tenant: str,
        user_id: str,
        plan: str,
        system_prompt: str,
        place: SessionPlace | None,
        continues: bool,
        origin: str,
        detached: bool,
    ) -> StartedRun:
        self._lookups.check_log()
        services = self._services
        if services.paused():
            raise RuntimePaused
        if place is None:
            session_id = f"s_{services.new_hex()}"
            run_id = first_run_of(session_id)
        else:
            session_id = place.session_id
            run_id = next_run_of(session_id, services.new_hex)
        agent_id = request.agent_id or agent_id_of(run_id)
        stays = detached or (request.interactive and not continues)
        reader: Literal["cancel", "continue"] = "continue" if stays else "cancel"
        secrets = credentials(request)
        context, search_filter = lineage(request), request.web_search_filter or ""
        if services.redaction is not None and (context or search_filter):
            masker = services.redaction.for_run(secrets)
            search_filter = words(masker, search_filter)
            if context is not None:
                context = {name: words(masker, value) for name, value in context.items()}
        now = services.now_ns()
        started = RunStarted(
            run=run_id,
            session=session_id,
            agent=agent,
            agent_id=agent_id,
            tenant=tenant,
            user_id=user_id,
            user_tier=request.user_tier,
            plan=plan,
            machine=MACHINE_VERSION,
            origin=origin,
            reader=reader,
            principal=principal.subject,
            token_id=principal.token_id,
            parent_context=context,
            interactive=request.interactive,
            metadata=Raw(_encode(request.metadata)) if request.metadata else UNSET,
            caller_hosts=request.allowed_hosts,
            web_search_filter=search_filter,
            previous=place.previous if place is not None else None,
            continues=continues,
            sealed=(CREDENTIALS,) if secrets else (),
            started_ns=now,
        )
        opening = opening_of(started, request.input(), system_prompt)
        item = StartItem(
            run=run_id,
            session=session_id,
            tenant=tenant,
            agent_id=agent_id,
            gateway=services.process,
            not_after_ns=now + int(self._queue_timeout_s * 1e9),
            user_id=user_id,
            reader=reader,
            opens_session=place is None,
            session_after=place.after if place is not None else 0,
            claims_handle=bool(request.agent_id),
        )
        feed = RunFeed(
            services.store,
            services.live,
            tenant,
            run_id,
            process=services.process,
            replay=request.interactive and not continues,
            alone=self._cluster.alone,
        )
        try:
            if secrets:
                await self._promises.seal(item, secrets)
            await feed.open(fresh=True)
            first = await self._promises.obtain(Start(item, opening), feed, sealed=bool(secrets))
        except LogError as cause:
            feed.close()
            raise LogAway(f"the log cannot take the run now: {cause}") from None
        except BaseException:
            feed.close()
            raise
        refusal = _refusal(feed, session_id, agent_id)
        if refusal is not None:
            feed.close()
            raise refusal
        return StartedRun(run_id, session_id, agent_id, tenant, context, feed, first, reader)


def _refusal(feed: RunFeed, session_id: str, agent_id: str) -> CommandError | None:
    """Why a start that was decided upon is no run, if it is none."""
    if feed.withdrawn == SESSION_BUSY:
        return SessionBusy(session_id)
    if feed.withdrawn.startswith(SESSION_DAMAGED):
        return SessionDamaged(session_id, feed.withdrawn.removeprefix(f"{SESSION_DAMAGED}: "))
    if HANDLE_TAKEN in (feed.withdrawn, feed.finished.error if feed.finished else ""):
        return AgentIdInUse(agent_id)
    return Backpressure(feed.withdrawn) if feed.withdrawn else None
