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
from gateways.http.bodies import JsonBody, header
from gateways.http.clients import Clients, Departure
from gateways.http.endpoint import Endpoint
from gateways.http.errors import Refusal, ShuttingDown
from gateways.http.replies import JsonReply, encode_json
from gateways.http.sse import EventStream
from loomcycle.commands.requests import RunRequest, check_ident
from loomcycle.commands.runs import StartedRun
from loomcycle.errors import RunNotFound
from loomcycle.feed import BadPosition, FeedFrame, Position, RunFeed, parse_position
from loomcycle.runtime import Runtime

log = logging.getLogger("loomcycle.http")

BEFORE_ALL = "0"
"""Frame id before the first durable frame of any run."""

RESPOND_ASYNC = "respond-async"

LARGEST = 2**53
"""No position is beyond it."""


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


class Accepted(Struct, frozen=True):
    """A run that goes on by itself (RFC 7240, ``respond-async``)."""

    run_id: str
    session_id: str
    agent_id: str


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
        if wants_no_stream(scope):
            await self._streams.accept(scope, receive, send, partial(start, detached=True))
        else:
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
        if wants_no_stream(scope):
            await self._streams.accept(scope, receive, send, partial(start, detached=True))
        else:
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
    """What all streaming routes share; they differ in how a stream begins."""

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
        """Stream the run that ``start`` promises. Raises CommandError, ShuttingDown.

        A client that leaves while the start waits withdraws it (the command sees to that).
        """
        stream = EventStream(scope, send, self._keepalive_s)
        run: StartedRun | None = None
        with self._clients.watch(scope) as watch:
            run = await start()
            try:
                await _deliver(stream, opening_frames(run), run.feed)
            finally:
                run.feed.close()
        if watch.departed is Departure.CLIENT:
            if run is not None and run.reader == "cancel" and not run.feed.ended:
                self.runtime.readers.left(run.tenant, run.run_id)
            return
        await _conclude(stream, receive, watch.departed)

    async def accept(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        start: Callable[[], Awaitable[StartedRun]],
    ) -> None:
        """Answer 202 once the run is a promise. Raises CommandError, ShuttingDown."""
        run: StartedRun | None = None
        with self._clients.watch(scope) as watch:
            run = await start()
        if run is None:
            if watch.departed is Departure.SERVER:
                raise ShuttingDown
            return
        run.feed.close()
        headers = {
            "Location": f"/v1/runs/{run.run_id}/stream",
            "Preference-Applied": RESPOND_ASYNC,
        }
        reply = JsonReply(Accepted(run.run_id, run.session_id, run.agent_id), 202, headers)
        await reply(scope, receive, send)

    async def attach(
        self, scope: Scope, receive: Receive, send: Send, feed: RunFeed, first: FeedFrame
    ) -> None:
        """Stream ``feed`` to an observer, whose leaving never affects the run."""
        stream = EventStream(scope, send, self._keepalive_s)
        if scope["method"] == "HEAD":
            await stream.open([])
            await stream.end()
            return
        with self._clients.watch(scope) as watch:
            async with feed:
                await _deliver(stream, [first], feed)
        if watch.departed is not Departure.CLIENT:
            await _conclude(stream, receive, watch.departed)


async def _deliver(stream: EventStream, first: list[FeedFrame], feed: RunFeed) -> None:
    """Stream until the run ends; a log that cannot be read on leaves the stream unfinished."""
    try:
        await stream.open(first)
        await stream.follow(feed)
    except LogError as cause:
        log.warning("stream of %s broken off: %s", feed.run_id, cause)


async def _conclude(stream: EventStream, receive: Receive, departed: Departure | None) -> None:
    """Break off what could not be sent to its end. Raises ShuttingDown before a first frame."""
    if not stream.started and departed is Departure.SERVER:
        raise ShuttingDown
    if not stream.ended:
        await stream.break_off(receive)


def wants_no_stream(scope: Scope) -> bool:
    """Whether the client asks for an answer at once (``Prefer: respond-async``)."""
    given = header(scope, b"prefer")
    if not given:
        return False
    preferences = given.decode("latin-1").lower().split(",")
    return any(preference.split(";")[0].strip() == RESPOND_ASYNC for preference in preferences)


def opening_frames(run: StartedRun) -> list[FeedFrame]:
    """``session`` and ``agent``, then what the run's first commit holds."""
    agent = AgentFrame(run.agent_id, run.run_id, run.session_id, None, run.parent_context)
    return [
        FeedFrame(BEFORE_ALL, "session", encode_json(SessionFrame(run.session_id))),
        FeedFrame(BEFORE_ALL, "agent", encode_json(agent)),
        *run.first,
    ]


def position_of(request: Request) -> tuple[str, Position]:
    """Where a re-attaching reader stands, as a frame id and parsed. Raises Refusal (400).

    ``Last-Event-ID`` wins over ``?after=``, both over ``?from_seq=``, where nonsense counts as 0.
    """
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    if given:
        try:
            position = parse_position(given)
        except BadPosition as cause:
            raise Refusal(400, f"after: {cause}") from None
        return ".".join(map(str, position[: given.count(".") + 1])), position
    seq = request.query_params.get("from_seq", "")
    number = int(seq) if seq.isascii() and seq.isdigit() and len(seq) <= 16 else 0
    known = number if number <= LARGEST else 0
    return str(known), Position(known)
