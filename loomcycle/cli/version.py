"""``loomcycle version``: one line that scripts parse."""

from __future__ import annotations

import click

from loomcycle.build import UNKNOWN, this_build
from loomcycle.cli.command import Command


@click.command(cls=Command, examples=["loomcycle version", "loomcycle --version"])
def version() -> None:
    """Print version, commit and build time."""
    build = this_build()
    click.echo(
        f"loomcycle version={build.version} commit={build.commit} built={build.built} go={UNKNOWN}"
    )
