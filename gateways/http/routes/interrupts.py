"""Questions that runs ask people: lists of them, and answers.

Specification: http-runs.md sections 15.2 and 15.3. Unset times are year 1, as published clients
expect them.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from starlette.requests import Request

from events.frames import rfc3339
from gateways.http.authentication import COOKIE, principal_of
from gateways.http.bodies import MIB, JsonBody, read_body
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.commands.requests import check_ident
from loomcycle.runtime import Runtime
from projections.rows import Interrupt
from replay.interrupts import QUESTION

UNSET_TIME = "0001-01-01T00:00:00Z"


class InterruptRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    interrupt_id: str
    run_id: str
    kind: str
    status: str
    question: str = ""
    options: Raw | None = None
    context_data: str = ""
    priority: str
    answer: str = ""
    created_at: str
    expires_at: str
    resolved_at: str
    resolved_by: str = ""
    user_id: str = ""
    agent_id: str = ""
    agent_name: str = ""


class InterruptList(Struct, frozen=True):
    interrupts: list[InterruptRow]
    total: int


class ResolveRequest(Struct, frozen=True):
    kind: str = ""
    answer: str = ""
    resolved_by: str = ""


class ResolveReply(Struct, frozen=True):
    interrupt_id: str
    status: str
    resolved_at: str


def endpoints(runtime: Runtime) -> list[Endpoint]:
    interrupts = Interrupts(runtime)
    of_run = "/v1/runs/{run_id}/interrupts"
    return [
        Endpoint(of_run, ("GET",), "runs:read", Answer(interrupts.of_run)),
        Endpoint(
            "/v1/users/{user_id}/interrupts", ("GET",), "runs:read", Answer(interrupts.of_user)
        ),
        Endpoint(
            f"{of_run}/{{interrupt_id}}/resolve",
            ("POST",),
            "runs:create",
            Answer(interrupts.resolve),
        ),
    ]


class Interrupts:
    def __init__(self, runtime: Runtime) -> None:
        self._interrupts = runtime.interrupts
        self._body = JsonBody(ResolveRequest)

    async def of_run(self, request: Request) -> JsonReply:
        """``GET /v1/runs/{run_id}/interrupts?status=``."""
        run_id = request.path_params["run_id"]
        check_ident(run_id, "run_id")
        status = request.query_params.get("status", "")
        found = await self._interrupts.of_run(principal_of(request.scope), run_id, status)
        return _listed(found)

    async def of_user(self, request: Request) -> JsonReply:
        """``GET /v1/users/{user_id}/interrupts?status=``."""
        user_id = request.path_params["user_id"]
        check_ident(user_id, "user_id")
        status = request.query_params.get("status", "")
        found = await self._interrupts.of_user(principal_of(request.scope), user_id, status)
        return _listed(found)

    async def resolve(self, request: Request) -> JsonReply:
        """``POST /v1/runs/{run_id}/interrupts/{interrupt_id}/resolve``."""
        run_id, ident = request.path_params["run_id"], request.path_params["interrupt_id"]
        check_ident(run_id, "run_id")
        check_ident(ident, "interrupt_id")
        body = self._body.decode(await read_body(request.scope, request.receive, MIB))
        at_ns = await self._interrupts.resolve(
            principal_of(request.scope),
            run_id,
            ident,
            answer=body.answer,
            resolved_by=body.resolved_by or ("webui" if request.cookies.get(COOKIE) else "api"),
            kind=body.kind or QUESTION,
        )
        return JsonReply(ResolveReply(ident, "resolved", rfc3339(at_ns)))


def _listed(rows: list[Interrupt]) -> JsonReply:
    return JsonReply(InterruptList([_shown(row) for row in rows], len(rows)))


def _shown(row: Interrupt) -> InterruptRow:
    return InterruptRow(
        interrupt_id=row.id,
        run_id=row.run_id,
        kind=row.kind,
        status=row.status,
        question=row.question,
        options=Raw(row.options.encode()) if row.options else None,
        context_data=row.context,
        priority=row.priority,
        answer=row.answer,
        created_at=rfc3339(row.created_ns),
        expires_at=_time(row.expires_ns),
        resolved_at=_time(row.resolved_ns),
        resolved_by=row.resolved_by,
        user_id=row.user_id,
        agent_id=row.agent_id,
        agent_name=row.agent,
    )


def _time(ns: int) -> str:
    return rfc3339(ns) if ns else UNSET_TIME
