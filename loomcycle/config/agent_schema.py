"""What an agent's configuration holds, with types and ranges (config spec section 7.1).

Declarations only: rules that look at more than one field live in `agent_rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from loomcycle.config.vocabulary import (
    Effort,
    EvaluationScope,
    MemoryScope,
    NonNegative,
    NonNegativeFloat,
    OptionalTier,
    ProviderId,
    SqlScope,
    Tier,
)

Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ProviderCandidate(Struct, frozen=True, kw_only=True):
    """A (provider, model) pair; written as a bare string it is a model with no provider."""

    provider: str = ""
    model: str = ""


class SamplingConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters; None means "not sent", which differs from 0."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: int | None = None
    stop: Annotated[tuple[str, ...], Meta(max_length=8)] | None = None


class CompactionConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Context compaction settings; None means "use the default" (compaction spec section 1)."""

    enabled: bool | None = None
    target_percentage: Annotated[int, Meta(ge=10, le=50)] | None = None
    keep_last_n: NonNegative | None = None
    keep_first: bool | None = None
    autocompact_at_pct: Annotated[int, Meta(ge=50, le=95)] | None = None
    model: str | None = None


class AgentChannels(Struct, frozen=True, kw_only=True):
    """Channel names, or prefixes ending in `/*`, that an agent may use; empty = none."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


class AgentInterruption(Struct, frozen=True, kw_only=True):
    """Whether an agent may ask humans, in which ways, and how many questions may be open."""

    enabled: bool = False
    kinds: tuple[str, ...] = ()
    max_pending: NonNegative = 0


class AgentConfig(Struct, frozen=True, kw_only=True):
    """One agent as the runtime uses it: prompt file read, skills bundled, `Context` added.

    `name` is the map key (or file name) and `base_system_prompt` the prompt before skills
    were appended; both are filled in by loading and cannot be written in YAML. A 0 or an
    empty value means "default" where the default is applied by the part that uses it.
    """

    derived_fields: ClassVar[frozenset[str]] = frozenset({"name", "base_system_prompt"})

    name: str = ""
    description: str = ""
    provider: str = ""
    model: str = ""
    tier: OptionalTier = ""
    effort: Effort = ""
    providers: tuple[ProviderId, ...] = ()
    models: dict[Tier, tuple[ProviderCandidate, ...]] = {}
    code: str = ""
    system_prompt: str = ""
    system_prompt_file: str = ""
    base_system_prompt: str = ""
    allowed_tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    max_tokens: NonNegative = 0
    max_iterations: NonNegative = 0
    unbounded_iterations: bool = False
    max_concurrent_children: NonNegative = 0
    run_timeout_seconds: NonNegative = 0
    sampling: SamplingConfig = SamplingConfig()
    compaction: CompactionConfig = CompactionConfig()
    volumes: tuple[str, ...] = ()
    memory_scopes: tuple[MemoryScope, ...] = ()
    memory_quota_bytes: NonNegative = 0
    sql_scopes: tuple[SqlScope, ...] = ()
    sql_quota_bytes: NonNegative = 0
    memory_backend: str = ""
    channels: AgentChannels = AgentChannels()
    agent_def_scopes: tuple[str, ...] = ()
    skill_def_scopes: tuple[str, ...] = ()
    volume_def_scopes: tuple[str, ...] = ()
    schedule_def_scopes: tuple[str, ...] = ()
    webhook_def_scopes: tuple[str, ...] = ()
    a2a_server_card_def_scopes: tuple[str, ...] = ()
    a2a_agent_def_scopes: tuple[str, ...] = ()
    evaluation_scopes: tuple[EvaluationScope, ...] = ()
    history_scope: str = ""
    disable_context: bool = False
    interruption: AgentInterruption = AgentInterruption()
    retry_attempts: NonNegative | None = None
    output_schema: dict[str, Any] | None = None
    require_approval: tuple[str, ...] = ()
    max_cost_usd: NonNegativeFloat | None = None
    max_tokens_total: NonNegative | None = None
