"""Every environment variable the project reads, declared once (config spec section 6).

The fields of `Environment` are the table: name, type, default, limits and effect. Parsing,
documentation and command-line help all come from it. Each group extends the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from loomcycle.config.runtime_variables import LogVariables, ServerVariables, ToolVariables
from loomcycle.config.variable_row import (
    AT_LEAST_0,
    INFINITY,
    OFF,
    POSITIVE,
    RATE,
    Limits,
    Names,
    Secret,
    Variable,
    own,
    vendor,
    vendor_key,
)


class StorageVariables(ToolVariables, frozen=True, kw_only=True):
    """Each overrides the `storage` field of the same name; switches can only turn on."""

    storage_backend: Annotated[str, own("STORAGE_BACKEND", "sqlite or postgres")] = ""
    pg_dsn: Annotated[Secret, own("PG_DSN", "PostgreSQL URL", secret=True)] = Secret()
    pg_max_open_conns: Annotated[
        int | None, own("PG_MAX_OPEN_CONNS", "connections at most", POSITIVE)
    ] = None
    pg_min_idle_conns: Annotated[
        int | None, own("PG_MIN_IDLE_CONNS", "connections kept open", AT_LEAST_0)
    ] = None
    pg_automigrate: Annotated[bool, own("PG_AUTOMIGRATE", "migrate the schema at boot")] = False
    pgvector_enabled: Annotated[bool, own("PGVECTOR_ENABLED", "vectors in PostgreSQL")] = False
    sqlite_vec_path: Annotated[str, own("SQLITE_VEC_PATH", "path of the vector extension")] = ""
    sqlmem_enabled: Annotated[bool, own("SQLMEM_ENABLED", "SQL memory")] = False
    sqlmem_root: Annotated[str, own("SQLMEM_ROOT", "directory of SQL memory files")] = ""
    sqlmem_quota_bytes: Annotated[
        int | None, own("SQLMEM_QUOTA_BYTES", "size of a scope", AT_LEAST_0)
    ] = None
    sqlmem_statement_timeout_ms: Annotated[
        int | None, own("SQLMEM_STATEMENT_TIMEOUT_MS", "limit of a statement", AT_LEAST_0)
    ] = None
    sqlmem_max_rows: Annotated[
        int | None, own("SQLMEM_MAX_ROWS", "rows of a query", AT_LEAST_0)
    ] = None
    sqlmem_audit_mode: Annotated[str, own("SQLMEM_AUDIT_MODE", "full or metadata")] = ""
    sqlmem_pg_dsn: Annotated[
        Secret, own("SQLMEM_PG_DSN", "PostgreSQL URL of SQL memory", secret=True)
    ] = Secret()
    sqlmem_txn_timeout_ms: Annotated[
        int | None, own("SQLMEM_TXN_TIMEOUT_MS", "age of an open transaction", AT_LEAST_0)
    ] = None
    sqlmem_max_open_txns: Annotated[
        int | None, own("SQLMEM_MAX_OPEN_TXNS", "open transactions", AT_LEAST_0)
    ] = None
    sqlmem_max_txn_depth: Annotated[
        int | None, own("SQLMEM_MAX_TXN_DEPTH", "nested savepoints", AT_LEAST_0)
    ] = None
    sqlmem_scope_ttl_ms: Annotated[
        int | None, own("SQLMEM_SCOPE_TTL_MS", "idle scopes are dropped after", AT_LEAST_0)
    ] = None
    sqlmem_gc_interval_ms: Annotated[
        int | None, own("SQLMEM_GC_INTERVAL_MS", "period of that collection", AT_LEAST_0)
    ] = None
    sqlmem_total_max_bytes: Annotated[
        int | None, own("SQLMEM_TOTAL_MAX_BYTES", "size of all scopes together", AT_LEAST_0)
    ] = None
    sqlmem_snapshot_max_scope_bytes: Annotated[
        int | None, own("SQLMEM_SNAPSHOT_MAX_SCOPE_BYTES", "scope size in snapshots", AT_LEAST_0)
    ] = None
    sqlmem_shared_schemas: Annotated[
        Names, own("SQLMEM_SHARED_SCHEMAS", "schemas all scopes may read")
    ] = ()


class HousekeepingVariables(StorageVariables, frozen=True, kw_only=True):
    """Sweepers, metrics and tracing."""

    heartbeat_sweeper: Annotated[bool, own("HEARTBEAT_SWEEPER", "sweep of stale runs")] = True
    heartbeat_sweep_interval_ms: Annotated[
        int, own("HEARTBEAT_SWEEP_INTERVAL_MS", "period of that sweep", POSITIVE)
    ] = 60_000
    heartbeat_stale_ms: Annotated[
        int, own("HEARTBEAT_STALE_MS", "silence after which a run is stale", POSITIVE)
    ] = 600_000
    replicas_sweep_interval_ms: Annotated[
        int, own("REPLICAS_SWEEP_INTERVAL_MS", "sweep of dead replicas", POSITIVE)
    ] = 60_000
    replicas_stale_after_ms: Annotated[
        int, own("REPLICAS_STALE_AFTER_MS", "silence after which a replica is dead", POSITIVE)
    ] = 90_000
    session_lock_gc_interval_ms: Annotated[
        int, own("SESSION_LOCK_GC_INTERVAL_MS", "sweep of session locks", POSITIVE)
    ] = 300_000
    session_lock_max_idle_ms: Annotated[
        int, own("SESSION_LOCK_MAX_IDLE_MS", "idle time of a session lock", POSITIVE)
    ] = 600_000
    metrics_enabled: Annotated[bool, own("METRICS_ENABLED", "Prometheus metrics")] = False
    metrics_sample_interval_ms: Annotated[
        int,
        own("METRICS_SAMPLE_INTERVAL_MS", "period of samples", Limits(clamp=(1_000, INFINITY))),
    ] = 5_000
    metrics_retention_days: Annotated[
        int, own("METRICS_RETENTION_DAYS", "life of a sample; 0 = for ever", OFF)
    ] = 7
    metrics_sweep_interval_ms: Annotated[
        int, own("METRICS_SWEEP_INTERVAL_MS", "sweep of samples; 0 = off", OFF)
    ] = 900_000
    metrics_collect_system: Annotated[
        bool, own("METRICS_COLLECT_SYSTEM", "sample the machine too")
    ] = False
    otel_exporter_otlp_endpoint: Annotated[
        str, own("OTEL_EXPORTER_OTLP_ENDPOINT", "trace collector; unset = no tracing")
    ] = ""
    otel_exporter_otlp_headers: Annotated[
        dict[str, Secret],
        own("OTEL_EXPORTER_OTLP_HEADERS", "k=v pairs, comma separated", secret=True),
    ] = {}
    otel_service_name: Annotated[str, own("OTEL_SERVICE_NAME", "service name")] = "loomcycle"
    otel_traces_sampler_ratio: Annotated[
        float, own("OTEL_TRACES_SAMPLER_RATIO", "share of traces", Limits(clamp=(0, 1)))
    ] = 1.0


class ProviderVariables(HousekeepingVariables, frozen=True, kw_only=True):
    """Keys, endpoints and timeouts of model providers."""

    anthropic_api_key: Annotated[Secret, vendor_key("ANTHROPIC_API_KEY", "provider anthropic")] = (
        Secret()
    )
    openai_api_key: Annotated[Secret, vendor_key("OPENAI_API_KEY", "provider openai")] = Secret()
    gemini_api_key: Annotated[Secret, vendor_key("GEMINI_API_KEY", "provider gemini")] = Secret()
    deepseek_api_key: Annotated[Secret, vendor_key("DEEPSEEK_API_KEY", "provider deepseek")] = (
        Secret()
    )
    ollama_api_key: Annotated[Secret, vendor_key("OLLAMA_API_KEY", "provider ollama")] = Secret()
    voyage_api_key: Annotated[Secret, vendor_key("VOYAGE_API_KEY", "embedder anthropic")] = Secret()
    brave_api_key: Annotated[Secret, vendor_key("BRAVE_API_KEY", "enables WebSearch")] = Secret()
    anthropic_base_url: Annotated[
        str, vendor("ANTHROPIC_BASE_URL", "endpoint override", trim="/")
    ] = ""
    openai_base_url: Annotated[str, vendor("OPENAI_BASE_URL", "endpoint override", trim="/")] = ""
    deepseek_base_url: Annotated[
        str, vendor("DEEPSEEK_BASE_URL", "endpoint override", trim="/")
    ] = ""
    voyage_base_url: Annotated[str, vendor("VOYAGE_BASE_URL", "endpoint override", trim="/")] = ""
    gemini_base_url: Annotated[str, vendor("GEMINI_BASE_URL", "endpoint override", trim="/")] = ""
    ollama_base_url: Annotated[
        str,
        vendor("OLLAMA_BASE_URL", "local Ollama; `disabled` = off", trim="/", off_word="disabled"),
    ] = "http://localhost:11434"
    ollama_cloud_base_url: Annotated[
        str, vendor("OLLAMA_CLOUD_BASE_URL", "hosted Ollama", trim="/")
    ] = "https://ollama.com"
    ollama_num_ctx: Annotated[
        int, own("OLLAMA_NUM_CTX", "context window sent to hosted Ollama", OFF)
    ] = 0
    ollama_local_num_ctx: Annotated[
        int, own("OLLAMA_LOCAL_NUM_CTX", "context window sent to local Ollama", OFF)
    ] = 0
    resolve_probe_interval_ms: Annotated[
        int,
        own("RESOLVE_PROBE_INTERVAL_MS", "provider probe", Limits(clamp=(60_000, 3_600_000))),
    ] = 900_000
    fallback_pin_after_success: Annotated[
        bool, own("FALLBACK_PIN_AFTER_SUCCESS", "no fallback after the first good turn")
    ] = False
    provider_header_timeout_ms: Annotated[
        int, own("PROVIDER_HEADER_TIMEOUT_MS", "time to response headers", POSITIVE)
    ] = 60_000
    provider_idle_timeout_ms: Annotated[
        int, own("PROVIDER_IDLE_TIMEOUT_MS", "gap between bytes", POSITIVE)
    ] = 90_000
    ollama_local_header_timeout_ms: Annotated[
        int, own("OLLAMA_LOCAL_HEADER_TIMEOUT_MS", "same for local Ollama", POSITIVE)
    ] = 300_000
    ollama_local_idle_timeout_ms: Annotated[
        int, own("OLLAMA_LOCAL_IDLE_TIMEOUT_MS", "same for local Ollama", POSITIVE)
    ] = 300_000
    mock_enabled: Annotated[bool, own("MOCK_ENABLED", "providers mock, mock-stable")] = False
    mock_latency_ms: Annotated[int, own("MOCK_LATENCY_MS", "delay of a mock call", OFF)] = 50
    mock_latency_jitter_ms: Annotated[
        int, own("MOCK_LATENCY_JITTER_MS", "random part of that delay", OFF)
    ] = 25
    mock_429_rate: Annotated[float, own("MOCK_429_RATE", "chance of a 429, 0..1", RATE)] = 0.0
    mock_500_rate: Annotated[float, own("MOCK_500_RATE", "chance of a 500, 0..1", RATE)] = 0.0
    anthropic_oauth_dev_enabled: Annotated[
        bool, own("ANTHROPIC_OAUTH_DEV_ENABLED", "OAuth developer provider")
    ] = False
    anthropic_oauth_callback_port: Annotated[
        int,
        own("ANTHROPIC_OAUTH_CALLBACK_PORT", "login callback", Limits(accept=(1, 65_535))),
    ] = 53_692
    claude_code_version: Annotated[
        str, own("CLAUDE_CODE_VERSION", "version the OAuth provider reports")
    ] = ""


class GatewayVariables(ProviderVariables, frozen=True, kw_only=True):
    """MCP, scheduler, webhooks, A2A."""

    mcp_allow_privileged_tools: Annotated[
        bool, own("MCP_ALLOW_PRIVILEGED_TOOLS", "registered agents may list privileged tools")
    ] = False
    mcp_allow_dynamic_stdio: Annotated[
        bool, own("MCP_ALLOW_DYNAMIC_STDIO", "stdio MCP servers registered at run time")
    ] = False
    mcp_spawn_run_timeout_ms: Annotated[
        int, own("MCP_SPAWN_RUN_TIMEOUT_MS", "limit of the spawn_run call; 0 = none", OFF)
    ] = 0
    mcp_max_concurrent_calls: Annotated[
        int, own("MCP_MAX_CONCURRENT_CALLS", "calls of one MCP session", POSITIVE)
    ] = 16
    mcp_upstream_token: Annotated[
        Secret, own("MCP_UPSTREAM_TOKEN", "bearer of mcp --upstream", secret=True)
    ] = Secret()
    scheduler_enabled: Annotated[bool, own("SCHEDULER_ENABLED", "fires schedules")] = False
    scheduler_tick_seconds: Annotated[
        int, own("SCHEDULER_TICK_SECONDS", "sweep of schedules", POSITIVE)
    ] = 30
    scheduler_fire_timeout_seconds: Annotated[
        int, own("SCHEDULER_FIRE_TIMEOUT_SECONDS", "limit of a fired run", POSITIVE)
    ] = 600
    scheduler_env_allowlist: Annotated[
        Names, own("SCHEDULER_ENV_ALLOWLIST", "variables schedules may name")
    ] = ()
    webhooks_env_allowlist: Annotated[
        Names, own("WEBHOOKS_ENV_ALLOWLIST", "variables webhooks may name")
    ] = ()
    webhooks_enabled: Annotated[bool, own("WEBHOOKS_ENABLED", "receives webhooks")] = False
    webhooks_allow_unauthenticated: Annotated[
        bool, own("WEBHOOKS_ALLOW_UNAUTHENTICATED", "permits auth kind none")
    ] = False
    a2a_enabled: Annotated[bool, own("A2A_ENABLED", "A2A server and peers")] = False
    a2a_server_card: Annotated[str, own("A2A_SERVER_CARD", "card to serve")] = ""
    a2a_public_base_url: Annotated[
        str, own("A2A_PUBLIC_BASE_URL", "prefix of advertised URLs", trim="/")
    ] = ""
    a2a_tenancy_routing: Annotated[str, own("A2A_TENANCY_ROUTING", "none, host or path")] = ""


class Environment(GatewayVariables, frozen=True, kw_only=True):
    """The environment as typed values; every field has its default when the variable is unset."""

    @property
    def nats_servers(self) -> tuple[str, ...]:
        """The operator's NATS servers, own variable first; empty = use the embedded server."""
        value = self.nats_url or self.nats_url_common
        return tuple(part.strip() for part in value.split(",") if part.strip())


def _rows(group: type[Struct]) -> Iterator[Variable]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if field.name not in group.__annotations__:
            continue
        annotated, meaning = get_args(hints[field.name])
        kinds = [kind for kind in get_args(annotated) if kind is not type(None)]
        kind = get_origin(annotated) or annotated
        if kind not in (tuple, dict) and kinds:
            kind = kinds[0]
        default = field.default if field.default is not NODEFAULT else field.default_factory()
        yield Variable(field=field.name, kind=kind, default=default, meaning=meaning)


GROUPS: tuple[tuple[str, type[Struct]], ...] = (
    ("Server, authentication, roots", ServerVariables),
    ("Event log", LogVariables),
    ("Tools and stores", ToolVariables),
    ("Storage and SQL memory", StorageVariables),
    ("Sweepers, metrics, tracing", HousekeepingVariables),
    ("Providers", ProviderVariables),
    ("MCP, scheduler, webhooks, A2A", GatewayVariables),
)

VARIABLES: tuple[Variable, ...] = tuple(row for _, group in GROUPS for row in _rows(group))
