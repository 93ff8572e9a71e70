"""``loomcycle validate``, ``agents list`` and ``hash``: answers from files alone."""

from __future__ import annotations

from pathlib import Path

import click

from loomcycle.cli.command import Command, Group
from loomcycle.cli.errors import BadInvocation
from loomcycle.cli.settings import load_file
from loomcycle.config.hash_files import hash_agent_file, hash_configured_agent, hash_skill_file
from loomcycle.config.problems import ConfigError, ConfigNotFound
from loomcycle.config.reports import agents_listing, validate_report

_A_PATH = click.Path(path_type=Path)


@click.command(cls=Command, flags_first=True, examples=["loomcycle validate loomcycle.yaml"])
@click.argument("file", type=_A_PATH, metavar="YAML")
def validate(file: Path) -> None:
    """Load one configuration file with every check a server makes. Exit code 2 if it fails."""
    loaded = load_file(file)
    try:
        click.echo(validate_report(loaded), nl=False)
    except ConfigError as error:
        raise BadInvocation(str(error)) from None


@click.group(cls=Group, examples=["loomcycle agents list --config loomcycle.yaml --json"])
def agents() -> None:
    """Configured agents."""


@agents.command("list", examples=["loomcycle agents list", "loomcycle agents list --json"])
@click.option(
    "--config", type=_A_PATH, default=Path("loomcycle.yaml"), show_default=True, metavar="F"
)
@click.option("--json", "as_json", is_flag=True, help="An array sorted by name.")
def list_agents(config: Path, as_json: bool) -> None:
    """Every agent with its model, its prompt's source, its tools and skills."""
    click.echo(agents_listing(load_file(config), as_json=as_json), nl=False)


@click.group(
    "hash",
    cls=Group,
    examples=[
        "loomcycle hash agent agents/triage.md",
        "loomcycle hash agent --config loomcycle.yaml triage",
        "loomcycle hash skill skills/summarise",
    ],
)
def hash_() -> None:
    """Content hash of a definition: one line sha256:<64 hex digits>, as the server records it."""


@hash_.command(
    "agent",
    flags_first=True,
    examples=[
        "loomcycle hash agent agents/triage.md",
        "loomcycle hash agent --config loomcycle.yaml triage",
    ],
)
@click.option("--config", type=_A_PATH, metavar="F", help="Hash an agent of this configuration.")
@click.argument("agent", metavar="FILE|NAME")
def hash_agent(config: Path | None, agent: str) -> None:
    """Hash an agent's Markdown file, or with --config a configured agent by its name."""
    try:
        if config is None:
            click.echo(hash_agent_file(Path(agent)))
        else:
            click.echo(hash_configured_agent(load_file(config), agent))
    except (ConfigError, ConfigNotFound) as error:
        raise BadInvocation(str(error)) from None


@hash_.command("skill", flags_first=True, examples=["loomcycle hash skill skills/summarise"])
@click.argument("skill", type=_A_PATH, metavar="DIR|SKILL.md")
def hash_skill(skill: Path) -> None:
    """Hash a skill, given its directory or its SKILL.md."""
    try:
        click.echo(hash_skill_file(skill))
    except (ConfigError, ConfigNotFound) as error:
        raise BadInvocation(str(error)) from None
