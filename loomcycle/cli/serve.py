"""``loomcycle serve``: load the configuration, say so on stderr, run one process or several.

The process itself is ``loomcycle.replica``, the parent of several ``loomcycle.supervisor``; both
are imported only when they are needed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from loomcycle.address import Address, parse_address
from loomcycle.build import this_build
from loomcycle.cli.command import Command, config_option
from loomcycle.cli.errors import BadInvocation, CommandFailed, Quiet
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.problems import ConfigError, ConfigNotFound
from loomcycle.logs import BOOT, start_logging

boot = logging.getLogger(BOOT)


@click.command(
    cls=Command,
    examples=[
        "loomcycle --config loomcycle.yaml",
        "loomcycle serve --config base.yaml --config site.yaml",
        "loomcycle serve --workers 4 --listen 0.0.0.0:8787",
    ],
)
@config_option
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Equal replicas behind one port.",
)
@click.option("--listen", metavar="ADDR", help="Overrides LOOMCYCLE_LISTEN_ADDR.")
@click.option("--tether", type=int, default=-1, hidden=True)
def serve(configs: tuple[Path, ...], workers: int, listen: str | None, tether: int) -> None:
    """Start the server. SIGINT or SIGTERM stops it within 10 seconds; no run is lost.

    The port is shared by all workers. Without --config, ./loomcycle.yaml and the user's
    configuration directory are tried.
    """
    start_logging()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    supervised = tether >= 0
    if not supervised:
        build = this_build()
        boot.info(
            "loomcycle build: version=%s commit=%s time=%s",
            build.version,
            build.commit,
            build.built,
        )
    loaded = _load(configs)
    address = _address(listen, loaded.environment.listen_addr)
    if not supervised:
        _tell(loaded)
        _check_audit_file(loaded.environment.audit_log_path)
    if workers > 1:
        from loomcycle.supervisor import supervise

        status = supervise(workers, address, [part for c in configs for part in ("--config", c)])
    else:
        from loomcycle.replica import run_replica

        status = run_replica(loaded, address, tether=tether)
    if status:
        raise Quiet(status)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Until the event loop listens to signals itself, there is nothing to hand over."""
    boot.info("shutting down…")
    raise SystemExit(0)


def _load(configs: tuple[Path, ...]) -> LoadedConfig:
    from loomcycle.cli.settings import load_layers

    try:
        return load_layers(configs)
    except ConfigError as error:
        for warning in error.warnings:
            boot.info("config: WARNING: %s", warning)
        print(f"config: {error}", file=sys.stderr)
    except ConfigNotFound as error:
        print(f"loomcycle: {error}", file=sys.stderr)
    raise Quiet(1)


def _address(flag: str | None, variable: str) -> Address:
    """Raises BadInvocation for the flag, CommandFailed for the variable."""
    try:
        return parse_address(flag or variable)
    except ValueError as error:
        if flag:
            raise BadInvocation(f"--listen: {error}") from None
        raise CommandFailed(f"LOOMCYCLE_LISTEN_ADDR: {error}") from None


def _check_audit_file(path: str) -> None:
    """Create it, or see that it can be added to (auth.md section 5.3). Raises CommandFailed."""
    if not path:
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CommandFailed(f"LOOMCYCLE_AUDIT_LOG_PATH: cannot write {path}: {reason}") from None


def _tell(loaded: LoadedConfig) -> None:
    for warning in loaded.warnings:
        boot.info("config: WARNING: %s", warning)
    for note in loaded.notes:
        boot.info("%s", note)
    agents = len(loaded.config.agents)
    boot.info("config: %d agent(s), %d skill(s)", agents, len(loaded.skills))
