"""Compacting the conversation of a run on request. Specification: compaction.md section 5."""

from __future__ import annotations

from starlette.requests import Request

from gateways.http.authentication import principal_of
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.commands.requests import check_ident
from loomcycle.runtime import Runtime


def endpoints(runtime: Runtime) -> list[Endpoint]:
    compactions = Compactions(runtime)
    compact = Answer(compactions.compact)
    return [Endpoint("/v1/runs/{run_id}/compact", ("POST",), "runs:create", compact)]


class Compactions:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def compact(self, request: Request) -> JsonReply:
        """``POST /v1/runs/{run_id}/compact``; a body says nothing."""
        run_id = request.path_params["run_id"]
        check_ident(run_id, "run_id")
        compacted = await self._runtime.compactions.compact(principal_of(request.scope), run_id)
        return JsonReply(compacted)
