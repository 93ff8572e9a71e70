"""Rules for agents that look at more than one field or at the rest of the configuration.

Types and single ranges were checked while decoding. Every rule reports to `findings` and
goes on (config spec sections 7.1, 10 and 11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from loomcycle.config.agent_schema import AgentConfig, ProviderCandidate
from loomcycle.config.problems import FieldPath, Findings, did_you_mean
from loomcycle.config.schema import Config
from loomcycle.config.variables import Environment
from loomcycle.config.vocabulary import CODE_PROVIDER, PROVIDER_IDS, Tier

CheckScript = Callable[[str], str | None]
"""Returns the text of a JavaScript syntax error, or None."""

_ALWAYS_KNOWN_BACKENDS: Final = frozenset({"inprocess", "default"})
_AGENT_DEF_WORDS: Final = ("self", "descendants", "any")
_HISTORY_WORDS: Final = ("self", "siblings", "descendants", "any")
_CHECKED_SCOPES: Final[dict[str, tuple[str, ...]]] = {
    "agent_def_scopes": _AGENT_DEF_WORDS,
    "skill_def_scopes": ("descendants", "any"),
    "volume_def_scopes": ("any",),
}
_INERT_SCOPES: Final = (
    "schedule_def_scopes",
    "webhook_def_scopes",
    "a2a_server_card_def_scopes",
    "a2a_agent_def_scopes",
)


def check_agent(agent: AgentConfig, config: Config, findings: Findings) -> None:
    """Report everything wrong with one agent."""
    path: FieldPath = ("agents", agent.name)
    _check_model_choice(agent, config, path, findings)
    check_candidates(agent.models, config, (*path, "models"), findings)
    for index, volume in enumerate(agent.volumes):
        if volume not in config.volumes:
            message = f'volume "{volume}" is not declared{did_you_mean(volume, config.volumes)}'
            findings.error((*path, "volumes", index), message, "unknown_name")
    backend = agent.memory_backend
    known_backends = _ALWAYS_KNOWN_BACKENDS | config.memory_backends.keys()
    if backend and config.memory_backends and backend not in known_backends:
        message = f'unknown memory backend "{backend}"{did_you_mean(backend, known_backends)}'
        findings.error((*path, "memory_backend"), message, "unknown_name")
    _check_channels(agent, config, path, findings)
    _check_scopes(agent, path, findings)
    if agent.output_schema is not None:
        from replay.output import schema_problem  # its libraries take 50 ms to import

        problem = schema_problem(agent.output_schema)
        if problem:
            findings.error((*path, "output_schema"), f"no JSON Schema: {problem}", "syntax")
    for index, rule in enumerate(agent.require_approval):
        if not rule or "*" in rule[:-1]:
            message = f'"{rule}": name a tool, or the beginning of names followed by `*`'
            findings.error((*path, "require_approval", index), message, "unsupported")


def _check_model_choice(
    agent: AgentConfig, config: Config, path: FieldPath, findings: Findings
) -> None:
    pinned = bool(agent.provider or agent.model)
    if pinned and agent.tier:
        message = "`tier` and a pin (`provider` or `model`) exclude each other; keep one"
        findings.error((*path, "tier"), message, "conflict")
    if not pinned and not agent.tier and not config.defaults.model:
        message = "no model: set `model`, `tier`, or `defaults.model`"
        findings.error(path, message, "missing")


def check_candidates(
    tiers: Mapping[Tier, tuple[ProviderCandidate, ...]],
    config: Config,
    path: FieldPath,
    findings: Findings,
) -> None:
    """Check tier candidates: a known provider, or a model that is an alias."""
    for tier, candidates in tiers.items():
        for index, candidate in enumerate(candidates):
            here = (*path, tier, index)
            if candidate.provider and candidate.provider not in PROVIDER_IDS:
                hint = did_you_mean(candidate.provider, PROVIDER_IDS)
                message = f'unknown provider "{candidate.provider}"{hint}'
                findings.error(here, message, "unknown_name")
            if not candidate.model:
                findings.error(here, "model required", "missing")
            elif not candidate.provider and candidate.model not in config.models:
                message = f'"{candidate.model}" has no provider and is not an alias of `models`'
                hint = did_you_mean(candidate.model, config.models)
                findings.error(here, message + hint, "unknown_name")


def _check_channels(
    agent: AgentConfig, config: Config, path: FieldPath, findings: Findings
) -> None:
    lists = {"publish": agent.channels.publish, "subscribe": agent.channels.subscribe}
    for side, entries in lists.items():
        for index, raw in enumerate(entries):
            entry = raw.strip()
            here = (*path, "channels", side, index)
            if "*" in entry.removesuffix("/*") or (entry == "/*"):
                message = f'"{entry}": `*` may only stand at the end, after `/`'
                findings.error(here, message, "unsupported")
            elif not any(channel_matches(entry, name) for name in config.channels):
                hint = did_you_mean(entry, config.channels)
                message = f'"{entry}" matches no declared channel{hint}'
                findings.error(here, message, "unknown_name")


def channel_matches(entry: str, name: str) -> bool:
    """Whether an ACL entry (exact, or ending in `/*`) matches a channel name."""
    entry, name = entry.strip(), name.strip()
    if any(part in text for text in (entry, name) for part in ("..", "//")):
        return False
    if entry.endswith("/*"):
        return name.startswith(entry[:-1]) and len(name) > len(entry) - 1
    return entry == name


def _check_scopes(agent: AgentConfig, path: FieldPath, findings: Findings) -> None:
    for field, words in _CHECKED_SCOPES.items():
        for index, scope in enumerate(getattr(agent, field)):
            if not _is_scope(scope, words):
                findings.error((*path, field, index), _bad_scope(scope, words), "unknown_name")
    for field in _INERT_SCOPES:
        for index, scope in enumerate(getattr(agent, field)):
            if not _is_scope(scope, _AGENT_DEF_WORDS):
                findings.warn((*path, field, index), _bad_scope(scope, _AGENT_DEF_WORDS))
    history = agent.history_scope
    if history and not _is_scope(history, _HISTORY_WORDS):
        message = _bad_scope(history, _HISTORY_WORDS)
        findings.error((*path, "history_scope"), message, "unknown_name")


def _is_scope(scope: str, words: tuple[str, ...]) -> bool:
    return scope in words or (scope.startswith("named:") and scope != "named:")


def _bad_scope(scope: str, words: tuple[str, ...]) -> str:
    hint = did_you_mean(scope, words) or f"; use {', '.join(words)} or named:<name>"
    return f'unknown scope "{scope}"{hint}'


def check_code(
    agent: AgentConfig,
    environment: Environment,
    cwd: Path,
    check_script: CheckScript | None,
    findings: Findings,
) -> None:
    """Check that a JavaScript agent can run: feature on, program present, syntax sound."""
    if agent.provider != CODE_PROVIDER:
        return
    path: FieldPath = ("agents", agent.name)
    if not environment.code_agents_enabled:
        message = "provider code-js is disabled; set LOOMCYCLE_CODE_AGENTS_ENABLED=1"
        findings.error((*path, "provider"), message, "unsupported")
    source = agent.code or _read_program(agent, environment, cwd, path, findings)
    if source and check_script is not None:
        fault = check_script(source)
        if fault is not None:
            findings.error((*path, "code"), f"JavaScript does not parse: {fault}", "syntax")


def _read_program(
    agent: AgentConfig, environment: Environment, cwd: Path, path: FieldPath, findings: Findings
) -> str:
    if agent.name in {"", ".", ".."} or "/" in agent.name or "\\" in agent.name:
        message = f'"{agent.name}" cannot name a program directory; give the program as `code`'
        findings.error(path, message, "unsupported")
        return ""
    file = cwd / environment.code_agents_root / agent.name / "index.js"
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        message = f"no index.js at {file.parent}; write one or give the program as `code`"
        findings.error((*path, "code"), message, "missing")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        findings.error((*path, "code"), f"cannot read {file}: {reason}", "unreadable")
    return ""


def warn_ineffective_tools(agent: AgentConfig, config: Config, findings: Findings) -> None:
    """Warn of tools that are allowed while the gate behind them is closed."""
    allowed = set(agent.allowed_tools)
    channels = agent.channels
    gates = (
        ("Memory", not agent.memory_scopes, "memory_scopes is empty: every op will be denied"),
        (
            "Evaluation",
            not agent.evaluation_scopes,
            "evaluation_scopes is empty: every op will be denied",
        ),
        (
            "Channel",
            not channels.publish and not channels.subscribe,
            "channels.publish and channels.subscribe are empty: every op will be denied",
        ),
        (
            "Interruption",
            not agent.interruption.enabled,
            "interruption.enabled is false: every op will be refused",
        ),
        (
            "Memory",
            bool(agent.sql_scopes) and not config.storage.sqlmem_enabled,
            "sql_scopes is set but SQL memory is off: SQL ops will be refused",
        ),
    )
    for tool, closed, consequence in gates:
        if tool in allowed and closed:
            findings.warn(("agents", agent.name), f"tool {tool} is allowed but {consequence}")
