"""Providers as operators see them: what is available, probe now, which models there are.

Specification: http-admin.md section 9. Answers are indented; no value is a zero time.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from events.frames import rfc3339
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import encode_json
from loomcycle.commands.resolver import Availability, ResolverCommands
from loomcycle.routing.matrix import ModelStatus, ProviderStatus
from loomcycle.runtime import Runtime

ZERO_TIME = "0001-01-01T00:00:00Z"


class Provider(Struct, frozen=True, omit_defaults=True, kw_only=True):
    excluded: bool
    reachable: bool
    models: dict[str, ModelStatus]
    last_check: str
    last_error: str = ""


class Resolver(Struct, frozen=True):
    generated_at: str
    providers: dict[str, Provider]


class Models(Struct, frozen=True):
    provider: str
    fetched_at: str
    duration_ms: int
    models: list[str]


def endpoints(runtime: Runtime) -> list[Endpoint]:
    routes = ResolverRoutes(runtime.resolver)
    admin = "substrate:admin"
    return [
        Endpoint("/v1/_resolver", ("GET",), admin, Answer(routes.show)),
        Endpoint("/v1/_resolve/probe", ("POST",), admin, Answer(routes.probe)),
        Endpoint("/v1/_providers/{id}/models", ("GET",), admin, Answer(routes.models)),
    ]


class ResolverRoutes:
    def __init__(self, commands: ResolverCommands) -> None:
        self._commands = commands

    async def show(self, request: Request) -> Response:
        """``GET /v1/_resolver``."""
        return _indented(_resolver(self._commands.availability()))

    async def probe(self, request: Request) -> Response:
        """``POST /v1/_resolve/probe``; the body does not matter."""
        return _indented(_resolver(await self._commands.probe()))

    async def models(self, request: Request) -> Response:
        """``GET /v1/_providers/{id}/models``, asked of the provider now."""
        listing = await self._commands.models(request.path_params["id"])
        fetched_at = rfc3339(listing.at_ns)
        return _indented(Models(listing.provider, fetched_at, listing.duration_ms, listing.models))


def _resolver(availability: Availability) -> Resolver:
    providers = {name: _provider(status) for name, status in availability.providers.items()}
    return Resolver(rfc3339(availability.at_ns), providers)


def _provider(status: ProviderStatus) -> Provider:
    return Provider(
        excluded=status.excluded,
        reachable=status.reachable,
        models=status.models,
        last_check=rfc3339(status.last_check_ns) if status.last_check_ns else ZERO_TIME,
        last_error=status.last_error,
    )


def _indented(content: Struct) -> Response:
    body = msgspec.json.format(encode_json(content), indent=2) + b"\n"
    return Response(body, media_type="application/json")
