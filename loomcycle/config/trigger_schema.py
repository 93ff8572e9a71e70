"""Declarations of scheduled runs and inbound webhooks (triggers spec, A2 and B2).

Declarations only. The same Structs describe stored definitions of these kinds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from loomcycle.config.vocabulary import NonNegative


class PromptPart(Struct, frozen=True, kw_only=True):
    """One piece of a prompt message."""

    type: str = "text"
    text: str = ""


class PromptMessage(Struct, frozen=True, kw_only=True):
    """One message of the prompt that a trigger sends."""

    role: str = "user"
    content: tuple[PromptPart, ...] = ()


class CompletionAction(Struct, frozen=True, kw_only=True):
    """What to do after a completed run: `channel.publish`, `mcp.call` or `memory.set`."""

    kind: str = ""
    channel: str = ""
    server: str = ""
    tool: str = ""
    args: dict[str, Any] | None = None
    scope: str = ""
    key: str = ""
    payload: dict[str, Any] | None = None


class ScheduledRunConfig(Struct, frozen=True, kw_only=True):
    """A run started by a cron expression. `enabled` defaults to false in YAML."""

    agent: str = ""
    prompt: tuple[PromptMessage, ...] = ()
    schedule: str = ""
    user_tier_schedules: dict[str, str] = {}
    user_tier: str = ""
    required_credentials: tuple[str, ...] = ()
    timezone: str = ""
    enabled: bool = False
    catch_up_max: NonNegative = 0
    max_fires: NonNegative = 0
    user_id: str = ""
    user_credentials_from_env: dict[str, str] = {}
    on_complete: tuple[CompletionAction, ...] = ()
    metadata: dict[str, Any] = {}
    tenant_id: str = ""


class WebhookAuth(Struct, frozen=True, kw_only=True):
    """How a delivery proves itself. Fields ending in `_env` name variables, never values."""

    kind: Literal["", "hmac", "bearer", "none"] = ""
    algorithm: str = ""
    header: str = ""
    signing_secret_env: str = ""
    delivery_id_header: str = ""
    bearer_token_env: str = ""


class WebhookRateLimit(Struct, frozen=True, kw_only=True):
    """Token bucket of one webhook; 0 means the default (60 a minute, burst 10)."""

    requests_per_minute: NonNegative = 0
    burst: NonNegative = 0


class WebhookSyncResponse(Struct, frozen=True, kw_only=True):
    """Whether the delivery's response waits for the run, and how long (milliseconds)."""

    enabled: bool = False
    timeout_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class WebhookConfig(Struct, frozen=True, kw_only=True):
    """An inbound webhook that starts a run (`spawn`) or publishes to a channel."""

    enabled: bool = False
    delivery: Literal["", "spawn", "channel"] = ""
    agent: str = ""
    channel: str = ""
    auth: WebhookAuth = WebhookAuth()
    rate_limit: WebhookRateLimit = WebhookRateLimit()
    body_size_limit_bytes: NonNegative = 0
    user_credentials_from_env: dict[str, str] = {}
    user_credentials: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    tenant_id: str = ""
    payload_mapping: dict[str, str] = {}
    sync_response: WebhookSyncResponse = WebhookSyncResponse()
    on_complete: tuple[CompletionAction, ...] = ()
