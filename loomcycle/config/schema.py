"""The top level of the YAML configuration as typed Structs (config spec section 7).

Declarations and defaults only; a value is checked against its type and range while it is
decoded, rules across fields live in `rules` and `agent_rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from loomcycle.config.agent_schema import AgentConfig, ProviderCandidate
from loomcycle.config.peer_schema import (
    A2AAgentConfig,
    A2AServerCardConfig,
    LocalApiConfig,
    McpServerConfig,
)
from loomcycle.config.trigger_schema import ScheduledRunConfig, WebhookConfig
from loomcycle.config.vocabulary import (
    NonNegative,
    NonNegativeFloat,
    PrincipalScope,
    ProviderId,
    Tier,
)


class DefaultsConfig(Struct, frozen=True, kw_only=True):
    """Provider and model of agents that name none. `model` is literal, never an alias."""

    provider: str = ""
    model: str = ""


class ConcurrencyConfig(Struct, frozen=True, kw_only=True):
    """Bounds of admission. Times in milliseconds; a per-user cap of 0 is no cap."""

    max_concurrent_runs: Annotated[int, Meta(ge=1)] = 8
    max_queue_depth: NonNegative = 16
    queue_timeout_ms: int = 30_000
    max_concurrent_runs_per_user: NonNegative = 0


class ResponseKvConfig(Struct, frozen=True, kw_only=True):
    """Informational: where cached responses would live."""

    backend: str = "memory"
    ttl: str = "5m"


class NativeCacheConfig(Struct, frozen=True, kw_only=True):
    """Informational: whether a provider's own prompt cache is used."""

    enabled: bool = True


class CacheConfig(Struct, frozen=True, kw_only=True):
    """Informational cache block."""

    response_kv: ResponseKvConfig = ResponseKvConfig()
    native: NativeCacheConfig = NativeCacheConfig()


class ContextPluginConfig(Struct, frozen=True, kw_only=True):
    """A transformation of what is sent to the model; only `redact` exists."""

    name: str = ""
    enabled: bool = True
    redact_tool_input: bool = False


class StorageConfig(Struct, frozen=True, kw_only=True):
    """Where views and SQL memory live. Milliseconds and bytes; 0 means "no limit" unless said."""

    backend: str = "sqlite"
    pg_dsn: str = ""
    pg_max_open_conns: NonNegative = 32
    pg_min_idle_conns: NonNegative = 0
    pg_automigrate: bool = False
    pgvector_enabled: bool = False
    sqlite_vec_path: str = ""
    sqlmem_enabled: bool = False
    sqlmem_root: str = ""
    sqlmem_quota_bytes: NonNegative = 0
    sqlmem_statement_timeout_ms: NonNegative = 30_000
    sqlmem_max_rows: NonNegative = 10_000
    sqlmem_audit_mode: str = "full"
    sqlmem_pg_dsn: str = ""
    sqlmem_txn_timeout_ms: NonNegative = 30_000
    sqlmem_max_open_txns: NonNegative = 64
    sqlmem_max_txn_depth: NonNegative = 16
    sqlmem_scope_ttl_ms: NonNegative = 0
    sqlmem_gc_interval_ms: NonNegative = 3_600_000
    sqlmem_total_max_bytes: NonNegative = 0
    sqlmem_snapshot_max_scope_bytes: NonNegative = 0
    sqlmem_shared_schemas: tuple[str, ...] = ()


class UserTierConfig(Struct, frozen=True, kw_only=True):
    """What a class of users gets. After loading, zeros have become the stated defaults."""

    provider_priority: tuple[ProviderId, ...] = ()
    tiers: dict[Tier, tuple[ProviderCandidate, ...]] = {}
    fallback_on_error: bool = False
    max_fallback_attempts: NonNegative = 0
    retry_attempts: NonNegative = 0
    rate_limit_cooldown_ms: NonNegative = 0


class ChannelConfig(Struct, frozen=True, kw_only=True):
    """A declared channel. `default_ttl` in seconds; 0 = never expires, unbounded."""

    scope: Literal["", "agent", "user", "global"] = ""
    default_ttl: NonNegative = 0
    max_messages: NonNegative = 0
    semantic: Literal["", "queue", "broadcast"] = ""
    description: str = ""
    publisher: Literal["", "system"] = ""
    period: str = ""


class MemoryBackendSettings(Struct, frozen=True, kw_only=True):
    """Address of a remote memory service; the key is named, never given."""

    base_url: str = ""
    api_version: str = ""
    api_key_env: str = ""


class TenancyStrategy(Struct, frozen=True, kw_only=True):
    """How one remote account is divided among tenants."""

    kind: str = ""
    env_pattern: str = ""
    prefix_pattern: str = ""


class MemoryBackendConfig(Struct, frozen=True, kw_only=True):
    """A named memory backend: `inprocess` (the default) or `mem9`."""

    kind: str = ""
    config: MemoryBackendSettings = MemoryBackendSettings()
    tenancy_strategy: TenancyStrategy = TenancyStrategy()
    fallback_on_error: str = ""
    health_check_interval_seconds: NonNegative = 0


