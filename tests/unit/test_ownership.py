"""What a process makes of a start that may not run, and which parked runs it keeps in memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from events import inbox
from events.commit import FutureEvent, NewEvent, decode, encode_commit, new_event
from events.memory_store import MemoryServer
from events.vocabulary import (
    AwaitingInput,
    AwaitingInputBody,
    Event,
    RunParked,
    RunRef,
    RunWithdrawn,
)
from loomcycle import ownership
from loomcycle.background import Background
from loomcycle.held import HeldRuns
from loomcycle.journal import RunJournal
from loomcycle.loading import session_history
from loomcycle.ownership import WARM_BYTES, WARM_NS
from replay.machine import HANDLE_TAKEN, Finish, closing, next_effect
from tests.processes import RUN, TENANT, Process, types_of
from tests.stories import answers, costs
from tests.virtual_time import play
from tests.wire.journals import prove

SECOND, THIRD = "r_ab00000000000002", "r_ab00000000000003"
SESSION = "s_ab00000000000001"
REFUSED = "what was refused"


def wanted() -> bool:
    """The caller still waits for the start."""
    return False


async def spoken(process: Process, run: str = RUN) -> RunRef:
    """A run of the session, from its opening to its end, in three commits."""
    opening = await process.opening(run=run)
    journal = await process.has(*opening, run=run)
    for event in (costs(), answers()):
        journal.stage(event)
        await journal.commit()
    finish = next_effect(journal.state)
    assert isinstance(finish, Finish)
    await journal.commit(closing(journal.state, finish))
    return RunRef(run, journal.state.n)


# --- starts that may not run ----------------------------------------------------------------------


async def test_a_start_whose_handle_is_in_use_says_nothing_in_its_session() -> None:
    process = Process(MemoryServer(), "p")
    said = await spoken(process)
    holder = await process.start(run=THIRD, session="s_ab00000000000003", agent_id="a_hold")
    assert await process.ownership.begin(holder, wanted) is not None

    facts: dict[str, Any] = {"run": SECOND, "session": SESSION, "previous": said, "continues": True}
    refused = await process.start(REFUSED, agent_id="a_hold", **facts)
    assert await process.ownership.begin(refused, wanted) is None

    store, plans = process.store, process.services.plans
    assert await types_of(store, SECOND) == [["run.started", "started", "error", "run.finished"]]
    (stored,) = await store.log.read(store.subjects.journal(TENANT, SECOND))
    assert REFUSED.encode() not in stored.data
    _, _, error, finished = [record.event for record in decode(stored.data).records()]
    assert (error.error, finished.status) == (HANDLE_TAKEN, "failed")  # type: ignore[union-attr]
    report = await prove(store, plans, TENANT, SECOND)
    assert (report.difference, report.complete) == ("", True)
    before = await session_history(store, plans, TENANT, said)
    assert await session_history(store, plans, TENANT, RunRef(SECOND, 4)) == before


async def test_a_session_that_cannot_be_read_is_not_continued() -> None:
    server = MemoryServer()
    process = Process(server, "p")
    said = await spoken(process)
    subject = process.store.subjects.journal(TENANT, RUN)
    _, lost, after, *_ = await process.store.log.read(subject)
    server.stream_of(subject).delete(lost.seq)

    facts: dict[str, Any] = {"run": SECOND, "session": SESSION, "previous": said, "continues": True}
    async with asyncio.timeout(1):
        assert await process.ownership.begin(await process.start(**facts), wanted) is None
    (tomb,) = await process.store.log.read(process.store.subjects.journal(TENANT, SECOND))
    (record,) = decode(tomb.data).records()
    assert isinstance(record.event, RunWithdrawn)
    code, _, reason = record.event.reason.partition(": ")
    assert code == "session_damaged"
    assert f"journal of {RUN}: commit 3 (sequence {after.seq})" in reason
    line = await process.store.log.read(process.store.subjects.session(TENANT, SESSION))
    assert line == [], "the session is as free as it was"


async def test_a_session_that_a_newer_version_wrote_is_left_to_it() -> None:
    process = Process(MemoryServer(), "p")
    store = process.store
    newer = NewEvent(type="run.teleported", body=b"{}", must_understand=True)
    data, *_ = encode_commit(
        run=RUN,
        c=1,
        prev="",
        epoch=1,
        writer="w",
        first_n=1,
        ts=1,
        events=[*map(new_event, await process.opening()), newer],
    )
    await store.log.append(store.subjects.journal(TENANT, RUN), data)
    facts: dict[str, Any] = {
        "run": SECOND,
        "session": SESSION,
        "previous": RunRef(RUN, 4),
        "continues": True,
    }
    with pytest.raises(FutureEvent):
        await process.ownership.begin(await process.start(**facts), wanted)
    assert await types_of(store, SECOND) == []


# --- parked runs ----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_ns = time.time_ns()

    def __call__(self) -> int:
        return self.now_ns


async def parked(process: Process, number: int, text: str = "hi", tokens: int = 3) -> RunJournal:
    """A run that waits for input, as the process that parked it has it.

    ``tokens``: of its last request, with all that was said before the run.
    """
    run = f"r_cd{number:014x}"
    told: list[Event] = [
        *await process.opening(run=run, text=text, interactive=True),
        costs(tokens),
        answers(),
        AwaitingInput(awaiting_input=AwaitingInputBody(0)),
        RunParked(reason="input"),
    ]
    journal = await process.has(*told, run=run)
    process.ownership.keep(journal)
    return journal


async def kept(process: Process, journals: list[RunJournal]) -> list[bool]:
    """Which runs go on from memory, and not from the log, when they are spoken to."""
    found = []
    for number, journal in enumerate(journals):
        message = inbox.encode(inbox.InputMessage(id=f"i_{number}", text="go on"))
        await process.store.log.append(journal.inbox_subject, message)
        owned = await process.ownership.take_over(TENANT, journal.run_id, None)
        assert owned is not None
        assert owned.journal.state.started == journal.state.started
        found.append(owned.journal is journal)
    return found


async def test_parked_runs_are_kept_until_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "WARM", 2)
    process = Process(MemoryServer(), "p")
    runs = [await parked(process, number) for number in range(4)]
    assert await kept(process, runs) == [False, False, True, True]


async def test_parked_runs_are_kept_until_they_are_too_large_together() -> None:
    process = Process(MemoryServer(), "p")
    large = "x" * (WARM_BYTES * 2 // 5)
    runs = [await parked(process, number, large) for number in range(4)]
    assert await kept(process, runs) == [False, False, True, True]


async def test_a_run_read_from_the_log_counts_with_all_that_was_read() -> None:
    process, reader = Process(server := MemoryServer(), "p"), Process(server, "q")
    large = "x" * (WARM_BYTES * 2 // 5)
    runs = [await parked(process, number, large) for number in range(4)]
    for run in runs:
        assert await reader.takes(run.run_id) is None, "nobody spoke: it is kept again"
    assert len(reader.ownership._warm) == 2


async def test_a_continuation_counts_with_the_conversation_that_it_goes_on_with() -> None:
    """Its own journal is short; what was said before is in memory all the same."""
    process = Process(MemoryServer(), "p")
    runs = [await parked(process, number, tokens=WARM_BYTES // 10) for number in range(4)]
    assert await kept(process, runs) == [False, False, True, True]


async def test_parked_runs_are_kept_until_they_are_old() -> None:
    clock = Clock()
    process = Process(MemoryServer(), "p", clock)
    old = await parked(process, 1)
    clock.now_ns += WARM_NS - 1
    new = await parked(process, 2)
    clock.now_ns += 2
    process.ownership.cool()
    assert await kept(process, [old, new]) == [False, True]


def test_a_process_with_nothing_to_do_forgets_its_parked_runs() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        process = Process(MemoryServer(), "p", lambda: int(loop.time() * 1e9))
        await parked(process, 1)
        held = HeldRuns(process.services, process.ownership, Background())
        looking = asyncio.create_task(held.look_after())
        while process.ownership._warm:
            assert loop.time() < 2 * WARM_NS / 1e9
            await asyncio.sleep(1)
        assert loop.time() > WARM_NS / 1e9
        looking.cancel()

    play(story)
