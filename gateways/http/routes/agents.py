"""Runs by their tracking handle: status, cancel, and the list of a user's runs.

Specification: http-runs.md sections 10 and 14. Times are RFC3339, see ``events.frames``.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request

from events.frames import rfc3339
from events.log import LogError
from gateways.http.authentication import principal_of
from gateways.http.bodies import BodyTooLarge, first_value, read_body
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.commands.cancel import cancel_agent
from loomcycle.commands.requests import check_ident
from loomcycle.errors import UnknownAgentId
from loomcycle.runtime import Runtime
from projections.rows import Run

REASON_LIMIT = 1024


class UsageStatus(Struct, frozen=True, omit_defaults=True):
    """Totals of the run itself, sub-agents not included."""

    input_tokens: int
    output_tokens: int
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    model: str = ""
    provider: str = ""


class AgentStatus(Struct, frozen=True, omit_defaults=True, kw_only=True):
    agent_id: str
    run_id: str
    session_id: str
    agent: str = ""
    user_id: str = ""
    parent_agent_id: str = ""
    status: str
    stop_reason: str = ""
    error: str = ""
    started_at: str
    completed_at: str = ""
    last_heartbeat_at: str = ""
    usage: UsageStatus
    live: bool
    interactive: bool = False
    awaited_state: str = ""
    awaited_on: str = ""
    replica_id: str = ""
    parent_context: Raw | None = None


class UserAgents(Struct, frozen=True):
    agents: list[AgentStatus]


class CancelRequest(Struct, frozen=True):
    reason: str = ""


class CancelReply(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``cancelled_count`` is what published clients read: this run and the cascaded ones."""

    cancelled: bool
    agent_id: str
    status: str = ""
    reason: str = ""
    cascaded: tuple[str, ...] = ()
    cancelled_count: int


_decode_cancel = msgspec.json.Decoder(CancelRequest).decode


def endpoints(runtime: Runtime) -> list[Endpoint]:
    agents = Agents(runtime)
    return [
        Endpoint("/v1/agents/{agent_id}", ("GET",), "runs:read", Answer(agents.status)),
        Endpoint("/v1/agents/{agent_id}/cancel", ("POST",), "runs:create", Answer(agents.cancel)),
        Endpoint("/v1/users/{user_id}/agents", ("GET",), "runs:read", Answer(agents.of_user)),
    ]


class Agents:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def status(self, request: Request) -> JsonReply:
        """``GET /v1/agents/{agent_id}``."""
        agent_id = request.path_params["agent_id"]
        check_ident(agent_id, "agent_id")
        principal = principal_of(request.scope)
        run = await self._runtime.lookups.run_of_handle(principal, agent_id)
        if run is None:
            raise UnknownAgentId(agent_id)
        return JsonReply(await self._status(run))

    async def of_user(self, request: Request) -> JsonReply:
        """``GET /v1/users/{user_id}/agents?status=&tenant=``."""
        user_id = request.path_params["user_id"]
        check_ident(user_id, "user_id")
        wanted = request.query_params.get("status") or "running"
        runs = await self._runtime.lookups.runs_of_user(
            principal_of(request.scope),
            user_id,
            None if wanted == "all" else wanted,
            request.query_params.get("tenant"),
        )
        return JsonReply(UserAgents([await self._status(run) for run in runs]))

    async def cancel(self, request: Request) -> JsonReply:
        """``POST /v1/agents/{agent_id}/cancel``."""
        agent_id = request.path_params["agent_id"]
        check_ident(agent_id, "agent_id")
        runtime = self._runtime
        outcome = await cancel_agent(
            runtime.services,
            runtime.lookups,
            principal_of(request.scope),
            agent_id,
            await _reason(request),
        )
        return JsonReply(
            CancelReply(
                cancelled=outcome.cancelled,
                agent_id=outcome.agent_id,
                status=outcome.status,
                reason=outcome.reason,
                cascaded=outcome.cascaded,
                cancelled_count=1 + len(outcome.cascaded) if outcome.cancelled else 0,
            )
        )

    async def _status(self, run: Run) -> AgentStatus:
        model, provider = await self._model(run)
        running = run.status == "running"
        return AgentStatus(
            agent_id=run.agent_id,
            run_id=run.id,
            session_id=run.session_id,
            agent=run.agent,
            user_id=run.user_id,
            parent_agent_id=run.parent_agent_id,
            status=run.status,
            stop_reason=run.stop_reason,
            error=run.error,
            started_at=rfc3339(run.started_ns),
            completed_at=_time(run.completed_ns),
            last_heartbeat_at=_time(self._heartbeat_ns(run)),
            usage=UsageStatus(
                run.input_tokens,
                run.output_tokens,
                run.cache_creation_input_tokens,
                run.cache_read_input_tokens,
                model,
                provider,
            ),
            live=running,
            interactive=run.interactive,
            awaited_state=run.awaited_state if running else "",
            awaited_on=run.awaited_on if running else "",
            replica_id=self._runtime.cluster.replica_of(run.owner),
            parent_context=Raw(run.parent_context.encode()) if run.parent_context else None,
        )

    def _heartbeat_ns(self, run: Run) -> int:
        """The later of the last commit and, while it runs, its owner's lease (kernel.md 7)."""
        runtime = self._runtime
        if run.status == "running" and run.owner in runtime.cluster.members:
            return max(run.last_commit_ns, runtime.services.now_ns())
        return run.last_commit_ns

    async def _model(self, run: Run) -> tuple[str, str]:
        """(model, provider): as used, or as resolved where no usage has told it."""
        if (run.model and run.provider) or not run.plan:
            return run.model, run.provider
        try:
            plan = await self._runtime.services.plans.get(run.plan)
        except (LogError, KeyError):
            return run.model, run.provider
        return run.model or plan.model, run.provider or plan.provider


async def _reason(request: Request) -> str:
    """The body's reason; "" for whatever cannot be read as one."""
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) == 0:
        return ""
    try:
        data = await read_body(request.scope, request.receive, REASON_LIMIT)
        return _decode_cancel(first_value(data)).reason
    except (BodyTooLarge, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _time(ns: int) -> str:
    return rfc3339(ns) if ns else ""
