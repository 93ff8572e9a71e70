"""The kill loop in short: ten kills of real processes at random points, every promise checked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.loop import KillLoop, Settings

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

DISTURBED = {
    *("child.finished", "run.parked", "call.prepared", "interrupt.closed"),
    *("awaiting_input", "context_compaction", "retry"),
}
"""What runs were doing when they were killed."""

WIDTH = 3
"""Children of each branch; the long run has eight."""


async def test_ten_kills_break_no_promise(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(
        f"repeat with: python -m tests.chaos --servers 1 --kills 10 --width {WIDTH} --seed {seed}"
    )
    outcome = await KillLoop(tmp_path, Settings(kills=10, seed=seed, width=WIDTH), print).run()
    assert outcome.violations == []
    assert outcome.resumed > 0
    assert outcome.reconnects > 0
    assert outcome.runs > 20
    assert set(outcome.events) >= DISTURBED
