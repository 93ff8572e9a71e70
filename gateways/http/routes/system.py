"""The process itself: health, readiness, who am I, how full is it.

Specification: http-runs.md sections 16 and 18, auth.md section 13, operations.md sections 1, 2.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct
from starlette.requests import Request

from events.frames import rfc3339
from events.log import LogError
from events.streams import RUN_STREAM_NAMES
from gateways.http.authentication import principal_of
from gateways.http.endpoint import ANYBODY, PUBLIC, Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.runtime import Runtime
from projections.framework import ViewUnavailable

READY_S = 2.0
"""How long the log and the views may need to answer a readiness probe."""


class Replica(Struct, frozen=True):
    id: str
    hostname: str
    started_at: str
    last_heartbeat_at: str
    version: str


class Health(Struct, frozen=True, omit_defaults=True, kw_only=True):
    ok: bool
    version: str = ""
    commit: str = ""
    built: str = ""
    uptime_seconds: int = 0
    metrics_enabled: bool
    replica_id: str = ""
    replicas: list[Replica] | None = None


class Readiness(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``log`` and ``views`` are ``ok`` or what is wrong."""

    ready: bool
    log: str
    views: str


class Me(Struct, frozen=True, omit_defaults=True, kw_only=True):
    tenant_id: str
    subject: str
    scopes: tuple[str, ...]
    is_admin: bool
    legacy: bool
    open_mode: bool = False


class ConcurrencyStats(Struct, frozen=True, omit_defaults=True, kw_only=True):
    active: int
    queued: int
    per_user: dict[str, int] | None = None


def endpoints(runtime: Runtime) -> list[Endpoint]:
    system = System(runtime)
    return [
        Endpoint("/healthz", (), PUBLIC, Answer(system.health)),
        Endpoint("/readyz", ("GET",), PUBLIC, Answer(system.ready)),
        Endpoint("/v1/_me", ("GET",), ANYBODY, Answer(system.me)),
        Endpoint("/v1/_concurrency/stats", ("GET",), "substrate:admin", Answer(system.concurrency)),
    ]


class System:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def health(self, request: Request) -> JsonReply:
        """``/healthz``: the process serves. Depends on nothing, always 200."""
        runtime = self._runtime
        environment = runtime.config.environment
        now = runtime.services.now_ns()
        replica_id = environment.replica_id
        return JsonReply(
            Health(
                ok=True,
                version=runtime.version,
                commit=runtime.commit,
                uptime_seconds=max(0, now - runtime.started_ns) // 1_000_000_000,
                metrics_enabled=environment.metrics_enabled,
                replica_id=replica_id,
                replicas=self._replicas(now) if replica_id else None,
            )
        )

    async def ready(self, request: Request) -> JsonReply:
        """``GET /readyz``: 200 when the log answers and the views have reached its end."""
        log_state, view_state = await self._states()
        ready = log_state == view_state == "ok"
        reply = Readiness(ready=ready, log=log_state, views=view_state)
        return JsonReply(reply, 200 if ready else 503)

    async def me(self, request: Request) -> JsonReply:
        """``GET /v1/_me``."""
        principal = principal_of(request.scope)
        return JsonReply(
            Me(
                tenant_id=principal.tenant,
                subject=principal.subject,
                scopes=principal.scopes,
                is_admin=principal.is_admin,
                legacy=principal.legacy,
                open_mode=principal.open_mode,
            )
        )

    async def concurrency(self, request: Request) -> JsonReply:
        """``GET /v1/_concurrency/stats``: runs here, starts that wait, and runs by user."""
        runtime = self._runtime
        stats = await runtime.store.starts.stats()
        per_user: dict[str, int] = {}
        for (_, user_id), count in stats.per_user.items():
            if user_id and count:
                per_user[user_id] = per_user.get(user_id, 0) + count
        return JsonReply(
            ConcurrencyStats(
                active=runtime.worker.active,
                queued=runtime.commands.waiting,
                per_user=per_user if per_user and self._cap() else None,
            )
        )

    def _cap(self) -> int:
        config = self._runtime.config
        own = config.environment.max_concurrent_runs_per_user
        return config.config.concurrency.max_concurrent_runs_per_user if own is None else own

    def _replicas(self, now_ns: int) -> list[Replica]:
        """Replicas whose leases are fresh, oldest first. One that was just restarted still has
        its old process' lease too; an unnamed one is called what its process is."""
        members = self._runtime.cluster.members
        by_age = sorted(members.items(), key=lambda m: (m[1].started_ns, m[0]))
        newest = {member.replica or process: member for process, member in by_age}
        return [
            Replica(name, member.host, rfc3339(member.started_ns), rfc3339(now_ns), member.version)
            for name, member in sorted(newest.items(), key=lambda m: (m[1].started_ns, m[0]))
        ]

    async def _states(self) -> tuple[str, str]:
        runtime = self._runtime
        if not runtime.store.connected():
            return "not connected", "unknown"
        try:
            async with asyncio.timeout(READY_S):
                ends = await runtime.store.log.ends(RUN_STREAM_NAMES)
        except (LogError, TimeoutError):
            return "does not answer", "unknown"
        try:
            await runtime.views.barrier(ends, READY_S)
        except ViewUnavailable as cause:
            return "ok", str(cause)
        return "ok", "ok"
