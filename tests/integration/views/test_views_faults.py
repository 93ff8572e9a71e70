"""Damaged journals, and events of a newer version: never a wrong answer."""

from __future__ import annotations

import pytest

from events import vocabulary as v
from events.commit import NewEvent
from events.streams import RUN_STREAM_NAMES
from projections.framework import ViewHeld
from projections.views import Views
from tests.integration.journals import (
    Journal,
    ending,
    opening,
    usage,
)
from tests.integration.views.world import (
    OTHER,
    RUN,
    SESSION,
    STREAMS,
    World,
    eventually,
    rebuilt,
)

pytestmark = pytest.mark.integration


async def test_a_missing_commit_breaks_its_run_and_no_other(world: World, views: Views) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    journal.commit(v.Text(text="lost"))
    seq = await world.append(journal, *ending())
    await world.play(OTHER)
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.fault_kind, run.fault_seq, run.status) == ("broken", seq, "running")
    assert str(seq) in run.fault
    assert len(await views.queries.transcript(SESSION)) == 3
    other = await views.queries.run(OTHER)
    assert other is not None
    assert (other.status, other.fault) == ("completed", "")
    assert await views.queries.running_runs() == []
    assert [(p.what, p.kind, p.seq) for p in await views.queries.problems()] == [
        (RUN, "broken", seq)
    ]


async def test_an_altered_body_breaks_its_run(world: World, views: Views) -> None:
    await views.close()
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    data = journal.commit(*ending("hello"))
    seq = await world.store.log.append(
        journal.subject(world.store.subjects), data.replace(b"hello", b"hallo")
    )
    await world.append(journal, usage(1, 1))
    again = await world.open()
    await world.catch_up(again)
    run = await again.queries.run(RUN)
    assert run is not None
    assert (run.fault_kind, run.fault_seq, run.last_commit) == ("broken", seq, 1)
    assert "altered" in run.fault


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_exchanged_commits_break_the_run_however_they_are_batched(
    world: World, views: Views, one_by_one: bool
) -> None:
    journal = Journal(RUN)
    first, second = journal.commit(*opening(RUN)), journal.commit(*ending())
    for data in (second, first):
        await world.store.log.append(journal.subject(world.store.subjects), data)
        if one_by_one:
            await world.catch_up(views)
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.fault_kind, run.fault_seq, run.last_commit) == ("broken", 1, 0)
    assert (await views.verify()).equal


async def test_a_start_after_the_start_breaks_the_run(world: World, views: Views) -> None:
    await world.append(Journal(RUN), *opening(RUN))
    await world.append(Journal(RUN), *opening(RUN, agent="other"))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.fault_kind, run.fault_seq, run.agent) == ("broken", 2, "writer")


FUTURE = NewEvent(type="future", body=b'{"type":"future"}', v=3)


async def test_an_event_of_a_newer_version_holds_its_run_and_no_other(
    world: World, views: Views
) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    seq = await world.append(journal, FUTURE)
    await world.append(journal, *ending())
    await world.play(OTHER)
    await world.catch_up(views)
    for question in (
        views.queries.run(RUN),
        views.queries.transcript(SESSION),
        views.queries.transcript_of_run(RUN),
        views.queries.run_by_agent_id("", "a_00000000000000a1"),
    ):
        with pytest.raises(ViewHeld, match="future"):
            await question
    assert await views.queries.run(OTHER) is not None
    assert [(p.kind, p.seq) for p in (await views.status()).problems] == [("held", seq)]


async def test_a_version_that_knows_more_folds_held_runs_anew(world: World) -> None:
    views = await world.open(vocabulary="v1")
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    await world.append(journal, FUTURE)
    await world.catch_up(views)
    await views.close()
    updated = await world.open(vocabulary="v2")
    await world.catch_up(updated)
    await eventually(lambda: rebuilt(updated, 1))
    await updated.close()
    same = await world.open(vocabulary="v2")
    await world.catch_up(same)
    assert (await same.status()).rebuilds == 0


async def test_an_event_that_need_not_be_understood_is_passed_on(
    world: World, views: Views
) -> None:
    note = NewEvent(type="note", body=b'{"type":"note","x":1}', must_understand=False)
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN), note)
    await world.append(journal, *ending())
    await world.catch_up(views)
    rows = await views.queries.transcript(SESSION)
    assert ("note", '{"type":"note","x":1}') in [(r.type, r.event) for r in rows]


async def test_a_newer_memory_event_holds_the_memory_view_only(world: World, views: Views) -> None:
    await world.remember("k", "1")
    subject = world.store.subjects.memory("", "user", "u1", "k")
    seq = await world.store.log.append(subject, b'{"type":"memory.merged","v":2}')
    await world.remember("k", "3")
    await world.play(RUN)
    await views.barrier(await world.store.log.ends(RUN_STREAM_NAMES))
    with pytest.raises(ViewHeld, match=r"memory\.merged"):
        await views.barrier({"STATE": seq})
    ends = await world.store.log.ends(STREAMS)
    held = (await views.status(ends)).streams["STATE"]
    assert (held.position, held.lag) == (seq - 1, 2)
    assert "memory.merged" in held.held
    row = await views.queries.memory_get("", "user", "u1", "k", now_ns=5)
    assert row is not None
    assert row.value == "1"


async def test_an_unreadable_memory_message_is_noted_and_skipped(
    world: World, views: Views
) -> None:
    await world.remember("k", "1")
    subject = world.store.subjects.memory("", "user", "u1", "k")
    seq = await world.store.log.append(subject, b"\xff\xfe")
    await world.remember("k2", "2")
    await world.catch_up(views)
    assert await views.queries.memory_get("", "user", "u1", "k2", now_ns=5) is not None
    assert [(p.view, p.seq) for p in await views.queries.problems()] == [("memory", seq)]
