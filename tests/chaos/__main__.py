"""``python -m tests.chaos --kills N``: kill processes at random points and check what is left."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.absence import absence
from tests.chaos.invariants import must_hold
from tests.chaos.loop import KillLoop, Settings

SHARE_OF_TWO = 5
"""Without ``--servers`` one kill in so many is made with two servers."""


def main() -> int:
    """0 when every promise was kept, else 1; the data directory is then kept."""
    options = _options()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    on_two = options.kills // SHARE_OF_TWO
    parts = {1: options.kills - on_two, 2: on_two}
    if options.servers:
        parts = {options.servers: options.kills}
    settings = [
        Settings(kills=kills, seed=seed, servers=servers, width=options.width)
        for servers, kills in parts.items()
        if kills
    ]
    kept = [_kept(each, options.dir) for each in settings]
    if options.away:
        kept.append(_kept_while_away(options.away, seed, options.dir))
    return int(not all(kept))


def _kept_while_away(seconds: float, seed: int, parent: Path | None) -> bool:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="loomcycle-chaos-"))
    _say(f"seed {seed}: nats-server away for {seconds:g} s, {folder}")
    return _verdict(asyncio.run(absence(folder, seconds, seed, _say)), seed, folder)


def _verdict(violations: list[str], seed: int, folder: Path) -> bool:
    if not must_hold(violations, _say):
        _say(f"{len(violations)} violations; repeat with --seed {seed}; see {folder}")
        return False
    _say("every promise was kept")
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _kept(settings: Settings, parent: Path | None) -> bool:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="loomcycle-chaos-"))
    _say(f"seed {settings.seed}: {settings.kills} kills, {settings.servers} server(s), {folder}")
    outcome = asyncio.run(KillLoop(folder, settings, _say).run())
    killed = ", ".join(f"{count} × {victim}" for victim, count in outcome.kills.items())
    _say(
        f"{outcome.seconds:.0f} s, killed {killed}: {outcome.runs} runs followed,"
        f" {outcome.journals} journals, {outcome.resumed} of them resumed,"
        f" {outcome.reconnects} reconnects; clients met {outcome.clients}, people"
        f" {outcome.people}; journals hold {outcome.events}"
    )
    return _verdict(outcome.violations, settings.seed, folder)


def _say(line: str) -> None:
    print(line, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many (default 100)")
    parser.add_argument(
        "--away", type=float, default=30.0, help="seconds without nats-server after them (30)"
    )
    parser.add_argument("--seed", type=int, help="repeats an earlier run's choices")
    parser.add_argument(
        "--servers", type=int, choices=(1, 2), help="all kills with so many server processes"
    )
    parser.add_argument(
        "--width", type=int, default=8, help="children of each branch in trees of runs (8)"
    )
    parser.add_argument("--dir", type=Path, help="where the data directory is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
