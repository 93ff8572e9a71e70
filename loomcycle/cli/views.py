"""``loomcycle projections``: the SQL views, which are disposable: inspect, verify, rebuild."""

from __future__ import annotations

from pathlib import Path

import click

from loomcycle.cli.command import Group, config_option
from loomcycle.cli.errors import Quiet


@click.group(
    cls=Group,
    examples=["loomcycle projections status", "loomcycle projections verify"],
)
def projections() -> None:
    """The SQL views folded from the log. All of this works beside a running server or without."""


@projections.command("status", examples=["loomcycle projections status --config loomcycle.yaml"])
@config_option
def status(configs: tuple[Path, ...]) -> None:
    """Positions, lag, versions and problems of the views. Exit code 1 when there are problems."""
    from loomcycle.cli import view_care

    _end(configs, view_care.show_status)


@projections.command("verify", examples=["loomcycle projections verify"])
@config_option
def verify(configs: tuple[Path, ...]) -> None:
    """Fold the log again and compare every row. Exit code 1 when one differs."""
    from loomcycle.cli import view_care

    _end(configs, view_care.verify)


@projections.command("rebuild", examples=["loomcycle projections rebuild"])
@config_option
def rebuild(configs: tuple[Path, ...]) -> None:
    """Fold the views anew while the old ones serve. A running server does it itself when asked."""
    from loomcycle.cli import view_care

    _end(configs, view_care.rebuild)


def _end(configs: tuple[Path, ...], work: object) -> None:
    raise Quiet(1)
