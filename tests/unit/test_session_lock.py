"""Who may have a session: runs that are admitted, and a commit that is added to its last run."""

from __future__ import annotations

import pytest

from events.commit import CommitHeader
from events.log import EventStore, WrongSequence
from events.memory_store import MemoryServer
from events.plan import RunPlan
from events.vocabulary import Event, RunAmended
from loomcycle.admission import Admission, Refused
from loomcycle.journal import RunJournal, amend
from loomcycle.session_lock import Amending, SessionLine, line_of, run_of, take
from loomcycle.starts import StartItem
from replay.fold import apply
from replay.machine import Finish, closing, next_effect
from replay.state import State
from tests.stories import answers, costs, opens

RUN, SESSION, TENANT = "r_ab00000000000001", "s_ab00000000000001", "t"
SECOND = "r_ab00000000000002"


class Nobody:
    """Reads no commit."""

    def committed(
        self, seq: int, header: CommitHeader, events: list[Event], data: bytes
    ) -> None: ...


async def ended_run(store: EventStore) -> State:
    """The first run of a session, from its opening to its end."""
    state = State(RunPlan(agent="a", provider="mock", model="m"))
    journal = RunJournal(
        store,
        state,
        tenant=TENANT,
        run_id=RUN,
        worker="w",
        epoch=0,
        now_ns=lambda: 1,
        observer=Nobody(),
    )
    for event in (*opens(tenant=TENANT), costs(), answers()):
        journal.stage(event)
    finish = next_effect(state)
    assert isinstance(finish, Finish)
    await journal.commit(closing(state, finish))
    return state


async def amended(store: EventStore, state: State, noted: int) -> int:
    event = RunAmended(by="p", provider="mock", model="m")
    apply(state, event, state.n + 1, 2)
    return await amend(store, state, [event], noted=noted, writer="p", ts=2)


def continuation(after: int) -> StartItem:
    return StartItem(
        run=SECOND,
        session=SESSION,
        tenant=TENANT,
        agent_id="a_2",
        gateway="p",
        not_after_ns=9,
        opens_session=False,
        session_after=after,
    )


async def admitted(store: EventStore, after: int) -> bool:
    try:
        await Admission(store).admit(continuation(after), writer="p", ts=1)
    except Refused:
        return False
    return True


async def noted(store: EventStore, after: int, by: str = "n_1") -> int:
    subject = store.subjects.session(TENANT, SESSION)
    return await take(store, subject, Amending(by=by, amends=RUN), after)


async def test_a_run_is_amended_while_nobody_went_on_with_its_session() -> None:
    store = MemoryServer().connect("p")
    state = await ended_run(store)
    seq = await amended(store, state, await noted(store, 0))
    last = await store.log.last(store.subjects.journal(TENANT, RUN))
    assert last is not None
    assert last.seq == seq


async def test_a_continuation_before_the_note_prevents_the_amendment() -> None:
    store = MemoryServer().connect("p")
    assert await admitted(store, 0)
    assert await noted(store, 0) == 0


async def test_a_continuation_after_the_note_prevents_the_amendment() -> None:
    store = MemoryServer().connect("p")
    state = await ended_run(store)
    note = await noted(store, 0)
    assert await admitted(store, note)
    with pytest.raises(WrongSequence):
        await amended(store, state, note)


async def test_a_continuation_that_did_not_see_the_note_is_not_admitted() -> None:
    store = MemoryServer().connect("p")
    await noted(store, 0)
    assert not await admitted(store, 0)


async def test_of_two_who_amend_the_later_note_counts() -> None:
    store = MemoryServer().connect("p")
    state = await ended_run(store)
    first = await noted(store, 0, "n_1")
    second = await noted(store, first, "n_2")
    assert 0 < first < second
    with pytest.raises(WrongSequence):
        await amended(store, state, first)


async def test_a_line_tells_its_runs_and_whether_one_is_being_amended() -> None:
    store = MemoryServer().connect("p")
    assert await line_of(store, TENANT, SESSION) == SessionLine((), 0, False)
    note = await noted(store, 0)
    assert await line_of(store, TENANT, SESSION) == SessionLine((), note, True)
    subject = store.subjects.session(TENANT, SESSION)
    release = await take(store, subject, Amending(by="n_2"), note)
    assert await line_of(store, TENANT, SESSION) == SessionLine((), release, False)
    assert await admitted(store, release)
    line = await line_of(store, TENANT, SESSION)
    assert (line.runs, line.amending) == ((SECOND,), False)


@pytest.mark.parametrize(
    ("entry", "run"), [(b'"r_1"', "r_1"), (b'{"by":"n_1","amends":"r_1"}', "")]
)
def test_only_admissions_name_a_run(entry: bytes, run: str) -> None:
    assert run_of(entry) == run
