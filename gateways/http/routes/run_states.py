"""The stream of a user's runs: each start and each end, as it happens.

Specification: http-runs.md section 15.1. It shows no history; what a client missed it lists with
``GET /v1/users/{user_id}/agents``.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from events.frames import rfc3339
from gateways.http.authentication import principal_of
from gateways.http.clients import Clients, Departure
from gateways.http.endpoint import Endpoint
from gateways.http.errors import ShuttingDown
from gateways.http.replies import encode_json
from gateways.http.sse import EventStream
from loomcycle.feed import FeedFrame
from loomcycle.run_states import RunTransition, only
from loomcycle.runtime import Runtime

KEEPALIVE_S = 25
LIFE_S = 30 * 60.0
"""A connection is closed after so long; clients come back."""

_SECOND_NS = 1_000_000_000


class StreamOpen(Struct, frozen=True):
    user_id: str
    filter_status: list[str] | None
    filter_agent: str
    keepalive_interval: int = KEEPALIVE_S


class RunState(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``ts`` is RFC 3339 in UTC, whole seconds."""

    run_id: str
    agent_id: str
    agent: str
    user_id: str
    parent_agent_id: str = ""
    status: str
    stop_reason: str = ""
    error: str = ""
    ts: str
    parent_context: dict[str, str] | None = None


def endpoints(runtime: Runtime, clients: Clients) -> list[Endpoint]:
    stream = RunStateStream(runtime, clients)
    return [Endpoint("/v1/users/{user_id}/agents/stream", ("GET",), "runs:read", stream)]


class RunStateStream:
    """``GET /v1/users/{user_id}/agents/stream?status=&agent=&tenant=``."""

    def __init__(self, runtime: Runtime, clients: Clients) -> None:
        self._runtime = runtime
        self._clients = clients
        self.life_s = LIFE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(scope, send, KEEPALIVE_S)
        with self._clients.watch(scope) as watch:
            await self._serve(Request(scope), stream)
        if watch.departed is Departure.SERVER and not stream.started:
            raise ShuttingDown
        if watch.departed is not Departure.CLIENT and not stream.ended:
            await stream.break_off(receive)

    async def _serve(self, request: Request, stream: EventStream) -> None:
        principal = principal_of(request.scope)
        query = request.query_params
        user_id, agent = request.path_params["user_id"], query.get("agent", "")
        statuses = _statuses(query.getlist("status"))
        tenant = (query.get("tenant") or None) if principal.is_admin else principal.tenant
        opened = FeedFrame(
            "0", "stream_open", encode_json(StreamOpen(user_id, statuses or None, agent))
        )
        if request.method == "HEAD":
            await stream.open([])
            await stream.end()
            return
        states = self._runtime.run_states
        wanted = only(user_id=user_id, tenant=tenant, statuses=statuses, agent=agent)
        watcher = await states.watch(wanted)
        try:
            await stream.open([opened])
            closes = asyncio.get_running_loop().time() + self.life_s
            while (left := closes - asyncio.get_running_loop().time()) > 0:
                transitions = await watcher.next(min(KEEPALIVE_S, left))
                if transitions:
                    await stream.write(map(_frame, transitions))
                elif left > KEEPALIVE_S:
                    await stream.keep_alive()
            await stream.end()
        finally:
            states.leave(watcher)


def _statuses(given: list[str]) -> list[str]:
    """Repeated and comma-separated values as one sorted list."""
    return sorted({status.strip() for value in given for status in value.split(",")} - {""})


def _frame(transition: RunTransition) -> FeedFrame:
    state = RunState(
        run_id=transition.run_id,
        agent_id=transition.agent_id,
        agent=transition.agent,
        user_id=transition.user_id,
        parent_agent_id=transition.parent_agent_id,
        status=transition.status,
        stop_reason=transition.stop_reason,
        error=transition.error,
        ts=rfc3339(transition.ts_ns // _SECOND_NS * _SECOND_NS),
        parent_context=transition.parent_context,
    )
    return FeedFrame(str(transition.seq), "run_state", encode_json(state))
