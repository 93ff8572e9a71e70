"""Environment variables of the server itself, its log, its tools and its stores.

Declarations only; `variables` adds the rest and makes the whole table of them. Each group
extends the one before it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from loomcycle.config.variable_row import (
    AT_LEAST_0,
    INFINITY,
    OFF,
    POSITIVE,
    Limits,
    Names,
    Secret,
    own,
    vendor_key,
)


class ServerVariables(Struct, frozen=True, kw_only=True):
    """Listeners, authentication, streams, pausing, cluster."""

    listen_addr: Annotated[str, own("LISTEN_ADDR", "HTTP listener")] = "127.0.0.1:8787"
    grpc_addr: Annotated[str, own("GRPC_ADDR", "gRPC listener; unset = none")] = ""
    base_url: Annotated[str, own("BASE_URL", "server address used by the CLI", trim="/")] = (
        "http://127.0.0.1:8787"
    )
    auth_token: Annotated[
        Secret, own("AUTH_TOKEN", "static bearer; unset leaves /v1 open", secret=True)
    ] = Secret()
    auth_verbose: Annotated[bool, own("AUTH_VERBOSE", "log why a bearer was refused")] = False
    auth_cache_ttl_seconds: Annotated[
        int, own("AUTH_CACHE_TTL_SECONDS", "life of a cached token look-up; 0 = none", OFF)
    ] = 30
    operator_token_pepper: Annotated[
        Secret, own("OPERATOR_TOKEN_PEPPER", "keys the hashes of tokens", secret=True)
    ] = Secret()
    operator_token_rotation_grace_seconds: Annotated[
        int,
        own("OPERATOR_TOKEN_ROTATION_GRACE_SECONDS", "old token's life after rotate", POSITIVE),
    ] = 86_400
    audit_log_path: Annotated[str, own("AUDIT_LOG_PATH", "JSONL audit file; unset = off")] = ""
    data_dir: Annotated[str, own("DATA_DIR", "directory of everything kept on disk")] = "./data"
    config_files: Annotated[
        str, own("CONFIG_FILES", "config layers, colon separated, below --config")
    ] = ""
    config_strict: Annotated[bool, own("CONFIG_STRICT", "layer overrides are errors")] = False
    sse_keepalive_ms: Annotated[
        int,
        own(
            "SSE_KEEPALIVE_MS",
            "comment interval on event streams; 0 = none",
            Limits(off=True, clamp=(1_000, 300_000)),
        ),
    ] = 20_000
    redact_secrets: Annotated[bool, own("REDACT_SECRETS", "mask secrets in the log")] = True
    tool_parallelism: Annotated[
        int,
        own(
            "TOOL_PARALLELISM",
            "concurrent tool calls of an iteration",
            Limits(accept=(1, INFINITY), clamp=(1, 64)),
        ),
    ] = 8
    max_concurrent_runs_per_user: Annotated[
        int | None, own("MAX_CONCURRENT_RUNS_PER_USER", "overrides the YAML value", OFF)
    ] = None
    replica_id: Annotated[str, own("REPLICA_ID", "this replica's name in a cluster")] = ""
    cancel_ack_timeout_ms: Annotated[
        int, own("CANCEL_ACK_TIMEOUT_MS", "wait for another replica's answer", POSITIVE)
    ] = 5_000
    pause_default_timeout_ms: Annotated[
        int,
        own(
            "PAUSE_DEFAULT_TIMEOUT_MS",
            "grace of a pause without one",
            Limits(accept=(1, INFINITY), clamp=(1, 300_000)),
        ),
    ] = 30_000
    pause_cache_ttl_ms: Annotated[
        int, own("PAUSE_CACHE_TTL_MS", "life of the cached pause state", AT_LEAST_0)
    ] = 1_000
    resume_fanout: Annotated[bool, own("RESUME_FANOUT", "pause in the middle of a fan-out")] = False
    agents_root: Annotated[str, own("AGENTS_ROOT", "flat directory of agent .md files")] = ""
    skills_root: Annotated[str, own("SKILLS_ROOT", "directory of <name>/SKILL.md")] = ""
    help_root: Annotated[str, own("HELP_ROOT", "overlay of help topics")] = ""
    mcp_recipes_root: Annotated[str, own("MCP_RECIPES_ROOT", "overlay of MCP recipes")] = ""


class LogVariables(ServerVariables, frozen=True, kw_only=True):
    """The event log and the key that seals credentials."""

    nats_url: Annotated[
        Secret,
        own("NATS_URL", "operator's own NATS, comma separated; unset = embedded", secret=True),
    ] = Secret()
    nats_url_common: Annotated[
        Secret, vendor_key("NATS_URL", "same, when LOOMCYCLE_NATS_URL is unset")
    ] = Secret()
    nats_creds: Annotated[str, own("NATS_CREDS", "path of a NATS credentials file")] = ""
    log_prefix: Annotated[str, own("LOG_PREFIX", "prefix of all subjects; overrides YAML")] = ""
    master_key: Annotated[
        Secret, own("MASTER_KEY", "sealing key, base64 of 32 bytes", secret=True)
    ] = Secret()


class ToolVariables(LogVariables, frozen=True, kw_only=True):
    """Network policy, shells, JavaScript agents, and limits of the built-in stores."""

    http_host_allowlist: Annotated[
        Names, own("HTTP_HOST_ALLOWLIST", "hosts for HTTP and WebFetch; empty = refuse")
    ] = ()
    http_private_host_allowlist: Annotated[
        Names, own("HTTP_PRIVATE_HOST_ALLOWLIST", "hosts that may resolve to private addresses")
    ] = ()
    http_caller_authoritative: Annotated[
        bool, own("HTTP_CALLER_AUTHORITATIVE", "a request's allowed_hosts is the sole policy")
    ] = False
    bash_enabled: Annotated[bool, own("BASH_ENABLED", "host shell tool")] = False
    bashbox_enabled: Annotated[bool, own("BASHBOX_ENABLED", "sandboxed shell tool")] = False
    bashbox_fallback_commands: Annotated[
        Names, own("BASHBOX_FALLBACK_COMMANDS", "commands Bashbox runs on the host")
    ] = ()
    bashbox_fallback_allowed_env: Annotated[
        Names, own("BASHBOX_FALLBACK_ALLOWED_ENV", "variables passed to those commands")
    ] = ()
    hooks_permit_host_widen_owners: Annotated[
        Names, own("HOOKS_PERMIT_HOST_WIDEN_OWNERS", "hook owners added to the YAML list")
    ] = ()
    code_agents_enabled: Annotated[bool, own("CODE_AGENTS_ENABLED", "JavaScript agents")] = False
    code_agents_deterministic: Annotated[
        bool, own("CODE_AGENTS_DETERMINISTIC", "fixed seed and clock across runs")
    ] = False
    code_agents_root: Annotated[
        str, own("CODE_AGENTS_ROOT", "programs at <root>/<agent>/index.js")
    ] = "./agent_code"
    code_agents_run_timeout_seconds: Annotated[
        int,
        own("CODE_AGENTS_RUN_TIMEOUT_SECONDS", "budget of a run", Limits(clamp=(1, INFINITY))),
    ] = 120
    memory_max_value_bytes: Annotated[
        int, own("MEMORY_MAX_VALUE_BYTES", "size of a value; 0 = no cap", OFF)
    ] = 65_536
    memory_max_scope_bytes: Annotated[
        int, own("MEMORY_MAX_SCOPE_BYTES", "size of a scope; 0 = no cap", OFF)
    ] = 1_048_576
    memory_sweep_ms: Annotated[int, own("MEMORY_SWEEP_MS", "TTL sweep; 0 = off", OFF)] = 900_000
    memory_embed_batch_size: Annotated[
        int, own("MEMORY_EMBED_BATCH_SIZE", "texts in one embedding call", OFF)
    ] = 100
    memory_embed_timeout_ms: Annotated[
        int, own("MEMORY_EMBED_TIMEOUT_MS", "limit of an embedding call", OFF)
    ] = 30_000
    embedder_stub: Annotated[bool, own("EMBEDDER_STUB", "deterministic embedder `stub`")] = False
    channels_max_value_bytes: Annotated[
        int, own("CHANNELS_MAX_VALUE_BYTES", "size of a message; 0 = no cap", OFF)
    ] = 65_536
    channels_sweep_ms: Annotated[
        int, own("CHANNELS_SWEEP_MS", "sweep of messages and interrupts; 0 = off", OFF)
    ] = 900_000
    channels_longpoll_cap_ms: Annotated[
        int, own("CHANNELS_LONGPOLL_CAP_MS", "longest wait of a subscribe", OFF)
    ] = 30_000
    channels_max_pending_deferred: Annotated[
        int, own("CHANNELS_MAX_PENDING_DEFERRED", "deferred messages; 0 = no cap", OFF)
    ] = 10_000
    channel_debug: Annotated[bool, own("CHANNEL_DEBUG", "verbose channel logs")] = False
    agent_def_max_definition_bytes: Annotated[
        int, own("AGENT_DEF_MAX_DEFINITION_BYTES", "size of a definition; 0 = no cap", OFF)
    ] = 131_072
    agent_def_max_description_bytes: Annotated[
        int, own("AGENT_DEF_MAX_DESCRIPTION_BYTES", "size of a description; 0 = no cap", OFF)
    ] = 8_192
    agent_def_max_code_bytes: Annotated[
        int, own("AGENT_DEF_MAX_CODE_BYTES", "size of inline code; 0 = no cap", OFF)
    ] = 262_144
    skill_def_max_body_bytes: Annotated[
        int, own("SKILL_DEF_MAX_BODY_BYTES", "size of a skill's body; 0 = no cap", OFF)
    ] = 131_072
    skill_def_max_description_bytes: Annotated[
        int, own("SKILL_DEF_MAX_DESCRIPTION_BYTES", "size of its description; 0 = no cap", OFF)
    ] = 8_192
    evaluation_max_judgement_bytes: Annotated[
        int, own("EVALUATION_MAX_JUDGEMENT_BYTES", "size of a judgement; 0 = no cap", OFF)
    ] = 32_768
    evaluation_max_rationale_bytes: Annotated[
        int, own("EVALUATION_MAX_RATIONALE_BYTES", "size of a rationale; 0 = no cap", OFF)
    ] = 8_192
    dynamic_agent_default_ttl_seconds: Annotated[
        int, own("DYNAMIC_AGENT_DEFAULT_TTL_SECONDS", "life of a registered agent", POSITIVE)
    ] = 86_400
    dynamic_agent_sweep_interval_ms: Annotated[
        int, own("DYNAMIC_AGENT_SWEEP_INTERVAL_MS", "sweep of registered agents; 0 = off", OFF)
    ] = 900_000
    ephemeral_volume_sweep_ms: Annotated[
        int, own("EPHEMERAL_VOLUME_SWEEP_MS", "sweep of ephemeral volumes; 0 = off", OFF)
    ] = 60_000
