"""The texts of `validate` and `agents list` (cli spec section 3). Pure functions."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.durations import format_duration
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.problems import ConfigError, Problem
from loomcycle.config.resolution import Unresolved, resolve_pin


def validate_report(loaded: LoadedConfig) -> str:
    """What `validate` prints for a sound configuration, ending in `OK` and a newline.

    Raises ConfigError when an agent's provider or model does not resolve.
    """
    config, environment = loaded.config, loaded.environment
    agents = _agent_lines(loaded)
    timeout = format_duration(timedelta(milliseconds=config.concurrency.queue_timeout_ms))
    concurrency = config.concurrency
    lines = [
        f"loomcycle config: {', '.join(map(str, loaded.files))}",
        "",
        f"Storage backend  : {config.storage.backend}",
    ]
    if config.storage.backend == "postgres":
        lines += [
            f"Postgres DSN     : {mask_dsn(config.storage.pg_dsn)}",
            f"Auto-migrate     : {_lower(config.storage.pg_automigrate)}",
        ]
    lines += [
        f"Listen address   : {environment.listen_addr}",
        f"Auth token set   : {_lower(bool(environment.auth_token))}",
        f"Concurrency      : max={concurrency.max_concurrent_runs}"
        f" queue={concurrency.max_queue_depth} timeout={timeout}",
        "",
        f"Agents           : {len(agents) or '(none)'}",
        *agents,
    ]
    if config.mcp_servers:
        lines.append(f"MCP servers      : {len(config.mcp_servers)}")
        for name, server in sorted(config.mcp_servers.items()):
            lines.append(f"  {name:<24} transport={server.transport}")
    return "\n".join((*lines, "", "OK", ""))


def _agent_lines(loaded: LoadedConfig) -> list[str]:
    lines: list[str] = []
    problems: list[Problem] = []
    for name, agent in sorted(loaded.config.agents.items()):
        try:
            provider, model = resolve_pin(loaded.config, agent)
        except Unresolved as error:
            problems.append(Problem(path=f"agents.{name}", message=str(error), code=error.code))
            continue
        lines.append(f"  {name:<24} provider={provider:<10} model={model}")
    if problems:
        raise ConfigError(problems)
    return lines


def agents_listing(loaded: LoadedConfig, *, as_json: bool = False) -> str:
    """What `agents list` prints, ending in a newline; agents sorted by name."""
    agents = [agent for _, agent in sorted(loaded.config.agents.items())]
    if as_json:
        rows = [_agent_row(agent, loaded) for agent in agents]
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    if not agents:
        return "(no agents configured)\n"
    return "".join(_agent_text(agent, loaded) for agent in agents)


def _agent_row(agent: AgentConfig, loaded: LoadedConfig) -> dict[str, Any]:
    provider, model = _shown_pin(agent, loaded)
    return {
        "name": agent.name,
        "provider": provider,
        "model": model,
        "max_tokens": agent.max_tokens,
        "system_prompt_file": agent.system_prompt_file,
        "tools": list(agent.allowed_tools),
        "skills": list(agent.skills),
    }


def _agent_text(agent: AgentConfig, loaded: LoadedConfig) -> str:
    provider, model = _shown_pin(agent, loaded)
    rows = (
        ("provider", provider or "(none)"),
        ("model", model or "(none)"),
        ("max_tokens", str(agent.max_tokens)),
        ("system_prompt", _prompt_source(agent, loaded)),
        ("tools", ", ".join(agent.allowed_tools) or "(none)"),
        ("skills", ", ".join(agent.skills) or "(none)"),
    )
    lines = (f"  {label + ':':<15}{value}\n" for label, value in rows)
    return f"{agent.name}\n{''.join(lines)}\n"


def _shown_pin(agent: AgentConfig, loaded: LoadedConfig) -> tuple[str, str]:
    if agent.tier:
        return agent.provider, agent.model
    try:
        return resolve_pin(loaded.config, agent)
    except Unresolved:
        return agent.provider, agent.model


def _prompt_source(agent: AgentConfig, loaded: LoadedConfig) -> str:
    if agent.system_prompt_file:
        return agent.system_prompt_file
    if not agent.base_system_prompt:
        return "(none)"
    file = loaded.agent_files.get(agent.name)
    return str(file) if file else "(inline)"


def mask_dsn(dsn: str) -> str:
    """A database URL with its password replaced by `***`."""
    masked = re.sub(r"(?<=://)([^/?#:]*):([^/?#]*)@", r"\1:***@", dsn)
    return re.sub(r"(?i)\b(password=)[^&\s]*", r"\1***", masked)


def _lower(flag: bool) -> str:
    return "true" if flag else "false"