class VolumeConfig(Struct, frozen=True, kw_only=True):
    """A host directory for file tools. After loading, `path` is absolute."""

    path: str = ""
    mode: Literal["rw", "ro"] = "rw"
    default: bool = False
    dynamic_root: bool = False


class InterruptionConfig(Struct, frozen=True, kw_only=True):
    """How questions reach humans. Milliseconds; 0 = none, except the heartbeat."""

    backend: str = "webui"
    default_timeout_ms: NonNegative = 0
    max_timeout_ms: NonNegative = 0
    max_pending_per_run: NonNegative = 0
    heartbeat_interval_ms: NonNegative = 30_000


class HostWidenPermission(Struct, frozen=True, kw_only=True):
    """Hook owners, `owner` or `tenant:owner`, that may widen the hosts of one call."""

    owners: tuple[str, ...] = ()


class HooksConfig(Struct, frozen=True, kw_only=True):
    """Operator permissions for hooks; hooks themselves are registered at run time."""

    permit_host_widen: HostWidenPermission = HostWidenPermission()


class EmbedderConfig(Struct, frozen=True, kw_only=True):
    """The embedding model of memory. 0 means the environment's or the driver's default."""

    provider: str = ""
    model: str = ""
    timeout_ms: NonNegative = 0
    batch_size: NonNegative = 0


class MemorySeed(Struct, frozen=True, kw_only=True):
    """A row written once at boot unless it exists; `scope` global, agent or user."""

    scope: str = "global"
    scope_id: str = ""
    key: str = ""
    value: Any = None
    embed: bool = False


class MemoryConfig(Struct, frozen=True, kw_only=True):
    """Embedder and seed rows of memory."""

    embedder: EmbedderConfig | None = None
    entries: tuple[MemorySeed, ...] = ()


class PrincipalConfig(Struct, frozen=True, kw_only=True):
    """A caller declared by the operator; the bearer is in the variable `token_env`."""

    tenant: str = ""
    subject: str = ""
    scopes: tuple[PrincipalScope, ...] = ()
    token_env: str = ""


class PriceConfig(Struct, frozen=True, kw_only=True):
    """Price of a model in US dollars per million tokens; under `provider/model`, a model's name
    or a pattern of either (`gpt-*`). Budgets in money need one for each model they meet."""

    input_per_mtok: NonNegativeFloat = 0.0
    output_per_mtok: NonNegativeFloat = 0.0
    cache_read_per_mtok: NonNegativeFloat = 0.0
    cache_write_per_mtok: NonNegativeFloat = 0.0


class LogConfig(Struct, frozen=True, kw_only=True):
    """The event log: when it is flushed to disk, and the prefix of its subjects.

    `sync` is `always` (an acknowledged event is on disk) or an interval such as `2s`.
    """

    sync: str = "always"
    prefix: str = "loom"


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """Knobs of execution.

    `reader_grace_ms`: how long a run lives on after its last reader left. `archive_after`:
    age at which an ended run leaves its stream (a duration such as `720h`; empty = never).
    `seal_max_age`: cap on how long sealed credentials outlive their commit (empty = none).
    """

    reader_grace_ms: NonNegative = 2_000
    archive_after: str = ""
    seal_max_age: str = ""


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration: YAML layers, agent files, skills and environment applied.

    `env` belongs to the recipe commands; keys that start with `x-` are for YAML anchors.
    """

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"env"})

    defaults: DefaultsConfig = DefaultsConfig()
    models: dict[str, ProviderCandidate] = {}
    agents: dict[str, AgentConfig] = {}
    mcp_servers: dict[str, McpServerConfig] = {}
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    cache: CacheConfig = CacheConfig()
    context_plugins: tuple[ContextPluginConfig, ...] = ()
    local_api: LocalApiConfig | None = None
    storage: StorageConfig = StorageConfig()
    provider_priority: tuple[ProviderId, ...] = ()
    tiers: dict[Tier, tuple[ProviderCandidate, ...]] = {}
    user_tiers: dict[str, UserTierConfig] = {}
    channels: dict[str, ChannelConfig] = {}
    scheduled_runs: dict[str, ScheduledRunConfig] = {}
    a2a_server_cards: dict[str, A2AServerCardConfig] = {}
    a2a_agents: dict[str, A2AAgentConfig] = {}
    webhooks: dict[str, WebhookConfig] = {}
    memory_backends: dict[str, MemoryBackendConfig] = {}
    volumes: dict[str, VolumeConfig] = {}
    interruption: InterruptionConfig = InterruptionConfig()
    hooks: HooksConfig = HooksConfig()
    memory: MemoryConfig = MemoryConfig()
    principals: dict[str, PrincipalConfig] = {}
    prices: dict[str, PriceConfig] = {}
    log: LogConfig = LogConfig()
    runtime: RuntimeConfig = RuntimeConfig()
