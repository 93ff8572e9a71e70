"""The result of loading: configuration, environment, and what to tell the operator."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from loomcycle.config.principals import DeclaredPrincipal
from loomcycle.config.schema import Config
from loomcycle.config.skills import Skill
from loomcycle.config.variables import Environment


class LoadedConfig(Struct, frozen=True, kw_only=True):
    """A configuration that passed every check.

    `environ` is the process environment with `auth.env` and secret files applied: child
    processes and redaction must start from it. `warnings` are printed with the prefix
    `config: WARNING: `, `notes` as they are. `base_dir` resolves relative paths of the YAML.
    `agent_files` names the Markdown file of each agent that has one.
    """

    config: Config
    environment: Environment
    files: tuple[Path, ...]
    base_dir: Path
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    environ: dict[str, str]
    auth_env: tuple[str, ...]
    principals: tuple[DeclaredPrincipal, ...]
    skills: dict[str, Skill]
    agent_files: dict[str, Path]

    def __repr__(self) -> str:
        return f"LoadedConfig(files={self.files!r}, agents={sorted(self.config.agents)!r})"
