"""Each operation on the log, in turn, fails, is doubled, comes late or is the process' last."""

from __future__ import annotations

import pytest

from events.memory_store import Fault
from tests.sim.scenario import Strike, tell

CALM = tell()
POINTS = range(len(CALM.operations))
CALLS = [at for at in POINTS if not CALM.operations[at].endswith(":after")]


def named(at: int) -> str:
    return f"{at}-{CALM.operations[at]}"


def test_the_calm_story_is_cancelled_in_its_second_turn() -> None:
    assert not CALM.violations
    assert (CALM.client, CALM.cancelled, CALM.status) == ("accepted", True, "cancelled")
    assert (CALM.counter, CALM.charges, CALM.charge) == (1, 1, "charged")
    assert len(CALLS) > 15


@pytest.mark.parametrize("how", list(Fault), ids=lambda how: how.name.lower())
@pytest.mark.parametrize("at", CALLS, ids=named)
def test_a_fault_changes_nothing_but_perhaps_an_error_to_the_client(at: int, how: Fault) -> None:
    ending = tell(Strike(at, how))
    assert not ending.violations, ending.trace
    if ending.client.startswith("refused: "):
        assert ending.client == "refused: log_unavailable"
        assert ending.status in ("", "cancelled")
        return
    assert (ending.client, ending.status) == ("accepted", "cancelled"), ending.trace
    assert (ending.counter, ending.charges, ending.charge) == (1, 1, "charged"), ending.trace


@pytest.mark.parametrize("at", POINTS, ids=named)
def test_after_a_crash_another_process_finishes_and_tells_the_truth(at: int) -> None:
    ending = tell(Strike(at, None))
    assert not ending.violations, ending.trace
    if ending.client == "unknown":
        assert ending.status in ("", "completed"), ending.trace
    else:
        assert ending.client == "accepted"
        assert ending.cancelled
        assert ending.status == "cancelled", ending.trace
    assert ending.charges <= 1
    if ending.charge == "charged":
        assert ending.charges == 1
    if ending.charges == 1 and ending.status == "completed":
        assert ending.charge in ("charged", "unknown")
