"""The closed word lists of the configuration: provider ids, tiers, scopes, tool names.

Literals for the schema and the same words as tuples for messages. Holds no logic.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

ProviderId = Literal[
    "anthropic",
    "openai",
    "deepseek",
    "gemini",
    "ollama",
    "ollama-local",
    "anthropic-oauth-dev",
    "mock",
    "mock-stable",
]
Tier = Literal["low", "middle", "high"]
OptionalTier = Literal["", "low", "middle", "high"]
Effort = Literal["", "low", "medium", "high"]
MemoryScope = Literal["agent", "user"]
SqlScope = Literal["agent", "user", "run"]
EvaluationScope = Literal[
    "submit_self", "submit_siblings", "submit_descendants", "submit_any", "read_any"
]
PrincipalScope = Literal[
    "substrate:admin",
    "substrate:tenant",
    "runs:create",
    "runs:read",
    "channel:publish",
    "channel:read",
]

NonNegative = Annotated[int, Meta(ge=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]

PROVIDER_IDS: Final[tuple[str, ...]] = get_args(ProviderId)
TIERS: Final[tuple[str, ...]] = get_args(Tier)

CODE_PROVIDER: Final = "code-js"
"""Runs an agent's JavaScript; valid only as an agent's own `provider`, never in a list."""

DEFAULT_PROVIDER_PRIORITY: Final[tuple[str, ...]] = (
    "ollama-local",
    "deepseek",
    "openai",
    "anthropic",
    "ollama",
)

EVENT_DRIVEN_CHANNELS: Final[frozenset[str]] = frozenset(
    {
        "_system/runtime-state",
        "_system/provider-events",
        "_system/interrupts/pending",
        "_system/interrupts/resolved",
    }
)
"""System channels that are published on events and so need no `period`."""

CONTEXT_TOOL: Final = "Context"
