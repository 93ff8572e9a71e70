"""The wire shape of run requests, and the checks that need no look at the world.

Specification: http-runs.md sections 3.1 to 3.5 and 7. Decoding is strict about types only;
unknown fields are ignored.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Raw, Struct

from events.content import ContentBlock, Segment
from events.ids import is_ident
from events.plan import Compaction, Sampling
from loomcycle.errors import InvalidArgument
from loomcycle.planning import Narrowing

BEARER = re.compile(r"[A-Za-z0-9._\-+/=]{16,512}")
CREDENTIAL_KEY = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LINEAGE_LIMIT = 256

BEARER_NAME = "run.user_bearer"
"""Name under which a bearer is sealed; no credential of a caller can have it."""


class ParentContext(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Opaque lineage of a caller, each field at most 256 bytes."""

    root_agent_run_id: str = ""
    function_key: str = ""
    tier_at_run: str = ""


class RunRequest(Struct, frozen=True, kw_only=True):
    """``POST /v1/runs`` (and, without agent and identity, ``/v1/sessions/{id}/messages``)."""

    agent: str = ""
    segments: tuple[Segment, ...] | None = None
    prompt: str = ""
    allowed_tools: tuple[str, ...] | None = None
    allowed_hosts: tuple[str, ...] | None = None
    web_search_filter: str | None = ""
    session_id: str = ""
    tenant_id: str = ""
    user_id: str = ""
    agent_id: str = ""
    user_tier: str = ""
    user_bearer: str = ""
    user_credentials: dict[str, str] | None = None
    parent_context: ParentContext | None = None
    metadata: dict[str, Raw] | None = None
    run_timeout_seconds: int = 0
    interactive: bool = False
    sampling: Sampling | None = None
    compaction: Compaction | None = None
    max_cost_usd: float | None = None
    max_tokens_total: int | None = None

    def input(self) -> tuple[Segment, ...]:
        """The caller's segments; ``prompt`` is sugar for one trusted user segment."""
        if self.segments:
            return self.segments
        if self.prompt:
            return (Segment("user", (ContentBlock("trusted-text", self.prompt),)),)
        return ()


def check_ident(
    value: str, field: Literal["user_id", "agent_id", "run_id", "interrupt_id"]
) -> None:
    """Raises InvalidArgument unless ``value`` fits the ident charset."""
    if not is_ident(value):
        raise InvalidArgument(f"{field} must match [A-Za-z0-9_-]{{1,128}}", field)


def check_credentials(request: RunRequest) -> None:
    """Bearer shape, then credential keys, then lineage sizes. Raises InvalidArgument."""
    if request.user_bearer and BEARER.fullmatch(request.user_bearer) is None:
        raise InvalidArgument("user_bearer must match [A-Za-z0-9._\\-+/=]{16,512}", "user_bearer")
    for key in request.user_credentials or ():
        if CREDENTIAL_KEY.fullmatch(key) is None:
            raise InvalidArgument(
                f'user_credentials: key "{key}" must match [a-zA-Z0-9_-]{{1,64}}',
                f"user_credentials.{key}",
            )
    context = request.parent_context
    if context is not None:
        for name in ("root_agent_run_id", "function_key", "tier_at_run"):
            if len(getattr(context, name).encode()) > LINEAGE_LIMIT:
                raise InvalidArgument(
                    f"parent_context.{name} exceeds {LINEAGE_LIMIT} bytes",
                    f"parent_context.{name}",
                )


COMPACTION_RANGES: tuple[tuple[str, int, int | None], ...] = (
    ("target_percentage", 10, 50),
    ("keep_last_n", 0, None),
    ("autocompact_at_pct", 50, 95),
)
"""Fields of ``compaction`` with their smallest and largest values (compaction.md section 1)."""


def narrowing_of(request: RunRequest) -> Narrowing:
    """What the request changes of its agent's definition. Raises InvalidArgument."""
    compaction = request.compaction
    for name, low, high in COMPACTION_RANGES if compaction is not None else ():
        value = getattr(compaction, name)
        if value is not None and not low <= value <= (value if high is None else high):
            wanted = f">= {low}" if high is None else f"[{low},{high}]"
            field = f"compaction.{name}"
            raise InvalidArgument(f"{field} {value} out of range {wanted}", field)
    for name in ("max_cost_usd", "max_tokens_total"):
        limit = getattr(request, name)
        if limit is not None and limit < 0:
            raise InvalidArgument(f"{name} {limit} out of range >= 0", name)
    return Narrowing(
        allowed_tools=request.allowed_tools,
        sampling=request.sampling,
        run_timeout_seconds=max(0, request.run_timeout_seconds),
        interactive=request.interactive,
        user_tier=request.user_tier,
        compaction=compaction,
        max_cost_usd=request.max_cost_usd,
        max_tokens_total=request.max_tokens_total,
    )


def lineage(request: RunRequest) -> dict[str, str] | None:
    """The parent context to store; None when it is absent or all empty."""
    context = request.parent_context
    if context is None:
        return None
    fields = {
        name: getattr(context, name)
        for name in ("root_agent_run_id", "function_key", "tier_at_run")
    }
    return {name: value for name, value in fields.items() if value} or None


def credentials(request: RunRequest) -> dict[str, str]:
    """What is sealed: the credentials and the bearer, also under ``default`` unless the caller
    gave one (secrets.md 1)."""
    sealed = dict(request.user_credentials or {})
    if request.user_bearer:
        sealed[BEARER_NAME] = request.user_bearer
        sealed["default"] = sealed.get("default") or request.user_bearer
    return sealed
