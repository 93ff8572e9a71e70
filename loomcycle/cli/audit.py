"""``loomcycle log``: the log as it is, for people and for programs.

Everything in the journals is shown, the kernel's own facts too; bodies are as stored, so secrets
are masked in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loomcycle.cli.command import Group, config_option

if TYPE_CHECKING:
    from loomcycle.config.loaded import LoadedConfig

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=Group,
    examples=[
        "loomcycle log run r_0123456789abcdef",
        "loomcycle log session s_0123456789abcdef --json",
        "loomcycle log tenant default --follow",
    ],
)
def log() -> None:
    """Audit: every event with its time, number, type and content. Changes nothing."""


def _options(function: F) -> F:
    follow = click.option("--follow", is_flag=True, help="Stay and show what is appended.")
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per event.")
    return config_option(follow(as_json(function)))


@log.command("run", examples=["loomcycle log run r_0123456789abcdef --follow"])
@click.argument("run_id", metavar="RUN")
@click.option("--tenant", metavar="T", help="The run's tenant; found in the log when not given.")
@_options
def log_run(
    run_id: str, tenant: str | None, configs: tuple[Path, ...], follow: bool, as_json: bool
) -> None:
    """The journal of one run."""
    from loomcycle.cli.journals import show_run

    loaded = _load(configs)
    _perform(show_run(loaded, run_id, tenant, follow=follow, as_json=as_json), follow)


@log.command("session", examples=["loomcycle log session s_0123456789abcdef"])
@click.argument("session_id", metavar="SESSION")
@_options
def log_session(session_id: str, configs: tuple[Path, ...], follow: bool, as_json: bool) -> None:
    """The journals of all runs of a session, in the order of the log."""
    from loomcycle.cli.journals import show_session

    _perform(show_session(_load(configs), session_id, follow=follow, as_json=as_json), follow)


@log.command(
    "tenant", examples=["loomcycle log tenant acme --json", "loomcycle log tenant default"]
)
@click.argument("tenant", metavar="TENANT")
@_options
def log_tenant(tenant: str, configs: tuple[Path, ...], follow: bool, as_json: bool) -> None:
    """The journals of all runs of a tenant by time ("default": also runs that name none)."""
    from loomcycle.cli.journals import show_tenant

    _perform(show_tenant(_load(configs), tenant, follow=follow, as_json=as_json), follow)


def _load(configs: tuple[Path, ...]) -> LoadedConfig:
    from loomcycle.cli.settings import load_if_any

    return load_if_any(configs)


def _perform(work: Coroutine[Any, Any, None], follow: bool) -> None:
    from loomcycle.cli.access import run_with_log

    with contextlib.suppress(*([KeyboardInterrupt] if follow else [])):
        run_with_log(work)
