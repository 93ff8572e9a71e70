"""Agents from Markdown files, and how a YAML entry of the same name overrides them (spec 8).

Works on node trees, so every field keeps the file and line it came from. Validates nothing
but the file's own form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from loomcycle.config import frontmatter
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.decode import field_names
from loomcycle.config.problems import FieldPath, Findings, Place, did_you_mean
from loomcycle.config.tree import Node, Scalar, TreeError, scalar_node

FRONTMATTER_FIELDS: Final = (
    "description",
    "provider",
    "model",
    "code",
    "tier",
    "effort",
    "max_tokens",
    "max_iterations",
    "max_concurrent_children",
    "skills",
    "providers",
    "models",
    "memory_scopes",
    "memory_quota_bytes",
    "memory_backend",
    "channels",
    "agent_def_scopes",
    "skill_def_scopes",
    "volume_def_scopes",
    "evaluation_scopes",
    "interruption",
    "system_prompt_file",
)
_TOOL_KEYS: Final = ("allowed_tools", "tools")
_PROMPT_KEYS: Final = ("system_prompt", "system_prompt_file")


def read_agent_files(root: Path, findings: Findings) -> dict[str, Node]:
    """Every `*.md` directly under `root` as an agent mapping, by file name without `.md`.

    A missing root and malformed files are reported to `findings`.
    """
    if not root.is_dir():
        findings.error(("LOOMCYCLE_AGENTS_ROOT",), f"{root} is not a directory", "unreadable")
        return {}
    agents: dict[str, Node] = {}
    for file in sorted(root.glob("*.md")):
        name = file.name.removesuffix(".md")
        if not name or not file.is_file():
            continue
        node = read_agent_file(file, name, findings)
        if node is not None:
            agents[name] = node
    return agents


def read_agent_file(file: Path, name: str, findings: Findings) -> Node | None:
    """One agent file as a mapping with YAML's keys; None after a fault was reported."""
    path: FieldPath = ("agents", name)
    document = read_document(file, path, findings)
    if document is None:
        return None
    fields = document.metadata.fields()
    given_name = fields.get("name")
    if given_name is not None and not given_name.is_null and given_name.plain() != name:
        message = f'frontmatter names it "{given_name.plain()}", the file name "{name}"'
        findings.error((*path, "name"), message, "conflict", place=given_name.place)
    agent: dict[str, Node] = {key: fields[key] for key in FRONTMATTER_FIELDS if key in fields}
    _warn_ignored(fields, path, findings)
    tools = _tools(fields, path, findings)
    if tools is not None:
        agent["allowed_tools"] = tools
    if document.body.strip():
        agent["system_prompt"] = scalar_node(document.body, Place(file))
    return Node(agent, Place(file, 1))


def read_document(file: Path, path: FieldPath, findings: Findings) -> frontmatter.Document | None:
    """Read and split a Markdown file; None after a fault was reported."""
    try:
        return frontmatter.split(file.read_bytes().decode("utf-8-sig"), file)
    except OSError as error:
        reason, code, line = error.strerror or type(error).__name__, "unreadable", 0
    except UnicodeDecodeError:
        reason, code, line = "not UTF-8 text", "unreadable", 0
    except TreeError as error:
        reason, code, line = str(error), "syntax", error.line
    findings.error(path, reason, code, place=Place(file, line))
    return None


def _warn_ignored(fields: dict[str, Node], path: FieldPath, findings: Findings) -> None:
    read = {*FRONTMATTER_FIELDS, *_TOOL_KEYS, "name"}
    for key, node in fields.items():
        if key in read:
            continue
        if key in field_names(AgentConfig):
            message = "not read from frontmatter; set it under `agents:` in YAML"
        else:
            message = f"unknown key, ignored{did_you_mean(key, read, cutoff=0.75)}"
        findings.warn((*path, key), message, place=node.place)


def _tools(fields: dict[str, Node], path: FieldPath, findings: Findings) -> Node | None:
    chosen: Node | None = None
    for key in _TOOL_KEYS:
        node = fields.get(key)
        if node is None or node.is_null:
            continue
        names = tool_names(node, (*path, key), findings)
        if chosen is None or not chosen.value:
            chosen = names
    return chosen


def tool_names(node: Node, path: FieldPath, findings: Findings) -> Node:
    """A comma string or a list of strings as a list node; other shapes are reported."""
    match node.value:
        case Scalar(str(text)):
            names = [part.strip() for part in text.split(",") if part.strip()]
            return Node([scalar_node(name, node.place) for name in names], node.place)
        case list(items) if all(_is_string(item) for item in items):
            return node
        case _:
            message = "must be a list of names or one comma separated string"
            findings.error(path, message, "wrong_type", place=node.place)
            return Node([], node.place)


def _is_string(node: Node) -> bool:
    return isinstance(node.value, Scalar) and isinstance(node.value.value, str)


def override_agent(file_agent: Node, yaml_agent: Node) -> Node:
    """An agent file with a YAML entry laid over it, field by field.

    Scalars override when they are not zero or empty, lists and maps when present;
    `description` only fills a gap; either prompt key replaces both; the two channel lists
    override separately. Fields a file cannot carry are taken from YAML as they are.
    """
    if yaml_agent.is_null:
        return file_agent
    if not isinstance(yaml_agent.value, dict):
        return yaml_agent
    merged = dict(file_agent.fields())
    given = {key: node for key, node in yaml_agent.value.items() if not node.is_null}
    if any(_is_set(given.get(key)) for key in _PROMPT_KEYS):
        for key in _PROMPT_KEYS:
            merged.pop(key, None)
    for key, node in given.items():
        present = merged.get(key)
        if present is None:
            merged[key] = node
        elif key == "channels" and isinstance(node.value, dict):
            lists = {name: value for name, value in node.value.items() if not value.is_null}
            merged[key] = Node({**present.fields(), **lists}, node.place)
        elif key == "interruption":
            merged[key] = node if node.value else present
        elif key != "description" and _is_set(node):
            merged[key] = node
    return Node(merged, yaml_agent.place)


def _is_set(node: Node | None) -> bool:
    if node is None:
        return False
    if isinstance(node.value, Scalar):
        return node.value.value not in (None, "", 0, False)
    return True
