"""Registering, listing and removing hooks: who may, what is refused, and why.

Specification: hooks.md sections 1 to 3. Administrators' hooks belong to no tenant and guard every
run; a tenant's own guard its runs, and it sees no others.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from events.hooks import HookRegistered
from loomcycle.auth import Principal
from loomcycle.errors import HookNotFound, InvalidRegistration
from loomcycle.hooks.registry import HookRegistry
from loomcycle.lookups import Lookups
from loomcycle.services import Services
from projections.rows import Hook


class HookRequest(Struct, frozen=True, kw_only=True):
    """The body of a registration; whose it is follows from the caller."""

    owner: str = ""
    name: str = ""
    phase: str = ""
    callback_url: str = ""
    agents: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    fail_mode: str = ""
    timeout_ms: int = 0


MAX_TIMEOUT_MS = 2**63 - 1
"""Longer times than 60 s are stored as given, but no number that a view cannot hold."""


class HookCommands:
    """For one process; ``registry`` is its own."""

    def __init__(self, services: Services, registry: HookRegistry, lookups: Lookups) -> None:
        self._services = services
        self._registry = registry
        self._lookups = lookups

    async def register(self, request: HookRequest, principal: Principal) -> str:
        """Add a hook or put it in its namesake's place; its new id.

        Every call that begins afterwards passes it, here at once. Raises InvalidRegistration,
        LogError.
        """
        hook = HookRegistered(
            id=f"hook_{self._services.new_hex()}",
            tenant=_tenant(principal),
            owner=_required("owner", request.owner),
            name=_required("name", request.name),
            phase=_phase(request.phase),
            callback_url=self._url(request.callback_url),
            agents=request.agents,
            tools=request.tools,
            fail_mode=_fail_mode(request.fail_mode),
            timeout_ms=_timeout(request.timeout_ms),
            registered_at_ns=self._services.now_ns(),
        )
        await self._registry.register(hook)
        return hook.id

    async def delete(self, hook_id: str, principal: Principal) -> None:
        """Raises HookNotFound, LogError."""
        await self._registry.catch_up()
        hook = self._registry.with_id(hook_id)
        if hook is None or not principal.sees(hook.tenant):
            raise HookNotFound(hook_id)
        if not await self._registry.delete(hook):
            raise HookNotFound(hook_id)

    async def hooks(self, principal: Principal) -> list[Hook]:
        """Those that ``principal`` may see, in the order of the chain. Raises ViewUnavailable."""
        return await self._lookups.hooks(principal)

    def _url(self, url: str) -> str:
        if not url:
            raise InvalidRegistration("callback_url required")
        if not url.startswith(("http://", "https://")):
            raise InvalidRegistration("callback_url must begin with http:// or https://")
        redaction = self._services.redaction
        if redaction is not None and redaction.for_run({}).redactor.redact(url, exact_only=True)[1]:
            raise InvalidRegistration(
                "callback_url holds a secret of this server, which is never stored:"
                " register an address without it"
            )
        return url


def _tenant(principal: Principal) -> str:
    return "" if principal.is_admin else principal.tenant


def _required(field: str, value: str) -> str:
    if not value.strip():
        raise InvalidRegistration(f"{field} required")
    return value


def _phase(phase: str) -> Literal["pre", "post"]:
    match phase:
        case "pre" | "post":
            return phase
        case _:
            raise InvalidRegistration(f'phase must be "pre" or "post", got "{phase}"')


def _fail_mode(mode: str) -> Literal["open", "closed"]:
    match mode:
        case "":
            return "open"
        case "open" | "closed":
            return mode
        case _:
            raise InvalidRegistration(f'fail_mode must be "open" or "closed", got "{mode}"')


def _timeout(timeout_ms: int) -> int:
    if timeout_ms < 0:
        raise InvalidRegistration(f"timeout_ms must not be negative, got {timeout_ms}")
    return min(timeout_ms, MAX_TIMEOUT_MS)
