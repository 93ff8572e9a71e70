"""Pausing, resuming and the state of the runtime, for administrators.

Specification: snapshot.md section 1, http-admin.md section 10.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gateways.http.bodies import MIB, BodyTooLarge, first_value, read_body
from gateways.http.clients import Clients, Departure
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.errors import ShuttingDown
from gateways.http.replies import JsonReply, json_error
from loomcycle.runtime import Runtime

ADMIN = "substrate:admin"


class PauseRequest(Struct, frozen=True):
    """``timeout_ms``: 0 and less mean the server's default."""

    timeout_ms: int | None = None


class PauseReply(Struct, frozen=True, omit_defaults=True, kw_only=True):
    state: str
    duration_ms: int
    force_cancelled_count: int
    paused_runs_count: int
    warnings: tuple[str, ...] = ()


class ResumeReply(Struct, frozen=True, omit_defaults=True, kw_only=True):
    state: str
    resumed_runs_count: int
    warnings: tuple[str, ...] = ()


class StateReply(Struct, frozen=True, kw_only=True):
    state: str
    paused_runs_count: int


_decode = msgspec.json.Decoder(PauseRequest | None).decode


def endpoints(runtime: Runtime, clients: Clients) -> list[Endpoint]:
    control = RuntimeControl(runtime)
    return [
        Endpoint("/v1/_pause", ("POST",), ADMIN, PauseRuntime(runtime, clients)),
        Endpoint("/v1/_resume", ("POST",), ADMIN, Answer(control.resume)),
        Endpoint("/v1/_state", ("GET",), ADMIN, Answer(control.state)),
    ]


class PauseRuntime:
    """``POST /v1/_pause``: answers when the runtime is paused, which goes on without its client."""

    def __init__(self, runtime: Runtime, clients: Clients) -> None:
        self._runtime = runtime
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = await _request(scope, receive)
        except (BodyTooLarge, msgspec.DecodeError, RecursionError) as cause:
            await json_error(400, "invalid_json", str(cause))(scope, receive, send)
            return
        reply: JsonReply | None = None
        with self._clients.watch(scope) as watch:
            done = await self._runtime.pausing.pause(request.timeout_ms or 0)
            reply = JsonReply(
                PauseReply(
                    state="paused",
                    duration_ms=done.duration_ms,
                    force_cancelled_count=done.force_cancelled,
                    paused_runs_count=done.paused_runs,
                    warnings=done.warnings,
                )
            )
        if reply is None and watch.departed is Departure.SERVER:
            raise ShuttingDown
        if reply is not None:
            await reply(scope, receive, send)


class RuntimeControl:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def resume(self, request: Request) -> JsonReply:
        """``POST /v1/_resume``."""
        done = await self._runtime.pausing.resume()
        return JsonReply(
            ResumeReply(
                state="running", resumed_runs_count=done.resumed_runs, warnings=done.warnings
            )
        )

    async def state(self, request: Request) -> JsonReply:
        """``GET /v1/_state``."""
        state, parked = await self._runtime.pausing.state()
        return JsonReply(StateReply(state=state, paused_runs_count=parked))


async def _request(scope: Scope, receive: Receive) -> PauseRequest:
    """Raises BodyTooLarge, ClientGone, msgspec.DecodeError."""
    body = await read_body(scope, receive, MIB)
    if not body.strip():
        return PauseRequest()
    return _decode(first_value(body)) or PauseRequest()
