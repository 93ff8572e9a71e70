"""Starting, continuing and re-attaching to runs: the routes that stream.

Specification: http-runs.md sections 3, 4, 7 and 11. ``POST /v1/runs`` is the hot path: one ASGI
call, no request or response objects, everything that is ready in one send.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from events.log import LogError
from gateways.http.authentication import principal_of
from gateways.http.bodies import JsonBody
from gateways.http.clients import Clients, Departure
from gateways.http.endpoint import Endpoint
from gateways.http.errors import Refusal, ShuttingDown
from gateways.http.replies import encode_json
from gateways.http.sse import EventStream
from loomcycle.commands.requests import RunRequest, check_ident
from loomcycle.commands.runs import StartedRun
from loomcycle.errors import RunNotFound
from loomcycle.feed import BadPosition, FeedFrame, Position, RunFeed, parse_position
from loomcycle.runtime import Runtime

log = logging.getLogger("loomcycle.http")

BEFORE_ALL = "0"
"""Frame id before the first durable frame of any run."""


class SessionFrame(Struct, frozen=True, tag_field="type", tag="session"):
    text: str


class AgentFrame(Struct, frozen=True):
    """What a client needs to track the run that it started."""

    agent_id: str
    run_id: str
    session_id: str
    parent_agent_id: str | None = None
    parent_context: dict[str, str] | None = None


class AttachedFrame(Struct, frozen=True):
    agent_id: str
    run_id: str
    session_id: str


def endpoints(runtime: Runtime, clients: Clients) -> list[Endpoint]:
    streams = RunStreams(runtime, clients)
    return [
        Endpoint("/v1/runs", ("POST",), "runs:create", StartRun(streams)),
        Endpoint(
            "/v1/sessions/{session_id}/messages", ("POST",), "runs:create", ContinueSession(streams)
        ),
        Endpoint("/v1/runs/{run_id}/stream", ("GET",), "runs:read", AttachToRun(streams)),
    ]


class StartRun:
    """``POST /v1/runs``."""

    def __init__(self, streams: RunStreams) -> None:
        self._streams = streams
        self._body = JsonBody(RunRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self._body.read(scope, receive)
        commands = self._streams.runtime.commands
        start = partial(commands.start, request, principal_of(scope))
        await self._streams.serve(scope, receive, send, start)


class ContinueSession:
    """``POST /v1/sessions/{id}/messages``."""

    def __init__(self, streams: RunStreams) -> None:
        self._streams = streams
        self._body = JsonBody(RunRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self._body.read(scope, receive)
        commands = self._streams.runtime.commands
        session_id = scope["path_params"]["session_id"]
        start = partial(commands.continue_session, session_id, request, principal_of(scope))
        await self._streams.serve(scope, receive, send, start)


class AttachToRun:
    """``GET /v1/runs/{run_id}/stream``."""

    def __init__(self, streams: RunStreams) -> None:
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run_id = scope["path_params"]["run_id"]
        check_ident(run_id, "run_id")
        id_text, after = position_of(Request(scope))
        runtime = self._streams.runtime
        run = await runtime.lookups.run(principal_of(scope), run_id)
        if run is None:
            raise RunNotFound
        agent = encode_json(AttachedFrame(run.agent_id, run.id, run.session_id))
        feed = RunFeed(
            runtime.store,
            runtime.services.live,
            run.tenant,
            run.id,
            process=runtime.services.process,
            after=after,
            replay=True,
            alone=runtime.cluster.alone,
        )
        await self._streams.attach(scope, receive, send, feed, FeedFrame(id_text, "agent", agent))


class RunStreams:
    """What all streaming routes share. No run is named here: they differ in how one begins."""

    def __init__(self, runtime: Runtime, clients: Clients) -> None:
        self.runtime = runtime
        self._clients = clients
        keepalive_ms = runtime.config.environment.sse_keepalive_ms
        self._keepalive_s = keepalive_ms / 1000 if keepalive_ms > 0 else None

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        start: Callable[[], Awaitable[StartedRun]],
    ) -> None:
        """Stream the run that ``start`` promises. Raises CommandError, ShuttingDown."""
        stream = EventStream(scope, send, self._keepalive_s)
        with self._clients.watch(receive) as watch:
            run = await start()
            try:
                await stream.open(opening_frames(run))
                await stream.follow(run.feed)
            except LogError as cause:
                log.warning("stream of %s broken off: %s", run.run_id, cause)
                watch.departed = watch.departed or None
                await self._break_off(stream, watch_receive=receive)
            finally:
                run.feed.close()
                if (
                    watch.departed is Departure.CLIENT
                    and run.reader == "cancel"
                    and not run.feed.ended
                ):
                    self.runtime.readers.left(run.tenant, run.run_id)
        await self._ended(stream, receive, watch.departed)
