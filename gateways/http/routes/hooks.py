"""Hooks around tool calls: register, list, delete.

Specification: hooks.md sections 1 to 3, http-runs.md section 17.
"""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from events.frames import rfc3339
from gateways.http.authentication import principal_of
from gateways.http.bodies import MIB, JsonBody, read_body
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.errors import Refusal
from gateways.http.replies import JsonReply, json_error
from loomcycle.commands.hooks import HookRequest
from loomcycle.runtime import Runtime
from projections.rows import Hook


class Registered(Struct, frozen=True):
    id: str


class Deleted(Struct, frozen=True):
    deleted: str


class HookEntry(Struct, frozen=True, kw_only=True):
    """``agents`` and ``tools`` are null when the registration gave none."""

    id: str
    tenant: str
    owner: str
    name: str
    phase: str
    agents: tuple[str, ...] | None
    tools: tuple[str, ...] | None
    callback_url: str
    fail_mode: str
    timeout_ms: int
    registered_at: str


class HookList(Struct, frozen=True):
    hooks: list[HookEntry]


def endpoints(runtime: Runtime) -> list[Endpoint]:
    hooks = Hooks(runtime)
    return [
        Endpoint("/v1/hooks", ("POST",), "substrate:tenant", Answer(hooks.register)),
        Endpoint("/v1/hooks", ("GET",), "substrate:tenant", Answer(hooks.listed)),
        Endpoint("/v1/hooks/{hook_id}", ("DELETE",), "substrate:tenant", Answer(hooks.delete)),
        Endpoint("/v1/hooks/", ("DELETE",), "substrate:tenant", Answer(hooks.nameless)),
    ]


class Hooks:
    def __init__(self, runtime: Runtime) -> None:
        self._hooks = runtime.hooks
        self._body = JsonBody(HookRequest)

    async def register(self, request: Request) -> Response:
        """``POST /v1/hooks``."""
        try:
            wanted = self._body.decode(await read_body(request.scope, request.receive, MIB))
        except Refusal as refusal:
            return json_error(400, "invalid_json", str(refusal))
        return JsonReply(
            Registered(await self._hooks.register(wanted, principal_of(request.scope)))
        )

    async def listed(self, request: Request) -> JsonReply:
        """``GET /v1/hooks``."""
        hooks = await self._hooks.hooks(principal_of(request.scope))
        return JsonReply(HookList([_entry(hook) for hook in hooks]))

    async def delete(self, request: Request) -> JsonReply:
        """``DELETE /v1/hooks/{id}``."""
        hook_id = request.path_params["hook_id"]
        await self._hooks.delete(hook_id, principal_of(request.scope))
        return JsonReply(Deleted(hook_id))

    async def nameless(self, request: Request) -> Response:
        """``DELETE /v1/hooks/``."""
        return json_error(400, "missing_id", "the path must end in the id of a hook")


def _entry(hook: Hook) -> HookEntry:
    return HookEntry(
        id=hook.id,
        tenant=hook.tenant,
        owner=hook.owner,
        name=hook.name,
        phase=hook.phase,
        agents=hook.agents,
        tools=hook.tools,
        callback_url=hook.callback_url,
        fail_mode=hook.fail_mode,
        timeout_ms=hook.timeout_ms,
        registered_at=rfc3339(hook.registered_ns),
    )
