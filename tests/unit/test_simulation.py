"""Simulated clusters: no seed breaks a promise, and planted mistakes do not stay unseen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.planted import PLANTED
from tests.sim.rules import play
from tests.sim.world import simulate

BASE_SEED = 20_000
BUDGET_S = 12.0
AT_LEAST = 20
WITHIN = 200

ROOT = Path(__file__).parents[2]

EXPECTED = {"crash", "suspend", "stop", "forget", "restart", "takeover", "unknown outcome"}
"""What must have happened somewhere for the seeds to mean anything."""

PRINT_TRACE = """
from tests.sim.rules import play
from tests.sim.world import simulate
print("\\n".join(simulate({seed}, play, steps=True).trace))
"""


def test_every_promise_holds_in_as_many_worlds_as_time_allows() -> None:
    began = time.perf_counter()
    met: Counter[str] = Counter()
    played = 0
    while played < AT_LEAST or time.perf_counter() - began < BUDGET_S:
        outcome = simulate(BASE_SEED + played, play)
        assert not outcome.violations, (
            f"{outcome.violations}\nreplay: python -m tests.sim --seed {outcome.seed} --steps"
        )
        met.update(outcome.met)
        played += 1
    if played >= WITHIN:
        assert not EXPECTED - met.keys()


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_mistake_is_found(name: str) -> None:
    with PLANTED[name]():
        assert any(simulate(BASE_SEED + seed, play).violations for seed in range(WITHIN))


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in range(BASE_SEED, BASE_SEED + 5):
        first, second = (simulate(seed, play, steps=True) for _ in range(2))
        assert first.trace == second.trace


@pytest.mark.parametrize("seed", [BASE_SEED + 1, BASE_SEED + 2])
def test_the_trace_of_a_seed_does_not_depend_on_the_process(seed: int) -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", PRINT_TRACE.format(seed=seed)],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1
    assert "run.finished" in traces.pop()
