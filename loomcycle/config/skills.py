"""Skills on disk (`<root>/<name>/SKILL.md`) and their bundling into agents (config spec 9).

A skill never widens an agent: its tools must be covered by the agent's own list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loomcycle.config.agent_files import read_document, tool_names
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.problems import FieldPath, Findings, did_you_mean
from loomcycle.config.tree import Node, Scalar

SKILL_FILE: Final = "SKILL.md"
SEPARATOR: Final = "\n\n---\n\n"
_KEYS: Final = ("name", "description", "allowed-tools")


class Skill(Struct, frozen=True, kw_only=True):
    """Instructions an agent can carry, and the tools they need."""

    name: str
    description: str = ""
    allowed_tools: tuple[str, ...] = ()
    body: str = ""


def read_skills(root: Path, findings: Findings) -> dict[str, Skill]:
    """Every skill directory under `root`; faults are reported to `findings`."""
    if not root.is_dir():
        findings.error(("LOOMCYCLE_SKILLS_ROOT",), f"{root} is not a directory", "unreadable")
        return {}
    skills: dict[str, Skill] = {}
    for directory in sorted(root.iterdir()):
        if directory.is_dir() and (directory / SKILL_FILE).is_file():
            skill = read_skill(directory, findings)
            if skill is not None:
                skills[skill.name] = skill
    return skills


def read_skill(directory: Path, findings: Findings) -> Skill | None:
    """One skill; its directory's name is canonical. None after a fault was reported."""
    name = directory.name
    path: FieldPath = ("skills", name)
    document = read_document(directory / SKILL_FILE, path, findings)
    if document is None:
        return None
    fields = {k: node for k, node in document.metadata.fields().items() if not node.is_null}
    for key, node in fields.items():
        hint = did_you_mean(key, _KEYS)
        if key not in _KEYS and hint:
            findings.warn((*path, key), f"unknown key, ignored{hint}", place=node.place)
    given_name = _text(fields.get("name"))
    if given_name and given_name != name:
        message = f'frontmatter names it "{given_name}", the directory "{name}"'
        findings.error((*path, "name"), message, "conflict", place=fields["name"].place)
    tools: tuple[str, ...] = ()
    if (listed := fields.get("allowed-tools")) is not None:
        tools = tuple(tool_names(listed, (*path, "allowed-tools"), findings).plain())
    return Skill(
        name=name,
        description=_text(fields.get("description")),
        allowed_tools=tools,
        body=document.body,
    )


def _text(node: Node | None) -> str:
    return node.value.text if node is not None and isinstance(node.value, Scalar) else ""


def rule_covers(rule: str, tool: str) -> bool:
    """Whether an `allowed_tools` entry covers a tool name (or a narrower glob)."""
    return rule == tool or (rule.endswith("*") and tool.startswith(rule[:-1]))


def bundle_skills(
    agent: AgentConfig, skills: dict[str, Skill], root: Path | None, findings: Findings
) -> AgentConfig:
    """The agent with its skills' bodies appended to the prompt, in list order."""
    path: FieldPath = ("agents", agent.name, "skills")
    prompt = agent.system_prompt
    if agent.skills and root is None:
        findings.error(path, "skills are listed but LOOMCYCLE_SKILLS_ROOT is not set", "missing")
        return agent
    for index, name in enumerate(agent.skills):
        skill = skills.get(name)
        if skill is None:
            hint = did_you_mean(name, skills)
            message = f'unknown skill "{name}" under {root}{hint}'
            findings.error((*path, index), message, "unknown_name")
            continue
        for tool in skill.allowed_tools:
            if not any(rule_covers(rule, tool) for rule in agent.allowed_tools):
                message = f'skill "{name}" needs tool "{tool}", which allowed_tools does not cover'
                findings.error((*path, index), message, "conflict")
        prompt = prompt + SEPARATOR + skill.body if prompt else skill.body
    return replace(agent, system_prompt=prompt, base_system_prompt=agent.system_prompt)
