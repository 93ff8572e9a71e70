"""Which parked runs have something to do, and which children nobody waits for any more."""

from __future__ import annotations

import pytest

from events import inbox
from events import vocabulary as v
from projections.views import Views
from tests.integration.journals import SECOND, Journal, answered, called, finished, opening
from tests.integration.views.world import World

pytestmark = pytest.mark.integration

PARENT = "r_00000000000000a1"
CHILD = "r_ff000000000000b2"
LATER = 9 * SECOND


async def parked(world: World, run: str, reason: str = "input", until_ns: int = 0) -> Journal:
    journal = Journal(run)
    event = v.RunParked(reason=reason, until_ns=until_ns)  # type: ignore[arg-type]
    await world.append(journal, *opening(run), event)
    return journal


async def says(world: World, run: str, ident: str = "i_1") -> None:
    message = inbox.encode(inbox.InputMessage(id=ident, text="go on"))
    await world.store.log.append(world.store.subjects.inbox("", run), message)


async def causes(
    world: World, views: Views, *, now_ns: int = 0, paused: bool = False
) -> list[tuple[str, str]]:
    await world.catch_up(views)
    due = await views.queries.due_parks(now_ns, paused=paused)
    return sorted((row.id, row.cause) for row in due)


def child_started(index: int = 0, run: str = CHILD) -> v.ChildStarted:
    return v.ChildStarted(
        tool_use_id="t1", index=index, run=run, session="s", agent="writer", agent_id="a_child"
    )


def child_finished(index: int = 0) -> v.ChildFinished:
    return v.ChildFinished(tool_use_id="t1", index=index, run=CHILD, ok=True)


async def child_of(world: World, parent: str, run: str = CHILD) -> Journal:
    journal = Journal(run)
    await world.append(journal, *opening(run, parent=v.ParentCall(parent, 5)))
    return journal


async def test_a_message_that_came_after_the_park_makes_the_run_due(
    world: World, views: Views
) -> None:
    await says(world, PARENT, "i_before")
    journal = await parked(world, PARENT)
    assert await causes(world, views) == []
    await says(world, PARENT)
    assert await causes(world, views) == [(PARENT, "inbox")]
    (due,) = await views.queries.due_parks(0, paused=False)
    assert (due.last_commit, due.tenant) == (1, "")
    await world.append(journal, v.RunClaimed(worker="w2"))
    assert await causes(world, views) == []
    await world.append(journal, v.RunParked(reason="input"))
    assert await causes(world, views) == [], "the message was there before the second park"


async def test_a_claim_and_a_park_in_one_commit_leave_the_run_parked(
    world: World, views: Views
) -> None:
    journal = await parked(world, PARENT)
    await says(world, PARENT)
    await world.append(journal, v.RunClaimed(worker="w2"), v.RunParked(reason="input"))
    assert await causes(world, views) == []
    assert await views.queries.parked_count() == 1
    await says(world, PARENT, "i_2")
    assert await causes(world, views) == [(PARENT, "inbox")]


async def test_a_run_is_due_when_its_time_has_come(world: World, views: Views) -> None:
    await parked(world, PARENT, "calls", until_ns=LATER)
    assert await causes(world, views, now_ns=LATER - 1) == []
    assert await causes(world, views, now_ns=LATER) == [(PARENT, "time")]


async def test_what_a_pause_parked_is_due_once_the_runtime_is_not_paused(
    world: World, views: Views
) -> None:
    await parked(world, PARENT, "pause")
    await parked(world, CHILD, "input")
    assert await causes(world, views, paused=True) == []
    assert await causes(world, views) == [(PARENT, "pause")]
    assert await views.queries.parked_count() == 2


@pytest.mark.parametrize("child_first", [True, False])
async def test_a_parked_parent_is_due_when_a_child_ended_that_it_did_not_record(
    world: World, views: Views, child_first: bool
) -> None:
    child = await child_of(world, PARENT) if child_first else None
    journal = Journal(PARENT)
    await world.append(journal, *opening(PARENT))
    call = called("t1", "Agent")
    events = (call, child_started(0), child_started(1, "r_1300000000000013"))
    await world.append(journal, *events, v.RunParked(reason="calls"))
    child = child or await child_of(world, PARENT)
    assert await causes(world, views) == []
    await world.append(child, finished())
    assert await causes(world, views) == [(PARENT, "children")]
    claim = v.RunClaimed(worker="w2")
    await world.append(journal, claim, child_finished(0), v.RunParked(reason="calls"))
    assert await causes(world, views) == []


async def test_children_of_an_ended_parent_are_abandoned_while_they_run(
    world: World, views: Views
) -> None:
    journal = Journal(PARENT)
    await world.append(journal, *opening(PARENT))
    await world.append(journal, called("t1", "Agent"), child_started())
    child = await child_of(world, PARENT)
    await world.catch_up(views)
    assert await views.queries.abandoned_children() == []
    await world.append(journal, finished("cancelled"))
    await world.catch_up(views)
    (abandoned,) = await views.queries.abandoned_children()
    assert (abandoned.id, abandoned.last_commit) == (CHILD, 1)
    await world.append(child, finished("cancelled"))
    await world.catch_up(views)
    assert await views.queries.abandoned_children() == []


async def test_runs_that_are_over_or_broken_are_never_due(world: World, views: Views) -> None:
    journal = await parked(world, PARENT, "pause")
    await world.append(journal, v.RunClaimed(worker="w2"), answered("t1", "Read"), finished())
    await parked(world, CHILD, "pause")
    await world.store.log.append(Journal(CHILD).subject(world.store.subjects), b"not a commit")
    assert await causes(world, views, now_ns=LATER) == []


async def test_parks_are_the_same_when_they_are_folded_anew(world: World, views: Views) -> None:
    await parked(world, PARENT, "calls", until_ns=LATER)
    await says(world, PARENT)
    await world.append(await child_of(world, PARENT), child_started())
    await world.catch_up(views)
    report = await views.verify()
    assert report.equal
    assert (report.rows["parks"], report.rows["expected_children"]) == (1, 1)
