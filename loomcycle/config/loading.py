"""The load pipeline: files and environment in, a checked `LoadedConfig` out (config spec 1).

The order of the steps is part of the behaviour. Problems are collected over all steps and
raised together; only a missing file and unparsable YAML end it early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from loomcycle.config.agent_files import override_agent, read_agent_files
from loomcycle.config.agent_rules import (
    CheckScript,
    check_agent,
    check_code,
    warn_ineffective_tools,
)
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.boot_notes import boot_notes
from loomcycle.config.decode import decode
from loomcycle.config.environment import check_retired, read_environment, warn_misspelt
from loomcycle.config.environment_overrides import apply_environment
from loomcycle.config.layers import layer_files, read_layers
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.principals import resolve_principals
from loomcycle.config.problems import Findings, Place
from loomcycle.config.rules import check_config
from loomcycle.config.schema import Config
from loomcycle.config.secret_files import load_auth_env, read_secret_files, secret_mask
from loomcycle.config.skills import Skill, bundle_skills, read_skills
from loomcycle.config.tree import Node, find_place
from loomcycle.config.variables import Environment
from loomcycle.config.vocabulary import CONTEXT_TOOL


def load(
    files: Sequence[Path] | None,
    environ: Mapping[str, str],
    cwd: Path,
    *,
    check_script: CheckScript | None = None,
    read_auth_env: bool = True,
) -> LoadedConfig:
    """Load and check a configuration.

    `files` are the layers, last wins; None means those of the environment or the default
    locations, an empty list an empty configuration. `environ` is not modified. Relative
    paths count from `cwd`. `check_script` checks the syntax of JavaScript agents.

    Raises ConfigError with every problem found, ConfigNotFound when a file is missing.
    """
    chosen = layer_files((), environ, cwd) if files is None else list(files)
    base_dir = (cwd / chosen[-1]).parent if chosen else cwd
    findings, variables, notes = Findings(), dict(environ), list[str]()

    auth_env = load_auth_env(base_dir, variables, notes) if read_auth_env else ()
    read_secret_files(variables, cwd, findings)
    findings.mask = secret_mask(variables)
    layers = read_layers(chosen, variables, cwd, findings)
    findings.raise_if_any()
    if len(chosen) > 1:
        names = " ◁ ".join(map(str, chosen))
        notes.insert(0, f"config: layering {len(chosen)} files (last wins): {names}")

    environment = read_environment(variables, findings)
    root, agent_files = _with_agent_files(layers.root, environment, cwd, findings)
    findings.locate = lambda path: find_place(root, path)
    config = decode(root, Config, findings)
    agents = _read_prompts(config.agents, base_dir, findings)
    check_retired(variables, findings)
    config = apply_environment(replace(config, agents=agents), environment, cwd)
    skills, agents = _with_skills(config.agents, environment, cwd, findings)
    config = replace(config, agents={name: _with_context(a) for name, a in agents.items()})

    _report_overrides(layers.overrides, environment, findings)
    check_config(config, environment, cwd, findings)
    for agent in config.agents.values():
        check_agent(agent, config, findings)
        check_code(agent, environment, cwd, check_script, findings)
    principals = resolve_principals(config.principals, variables, cwd, findings)
    findings.raise_if_any()

    for _, agent in sorted(config.agents.items()):
        warn_ineffective_tools(agent, config, findings)
    named = layers.referenced | {entry.token_env for entry in config.principals.values()}
    warn_misspelt(variables, named, findings)
    notes.extend(boot_notes(config, environment, variables, principals))
    return LoadedConfig(
        config=config,
        environment=environment,
        files=tuple(chosen),
        base_dir=base_dir,
        warnings=tuple(findings.warnings),
        notes=tuple(notes),
        environ=variables,
        auth_env=auth_env,
        principals=principals,
        skills=skills,
        agent_files=agent_files,
    )


def _with_agent_files(
    root: Node, environment: Environment, cwd: Path, findings: Findings
) -> tuple[Node, dict[str, Path]]:
    if not environment.agents_root:
        return root, {}
    found = read_agent_files(cwd / environment.agents_root, findings)
    declared = root.fields().get("agents")
    if declared is not None and not declared.is_null and not isinstance(declared.value, dict):
        return root, {}
    agents = dict(declared.fields()) if declared is not None else {}
    for name, node in found.items():
        agents[name] = override_agent(node, agents[name]) if name in agents else node
    place = declared.place if declared is not None else Place(cwd / environment.agents_root)
    merged = Node({**root.fields(), "agents": Node(agents, place)}, root.place)
    return merged, {name: node.place.file for name, node in found.items()}


def _read_prompts(
    agents: dict[str, AgentConfig], base_dir: Path, findings: Findings
) -> dict[str, AgentConfig]:
    read: dict[str, AgentConfig] = {}
    for name, agent in agents.items():
        prompt = agent.system_prompt
        path = ("agents", name, "system_prompt_file")
        if agent.system_prompt_file and prompt:
            message = "`system_prompt` and `system_prompt_file` exclude each other; keep one"
            findings.error(path, message, "conflict")
        elif agent.system_prompt_file:
            prompt = _read_prompt(base_dir / agent.system_prompt_file, path, findings)
        read[name] = replace(agent, name=name, system_prompt=prompt, base_system_prompt=prompt)
    return read


def _read_prompt(file: Path, path: tuple[str, ...], findings: Findings) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    findings.error(path, f"cannot read {file}: {reason}", "unreadable")
    return ""


def _with_skills(
    agents: dict[str, AgentConfig], environment: Environment, cwd: Path, findings: Findings
) -> tuple[dict[str, Skill], dict[str, AgentConfig]]:
    root = cwd / environment.skills_root if environment.skills_root else None
    skills = read_skills(root, findings) if root is not None else {}
    bundled = {name: bundle_skills(agent, skills, root, findings) for name, agent in agents.items()}
    return skills, bundled


def _with_context(agent: AgentConfig) -> AgentConfig:
    listed = any(tool.lower() == CONTEXT_TOOL.lower() for tool in agent.allowed_tools)
    if agent.disable_context or listed:
        return agent
    return replace(agent, allowed_tools=(*agent.allowed_tools, CONTEXT_TOOL))


def _report_overrides(
    overrides: tuple[str, ...], environment: Environment, findings: Findings
) -> None:
    if not overrides:
        return
    if environment.config_strict:
        message = (
            f"{len(overrides)} cross-layer override(s) with LOOMCYCLE_CONFIG_STRICT=1: "
            + "; ".join(overrides)
        )
        findings.error((), message, "override")
        return
    findings.warnings.extend(f"config layer override: {override}" for override in overrides)
