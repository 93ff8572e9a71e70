"""``loomcycle projections``: the SQL views, which are disposable: inspect, verify, rebuild.

Works beside a running server, which then stays the only writer, or without one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loomcycle.cli.command import Group, config_option
from loomcycle.cli.errors import CommandFailed, Quiet
from loomcycle.cli.progress import Bar

if TYPE_CHECKING:
    from events.log import EventStore
    from loomcycle.config.loaded import LoadedConfig
    from projections.progress import Rebuild
    from projections.views import Views

CATCH_UP_S = 600.0


@click.group(
    cls=Group,
    examples=["loomcycle projections status", "loomcycle projections verify"],
)
def projections() -> None:
    """The SQL views folded from the log."""


@projections.command("status", examples=["loomcycle projections status --config loomcycle.yaml"])
@config_option
def status(configs: tuple[Path, ...]) -> None:
    """Positions, lag, versions and problems. Exit code 1 when a view is held or damaged."""
    _perform(configs, _status)


@projections.command("verify", examples=["loomcycle projections verify"])
@config_option
def verify(configs: tuple[Path, ...]) -> None:
    """Fold the log into a scratch database and compare every row. Exit code 1 on a difference."""
    _perform(configs, _verify)


@projections.command("rebuild", examples=["loomcycle projections rebuild"])
@config_option
def rebuild(configs: tuple[Path, ...]) -> None:
    """Fold the views anew; the old ones serve meanwhile. A running server is asked to do it."""
    _perform(configs, _rebuild)


def _perform(
    configs: tuple[Path, ...], work: Callable[[Views, EventStore], Awaitable[bool]]
) -> None:
    from loomcycle.cli.access import run_with_log
    from loomcycle.cli.settings import load_if_any
    from projections.framework import ViewUnavailable

    loaded = load_if_any(configs)

    async def whole() -> bool:
        async with _open(loaded) as (views, store):
            return await work(views, store)

    try:
        good = run_with_log(whole())
    except ViewUnavailable as error:
        raise CommandFailed(str(error)) from None
    if not good:
        raise Quiet(1)


@asynccontextmanager
async def _open(loaded: LoadedConfig) -> AsyncIterator[tuple[Views, EventStore]]:
    from loomcycle.cli.access import open_log
    from loomcycle.stores import view_settings
    from projections.views import Views

    async with open_log(loaded) as access:
        with Bar("folding the log") as bar:

            def on_rebuild(rebuild: Rebuild) -> None:
                bar.at(rebuild.done, rebuild.total)

            views = await Views.open(
                view_settings(loaded), access.open_store, on_rebuild=on_rebuild
            )
            try:
                await views.ready(CATCH_UP_S)
                yield views, access.store
            finally:
                await views.close()


async def _status(views: Views, store: EventStore) -> bool:
    from events.streams import RUNS

    streams = [spec.name for spec in RUNS] + ["STATE"]
    ends = await store.log.ends(streams)
    now = await views.status(ends)
    writer = "this command" if now.writer else "a running server"
    click.echo(f"backend   {now.backend}")
    click.echo(f"state     {now.state}{': ' + now.detail if now.detail else ''}")
    click.echo(f"writer    {writer}")
    versions = ", ".join(f"{name} v{version}" for name, version in sorted(now.versions.items()))
    click.echo(f"views     {versions}")
    for name, stream in now.streams.items():
        held = f"  HELD: {stream.held}" if stream.held else ""
        lag = "?" if stream.lag < 0 else str(stream.lag)
        click.echo(f"{name:<9} position {stream.position}, {lag} behind{held}")
    for problem in now.problems:
        click.echo(f"problem   {problem.view} {problem.what}: {problem.kind}: {problem.reason}")
    return not now.problems and not any(stream.held for stream in now.streams.values())


async def _verify(views: Views, store: EventStore) -> bool:
    report = await views.verify()
    for table, rows in sorted(report.rows.items()):
        click.echo(f"{table:<12} {rows} rows")
    for difference in report.differences:
        click.echo(f"{difference.table}, row {difference.row}:")
        click.echo(f"  the log says  {difference.expected}")
        click.echo(f"  the view has  {difference.found}")
    click.echo("equal" if report.equal else f"{len(report.differences)} difference(s)")
    return report.equal


async def _rebuild(views: Views, store: EventStore) -> bool:
    asked = (await views.status()).state == "reader"
    await views.rebuild()
    click.echo("asked the running server to rebuild its views" if asked else "rebuilt")
    return True
