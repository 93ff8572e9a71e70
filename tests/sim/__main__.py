"""``python -m tests.sim --seeds N [--seed S] [--steps] [--plant NAME]``: play worlds.

Prints how many seeds held, or the trace of the first that did not; ``--seed`` replays one.
``--steps`` adds every operation on the log to the trace.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

from tests.sim.planted import PLANTED
from tests.sim.rules import play
from tests.sim.world import Outcome, simulate

PROGRESS_EVERY = 500


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one and print its trace")
    parser.add_argument("--steps", action="store_true", help="trace every operation")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="plant a fault")
    options = parser.parse_args(arguments)
    plant = PLANTED[options.plant]() if options.plant else contextlib.nullcontext()
    with plant:
        if options.seed is not None:
            return _one(options.seed, steps=options.steps)
        return _many(range(options.first, options.first + options.seeds), steps=options.steps)


def _one(seed: int, *, steps: bool) -> int:
    outcome = simulate(seed, play, steps=steps)
    print("\n".join(outcome.trace))
    _summary(outcome)
    return 1 if outcome.violations else 0


def _many(seeds: range, *, steps: bool) -> int:
    began = time.perf_counter()
    met: Counter[str] = Counter()
    runs, virtual_s = 0, 0.0
    for played, seed in enumerate(seeds, 1):
        outcome = simulate(seed, play)
        if outcome.violations:
            print(f"seed {seed} fails after {played} seeds\n")
            return _one(seed, steps=steps)
        met.update(outcome.met)
        runs += outcome.runs
        virtual_s += outcome.virtual_s
        if played % PROGRESS_EVERY == 0:
            print(f"{played} seeds, {_rate(played, began):.0f} a second", flush=True)
    last = seeds[-1] if seeds else "none"
    print(
        f"seeds {seeds.start} to {last} hold: {runs} runs, {virtual_s / 3600:.1f} virtual hours,"
        f" {_rate(len(seeds), began):.0f} seeds a second"
    )
    print("worlds with: " + ", ".join(f"{what} {count}" for what, count in met.most_common()))
    return 0


def _rate(played: int, began: float) -> float:
    return played / max(time.perf_counter() - began, 1e-9)


def _summary(outcome: Outcome) -> None:
    print(
        f"\nseed {outcome.seed}: {outcome.runs} runs, {outcome.virtual_s:.1f} virtual seconds,"
        f" {len(outcome.violations)} violations"
    )
    for violation in outcome.violations:
        print(f"  {violation}")
    if outcome.violations:
        print(f"replay: python -m tests.sim --seed {outcome.seed} --steps")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
