"""Content hashes of files and of configured agents, as `hash agent|skill` prints them.

The whole containing directory is read, so a broken sibling is an error too (cli spec 6).
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from loomcycle.config.agent_files import read_agent_files
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.content_hash import content_sha256
from loomcycle.config.decode import decode
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.problems import ConfigError, ConfigNotFound, Findings, Problem
from loomcycle.config.skills import SKILL_FILE, read_skills


def hash_agent_file(file: Path) -> str:
    """The hash of an agent's Markdown file as written: no `Context`, no skill bodies.

    Raises ConfigNotFound, or ConfigError for this file or a sibling that is broken.
    """
    if not file.is_file():
        raise ConfigNotFound([file], explicit=True)
    if file.suffix != ".md":
        raise ConfigError([Problem(path=str(file), message="not a .md file", code="unsupported")])
    findings = Findings()
    nodes = read_agent_files(file.absolute().parent, findings)
    agents = {
        name: decode(node, AgentConfig, findings, ("agents", name)) for name, node in nodes.items()
    }
    findings.raise_if_any()
    name = file.name.removesuffix(".md")
    return content_sha256(replace(agents[name], name=name))


def hash_configured_agent(loaded: LoadedConfig, name: str) -> str:
    """The hash of a loaded agent: `Context` and skill bodies included, no description.

    Raises ConfigError when there is no such agent.
    """
    agent = loaded.config.agents.get(name)
    if agent is None:
        raise ConfigError([Problem(path="agents", message=f'no agent "{name}"', code="missing")])
    return content_sha256(replace(agent, description=""))


def hash_skill_file(path: Path) -> str:
    """The hash of a skill, given its directory or its SKILL.md.

    Raises ConfigNotFound, or ConfigError for this skill or a sibling that is broken.
    """
    file = path / SKILL_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigNotFound([file], explicit=True)
    if file.name != SKILL_FILE:
        message = f"a skill file must be called {SKILL_FILE}"
        raise ConfigError([Problem(path=str(file), message=message, code="unsupported")])
    directory = file.absolute().parent
    findings = Findings()
    skills = read_skills(directory.parent, findings)
    findings.raise_if_any()
    return content_sha256(skills[directory.name])
