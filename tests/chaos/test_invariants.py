"""The judge of the kill loop finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from events import state
from events.commit import decode
from events.frames import live_frame
from tests.bench.sse import Frame
from tests.chaos.clients import STEPS, Tracked
from tests.chaos.invariants import Log, counters, promises, streams, terminal_events
from tests.integration.journals import plain_run

RUN = "r_0123456789abcdef"


def kept() -> tuple[Log, Tracked]:
    """A run as it should be: journal, memory, and what its client saw."""
    log = Log()
    _, stored = plain_run(RUN)
    commits = [decode(data, seq) for seq, data in enumerate(stored, 1)]
    log.journals["", RUN] = commits
    run = Tracked("steps", user_id="u", run_id=RUN, ended=True)
    for commit in commits:
        for record in commit.records():
            if (frame := live_frame(record)) is not None:
                run.seen.append(Frame(str(frame.seq), frame.event, frame.data))
    log.memory["u"] = [written(n) for n in range(1, STEPS + 1)]
    return log, run


def written(value: int, effect: str = "") -> state.MemoryWritten:
    return state.decode(  # type: ignore[return-value]
        b'{"type":"memory.written","scope":"user","scope_id":"u","key":"k","op":"incr","value":%d,'
        b'"created_at_ns":1,"updated_at_ns":1,"effect_id":"%b"}'
        % (value, (effect or str(value)).encode())
    )


def verdicts(log: Log, run: Tracked) -> list[str]:
    return [
        *terminal_events(log),
        *promises(log, [run]),
        *counters(log, [run]),
        *streams(log, [run]),
    ]


def test_kept_promises_are_no_violation() -> None:
    assert verdicts(*kept()) == []


def test_text_in_pieces_and_a_repeated_attempt_are_the_same_stream() -> None:
    log, run = kept()
    at = next(i for i, frame in enumerate(run.seen) if frame.event == "text")
    run.seen[at : at + 1] = [
        Frame("1.1.3", "text", b'{"type":"text","text":"hal"}'),
        Frame("1.2.0", "text_reset", b'{"type":"text_reset","attempt":2}'),
        Frame("1.2.2", "text", b'{"type":"text","text":"he"}'),
        Frame("2", "text", b'{"type":"text","text":"llo"}'),
    ]
    assert verdicts(log, run) == []


def _no_end(log: Log, run: Tracked) -> None:
    log.journals["", RUN].pop()


def _two_ends(log: Log, run: Tracked) -> None:
    log.journals["", RUN].append(log.journals["", RUN][-1])


def _nothing_stored(log: Log, run: Tracked) -> None:
    log.journals.clear()


def _counted_twice(log: Log, run: Tracked) -> None:
    log.memory["u"].append(written(STEPS + 1))


def _counted_too_little(log: Log, run: Tracked) -> None:
    log.memory["u"].pop()


def _one_effect_twice(log: Log, run: Tracked) -> None:
    log.memory["u"][-1] = written(STEPS, effect="1")


def _frame_missing(log: Log, run: Tracked) -> None:
    del run.seen[1]


def _frame_twice(log: Log, run: Tracked) -> None:
    run.seen.insert(1, run.seen[1])


def _stream_given_up(log: Log, run: Tracked) -> None:
    run.ended, run.lost = False, "nothing new"


@pytest.mark.parametrize(
    "damage",
    [
        _no_end,
        _two_ends,
        _nothing_stored,
        _counted_twice,
        _counted_too_little,
        _one_effect_twice,
        _frame_missing,
        _frame_twice,
        _stream_given_up,
    ],
    ids=lambda damage: damage.__name__.strip("_"),
)
def test_each_broken_promise_is_found(damage: Callable[[Log, Tracked], Any]) -> None:
    log, run = kept()
    damage(log, run)
    assert verdicts(log, run) != []
