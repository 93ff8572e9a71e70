"""Several runs at a time: ``POST /v1/runs:batch``. Specification: http-runs.md section 9."""

from __future__ import annotations

import logging

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from events.log import LogError
from gateways.http.authentication import principal_of
from gateways.http.bodies import MIB, JsonBody
from gateways.http.clients import Clients, Departure
from gateways.http.endpoint import Endpoint
from gateways.http.errors import ShuttingDown
from gateways.http.replies import JsonReply
from loomcycle.commands.batch import Batch, BatchRequest, Settled
from loomcycle.readers import DISCONNECTED
from loomcycle.runtime import Runtime

log = logging.getLogger("loomcycle.http")

BODY_LIMIT = 8 * MIB


class BatchReply(Struct, frozen=True):
    """``results[i]`` belongs to ``spawns[i]`` of the request."""

    results: list[Settled]
    spawned: int


def endpoints(runtime: Runtime, clients: Clients) -> list[Endpoint]:
    return [Endpoint("/v1/runs:batch", ("POST",), "runs:create", StartBatch(runtime, clients))]


class StartBatch:
    """``POST /v1/runs:batch``."""

    def __init__(self, runtime: Runtime, clients: Clients) -> None:
        self._runtime = runtime
        self._clients = clients
        self._body = JsonBody(BatchRequest, limit=BODY_LIMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when all runs have ended. A client that leaves cancels them."""
        request = await self._body.read(scope, receive)
        request.check()
        runtime = self._runtime
        batch = Batch(runtime.commands, runtime.services, principal_of(scope), request.spawns)
        results: list[Settled] = []
        with self._clients.watch(scope) as watch:
            results = await batch.join(request.timeout_ms / 1000 or None)
        match watch.departed:
            case Departure.CLIENT:
                try:
                    await batch.cancel(DISCONNECTED)
                except LogError as cause:
                    log.warning("runs of a batch whose client left go on: %s", cause)
            case Departure.SERVER:
                raise ShuttingDown
            case None:
                reply = JsonReply(BatchReply(results, len(results)))
                await reply(scope, receive, send)
