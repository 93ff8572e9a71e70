"""Saying something to a live run. Specification: http-runs.md section 12."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request

from gateways.http.authentication import COOKIE, principal_of
from gateways.http.bodies import MIB, JsonBody, read_body
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.commands.requests import check_ident
from loomcycle.runtime import Runtime


class InputRequest(Struct, frozen=True):
    text: str = ""


class InputReply(Struct, frozen=True):
    run_id: str
    delivered: bool


def endpoints(runtime: Runtime) -> list[Endpoint]:
    inputs = Inputs(runtime)
    return [Endpoint("/v1/runs/{run_id}/input", ("POST",), "runs:create", Answer(inputs.send))]


class Inputs:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._body = JsonBody(InputRequest)

    async def send(self, request: Request) -> JsonReply:
        """``POST /v1/runs/{run_id}/input``."""
        run_id = request.path_params["run_id"]
        check_ident(run_id, "run_id")
        body = self._body.decode(await read_body(request.scope, request.receive, MIB))
        source = "webui" if request.cookies.get(COOKIE) else "api"
        await self._runtime.inputs.send(principal_of(request.scope), run_id, body.text, source)
        return JsonReply(InputReply(run_id, True))
