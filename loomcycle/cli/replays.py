"""``loomcycle replay verify``: fold journals again and prove that nothing else could have happened.

Every effect and every request is derived a second time from the log and compared
(``replay/verify.py``). No model and no tool is called.
"""

from __future__ import annotations

from pathlib import Path

import click

from loomcycle.cli.command import Group, config_option
from loomcycle.cli.errors import Quiet


@click.group(cls=Group, examples=["loomcycle replay verify r_0123456789abcdef"])
def replay() -> None:
    """Replay of journals."""


@replay.command(
    "verify",
    examples=[
        "loomcycle replay verify r_0123456789abcdef",
        "loomcycle replay verify --all",
        "LOOMCYCLE_DATA_DIR=/var/lib/loomcycle loomcycle replay verify --all",
    ],
)
@click.argument("run_id", required=False, metavar="RUN")
@click.option("--all", "every", is_flag=True, help="Every run in the log.")
@click.option("--tenant", metavar="T", help="The run's tenant; found in the log when not given.")
@config_option
def verify(run_id: str | None, every: bool, tenant: str | None, configs: tuple[Path, ...]) -> None:
    """Prove the journal of RUN, or of all runs. Exit code 1 names the first difference.

    Reads the log of the data directory (LOOMCYCLE_DATA_DIR) or of the NATS server, beside a
    running server or without one.
    """
    if bool(run_id) == every:
        raise click.UsageError("name one run, or --all")
    from loomcycle.cli.access import run_with_log
    from loomcycle.cli.proofs import prove_all, prove_one
    from loomcycle.cli.settings import load_if_any

    loaded = load_if_any(configs)
    proven = run_with_log(prove_one(loaded, run_id, tenant) if run_id else prove_all(loaded))
    if not proven:
        raise Quiet(1)
