"""Rules for everything but agents that look beyond one field (config spec sections 7 and 10).

Types and single ranges were checked while decoding. Every rule reports to `findings` and
goes on. Looks at the file system only for volumes and overlay roots.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Final

from loomcycle.config.agent_rules import check_candidates
from loomcycle.config.base_urls import WANTED, is_base_url
from loomcycle.config.cron_syntax import known_timezone, parse_cron
from loomcycle.config.durations import parse_duration
from loomcycle.config.peer_schema import McpServerConfig
from loomcycle.config.problems import FieldPath, Findings, did_you_mean
from loomcycle.config.schema import ChannelConfig, Config, StorageConfig
from loomcycle.config.trigger_schema import CompletionAction, ScheduledRunConfig, WebhookConfig
from loomcycle.config.variables import Environment
from loomcycle.config.vocabulary import EVENT_DRIVEN_CHANNELS

REPLICA_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LOG_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_EMBEDDERS: Final = ("openai", "gemini", "anthropic")
_BASE_URLS: Final = (
    "anthropic_base_url",
    "openai_base_url",
    "deepseek_base_url",
    "voyage_base_url",
    "gemini_base_url",
    "ollama_base_url",
    "ollama_cloud_base_url",
)
_MEMORY_BACKENDS: Final = ("", "inprocess", "mem9")
_SHARED_KEY: Final = "shared_key_with_prefix"
_TENANT_TOKEN: Final = "{tenant_id}"
_TENANCY_ROUTING: Final = ("", "none", "host", "path")


def check_config(config: Config, environment: Environment, cwd: Path, findings: Findings) -> None:
    """Report everything wrong outside `agents` and `principals`."""
    _check_plugins(config, findings)
    _check_tiers(config, findings)
    for name, backend in config.memory_backends.items():
        _check_memory_backend(config, name, backend.kind, findings)
    for name, channel in config.channels.items():
        _check_channel(name, channel, findings)
    for name, server in config.mcp_servers.items():
        _check_mcp_server(name, server, findings)
    for name, run in config.scheduled_runs.items():
        _check_schedule(name, run, config, findings)
    for name, webhook in config.webhooks.items():
        _check_webhook(name, webhook, findings)
    _check_volumes(config, findings)
    _check_embedder(config, environment, findings)
    _check_interruption(config, findings)
    _check_log_and_runtime(config, findings)
    _check_storage(config.storage, findings)
    _check_environment(config, environment, cwd, findings)


def _check_plugins(config: Config, findings: Findings) -> None:
    for index, plugin in enumerate(config.context_plugins):
        if plugin.name != "redact":
            message = f'unknown plugin "{plugin.name}"; use redact' if plugin.name else "required"
            code = "unknown_name" if plugin.name else "missing"
            findings.error(("context_plugins", index, "name"), message, code)


def _check_tiers(config: Config, findings: Findings) -> None:
    check_candidates(config.tiers, config, ("tiers",), findings)
    for name, user_tier in config.user_tiers.items():
        check_candidates(user_tier.tiers, config, ("user_tiers", name, "tiers"), findings)
    if config.user_tiers and "default" not in config.user_tiers:
        findings.error(("user_tiers",), "needs an entry named default", "missing")


def _check_memory_backend(config: Config, name: str, kind: str, findings: Findings) -> None:
    path: FieldPath = ("memory_backends", name)
    strategy = config.memory_backends[name].tenancy_strategy
    if strategy.kind == _SHARED_KEY and _TENANT_TOKEN not in strategy.prefix_pattern:
        message = f"must contain {_TENANT_TOKEN}, or tenants would share one key space"
        findings.error((*path, "tenancy_strategy", "prefix_pattern"), message, "conflict")
    if kind not in _MEMORY_BACKENDS:
        hint = did_you_mean(kind, _MEMORY_BACKENDS[1:])
        message = f'unknown kind "{kind}", the in-process backend is used{hint}'
        findings.warn((*path, "kind"), message)


def _check_channel(name: str, channel: ChannelConfig, findings: Findings) -> None:
    path: FieldPath = ("channels", name)
    if not channel.scope:
        findings.error((*path, "scope"), "required: agent, user or global", "missing")
    period = timedelta(0)
    if channel.period:
        period = _duration(channel.period, (*path, "period"), findings) or period
        if channel.publisher != "system":
            message = "only allowed with `publisher: system`"
            findings.error((*path, "period"), message, "conflict")
    needs_period = channel.publisher == "system" and name not in EVENT_DRIVEN_CHANNELS
    if needs_period and not period:
        message = "required with `publisher: system`, for example 30s"
        findings.error((*path, "period"), message, "missing")


def _duration(text: str, path: FieldPath, findings: Findings) -> timedelta | None:
    try:
        duration = parse_duration(text.strip())
    except ValueError as error:
        findings.error(path, str(error), "wrong_type")
        return None
    if duration < timedelta(0):
        findings.error(path, "must not be negative", "out_of_range")
        return None
    return duration


def _check_mcp_server(name: str, server: McpServerConfig, findings: Findings) -> None:
    path: FieldPath = ("mcp_servers", name)
    needed = {"stdio": "command", "http": "url"}.get(server.transport)
    if needed is None:
        message = f'unknown transport "{server.transport}"; use stdio or http'
        findings.error((*path, "transport"), message, "unknown_name")
    elif not getattr(server, needed):
        message = f"required with `transport: {server.transport}`"
        findings.error((*path, needed), message, "missing")


def _check_schedule(name: str, run: ScheduledRunConfig, config: Config, findings: Findings) -> None:
    path: FieldPath = ("scheduled_runs", name)
    if not run.agent:
        findings.error((*path, "agent"), "required", "missing")
    elif run.agent not in config.agents:
        message = f'agent "{run.agent}" is not declared{did_you_mean(run.agent, config.agents)}'
        findings.error((*path, "agent"), message, "unknown_name")
    if run.schedule and run.user_tier_schedules:
        message = "`schedule` and `user_tier_schedules` exclude each other; keep one"
        findings.error((*path, "schedule"), message, "conflict")
    if run.schedule:
        _check_cron(run.schedule, (*path, "schedule"), findings)
    for tier, cron in run.user_tier_schedules.items():
        _check_cron(cron, (*path, "user_tier_schedules", tier), findings)
    if run.timezone and not known_timezone(run.timezone):
        message = f'unknown time zone "{run.timezone}", UTC is used'
        findings.warn((*path, "timezone"), message)
    for index, action in enumerate(run.on_complete):
        check_action(action, (*path, "on_complete", index), findings)


def _check_cron(text: str, path: FieldPath, findings: Findings) -> None:
    try:
        parse_cron(text)
    except ValueError as error:
        findings.error(path, f'"{text}" is not a schedule: {error}', "syntax")


def check_action(action: CompletionAction, path: FieldPath, findings: Findings) -> None:
    """Check an `on_complete` action: a known kind with the fields it needs."""
    required = {
        "channel.publish": ("channel",),
        "mcp.call": ("server", "tool"),
        "memory.set": ("scope", "key"),
    }
    if action.kind not in required:
        message = f'unknown kind "{action.kind}"; use {", ".join(required)}'
        findings.error((*path, "kind"), message, "unknown_name")
        return
    for field in required[action.kind]:
        if not getattr(action, field):
            findings.error((*path, field), f"required with kind {action.kind}", "missing")


def _check_webhook(name: str, webhook: WebhookConfig, findings: Findings) -> None:
    path: FieldPath = ("webhooks", name)
    delivery = webhook.delivery or "spawn"
    needed, forbidden = ("agent", "channel") if delivery == "spawn" else ("channel", "agent")
    if not getattr(webhook, needed):
        findings.error((*path, needed), f"required with delivery {delivery}", "missing")
    if getattr(webhook, forbidden):
        message = f"not allowed with delivery {delivery}"
        findings.error((*path, forbidden), message, "conflict")


def _check_volumes(config: Config, findings: Findings) -> None:
    for name, volume in config.volumes.items():
        path: FieldPath = ("volumes", name)
        if not name:
            findings.error(path, "a volume needs a name", "missing")
        if not volume.path:
            findings.error((*path, "path"), "required", "missing")
        elif not Path(volume.path).exists():
            findings.error((*path, "path"), f"{volume.path} does not exist", "unreadable")
        elif not Path(volume.path).is_dir():
            findings.error((*path, "path"), f"{volume.path} is not a directory", "unreadable")
    for flag in ("default", "dynamic_root"):
        flagged = [name for name, volume in config.volumes.items() if getattr(volume, flag)]
        for name in flagged[1:]:
            message = f'already set on volume "{flagged[0]}"; at most one may have it'
            findings.error(("volumes", name, flag), message, "conflict")


def _check_embedder(config: Config, environment: Environment, findings: Findings) -> None:
    embedder = config.memory.embedder
    path: FieldPath = ("memory", "embedder")
    if embedder is None:
        return
    for field in ("provider", "model"):
        if not getattr(embedder, field):
            findings.error((*path, field), "required: give both provider and model", "missing")
    known = (*_EMBEDDERS, "stub") if environment.embedder_stub else _EMBEDDERS
    if embedder.provider and embedder.provider not in known:
        hint = f"{did_you_mean(embedder.provider, known)}; use {', '.join(sorted(known))}"
        if embedder.provider == "stub":
            hint = "; set LOOMCYCLE_EMBEDDER_STUB=1 to allow it"
        message = f'unknown embedder "{embedder.provider}"{hint}'
        findings.error((*path, "provider"), message, "unknown_name")
    if embedder.provider == "anthropic" and not environment.voyage_api_key:
        message = "VOYAGE_API_KEY is not set: every embedding will fail"
        findings.warn((*path, "provider"), message)


def _check_interruption(config: Config, findings: Findings) -> None:
    backend = config.interruption.backend
    server = backend.removeprefix("mcp_server:")
    if backend in ("", "webui", "cli") or (server != backend and server):
        return
    message = f'unknown backend "{backend}"; use webui, cli or mcp_server:<name>'
    findings.error(("interruption", "backend"), message, "unknown_name")


def _check_log_and_runtime(config: Config, findings: Findings) -> None:
    if config.log.sync != "always":
        interval = _duration(config.log.sync, ("log", "sync"), findings)
        if interval is not None and not interval:
            message = "use always to flush every event, or an interval such as 2s"
            findings.error(("log", "sync"), message, "out_of_range")
    if not _LOG_PREFIX.fullmatch(config.log.prefix):
        message = "must be 1 to 32 letters, digits, _ or -"
        findings.error(("log", "prefix"), message, "unsupported")
    for field in ("archive_after", "seal_max_age"):
        if text := getattr(config.runtime, field):
            _duration(text, ("runtime", field), findings)


def _check_storage(storage: StorageConfig, findings: Findings) -> None:
    match storage.backend:
        case "sqlite":
            return
        case "postgres":
            if not storage.pg_dsn:
                message = "required with backend postgres; set LOOMCYCLE_PG_DSN"
                findings.error(("storage", "pg_dsn"), message, "missing")
        case backend:
            message = f'unknown storage backend "{backend}"; use sqlite or postgres'
            findings.error(("storage", "backend"), message, "unknown_name")
            return
    if storage.sqlmem_enabled and not storage.sqlmem_pg_dsn:
        message = "required with SQL memory on postgres; set LOOMCYCLE_SQLMEM_PG_DSN"
        findings.error(("storage", "sqlmem_pg_dsn"), message, "missing")
    elif storage.sqlmem_enabled and storage.sqlmem_pg_dsn == storage.pg_dsn:
        message = "must be another database than pg_dsn"
        findings.error(("storage", "sqlmem_pg_dsn"), message, "conflict")


def _check_environment(
    config: Config, environment: Environment, cwd: Path, findings: Findings
) -> None:
    replica = environment.replica_id
    if replica and not REPLICA_ID.fullmatch(replica):
        message = "must start with a letter or digit and have at most 64 letters, digits, _ or -"
        findings.error(("LOOMCYCLE_REPLICA_ID",), message, "unsupported")
    for field in _BASE_URLS:
        url = getattr(environment, field)
        if url and not is_base_url(url):
            findings.error((field.upper(),), WANTED, "syntax")
    help_root = cwd / environment.help_root
    readable = help_root.is_dir() and os.access(help_root, os.R_OK | os.X_OK)
    if environment.help_root and not readable:
        message = f"{help_root} is not a readable directory"
        findings.error(("LOOMCYCLE_HELP_ROOT",), message, "unreadable")
    if environment.a2a_enabled:
        _check_a2a(config, environment, findings)


def _check_a2a(config: Config, environment: Environment, findings: Findings) -> None:
    if environment.a2a_tenancy_routing not in _TENANCY_ROUTING:
        message = f'unknown routing "{environment.a2a_tenancy_routing}"; use none, host or path'
        findings.error(("LOOMCYCLE_A2A_TENANCY_ROUTING",), message, "unknown_name")
    if not environment.a2a_server_card:
        message = "required with LOOMCYCLE_A2A_ENABLED=1: the name of the card to serve"
        findings.error(("LOOMCYCLE_A2A_SERVER_CARD",), message, "missing")
        return
    card = config.a2a_server_cards.get(environment.a2a_server_card)
    if card is not None and not any(a.agent_name and a.skill_id for a in card.exposed_agents):
        path = ("a2a_server_cards", environment.a2a_server_card, "exposed_agents")
        message = "needs an entry with both agent_name and skill_id to be served"
        findings.error(path, message, "missing")
