"""What the views answer about runs, sessions and transcripts."""

from __future__ import annotations

import pytest

from events import vocabulary as v
from projections.views import Views
from replay.machine import HANDLE_TAKEN
from tests.integration.journals import (
    SECOND,
    Journal,
    answered,
    called,
    ending,
    finished,
    opening,
    usage,
)
from tests.integration.views.world import (
    OTHER,
    RUN,
    SESSION,
    World,
)

pytestmark = pytest.mark.integration


async def test_a_finished_run_shows_its_end_and_its_totals(world: World, views: Views) -> None:
    await world.play(RUN, user_tier="gold", parent_context={"function_key": "f"})
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.status, run.stop_reason, run.error) == ("completed", "end_turn", "")
    assert (run.input_tokens, run.output_tokens) == (10, 5)
    assert (run.model, run.provider) == ("m-1", "mock")
    assert (run.started_ns, run.completed_ns) == (SECOND, 2 * SECOND)
    assert (run.owner, run.epoch, run.last_n, run.last_commit) == ("w1", 1, 9, 2)
    assert (run.user_tier, run.parent_context) == ("gold", '{"function_key":"f"}')


async def test_a_session_is_described_by_its_first_run(world: World, views: Views) -> None:
    await world.play(RUN, agent="writer")
    later = Journal("r_00000000000000a9", at=9 * SECOND)
    await world.append(later, *opening(later.run, session=SESSION, agent="reviewer"))
    await world.catch_up(views)
    session = await views.queries.session(SESSION)
    assert session is not None
    assert (session.agent, session.user_id, session.created_ns) == ("writer", "u1", SECOND)
    assert [r.id for r in await views.queries.runs_of_session(SESSION)] == [RUN, later.run]
    assert await views.queries.session("s_none") is None


async def test_a_transcript_holds_the_public_events_of_all_runs_by_seq(
    world: World, views: Views
) -> None:
    await world.play(RUN)
    await world.play("r_00000000000000a9", session=SESSION)
    await world.play(OTHER)
    await world.catch_up(views)
    rows = await views.queries.transcript(SESSION)
    types = ["user_input", "system_prompt", "started", "text", "usage", "done"]
    assert [r.type for r in rows] == types * 2
    assert [r.seq for r in rows] == sorted({r.seq for r in rows})
    assert rows[0].event == '{"type":"user_input"}'
    assert rows[0].payload is not None
    assert "hi" in rows[0].payload
    assert rows[3].payload is None
    assert rows[3].event == '{"type":"text","text":"hello"}'
    after = await views.queries.transcript(SESSION, after=rows[7].seq)
    assert after == rows[8:]
    assert await views.queries.transcript_of_run(RUN) == rows[:6]


@pytest.mark.parametrize("run", [RUN, "imported-1"])
async def test_a_transcript_of_many_commits_is_whole_wherever_it_is_cut(
    world: World, views: Views, run: str
) -> None:
    """Rows of the first two commits are found in another way than those of later ones."""
    journal = Journal(run)
    await world.append(journal, *opening(run, session=SESSION))
    for i in range(5):
        await world.append(journal, called(f"t{i}", "Memory"), answered(f"t{i}", "Memory"))
        await world.play(f"r_00000000000001{i:02x}")
        if i % 2:
            await world.catch_up(views)
    await world.append(journal, *ending())
    await world.catch_up(views)
    rows = await views.queries.transcript_of_run(run)
    types = ["user_input", "system_prompt", "started", *["tool_call", "tool_result"] * 5]
    assert [r.type for r in rows] == [*types, "text", "usage", "done"]
    assert {r.run_id for r in rows} == {run}
    assert await views.queries.transcript(SESSION) == rows
    for i, row in enumerate(rows):
        assert await views.queries.transcript_of_run(run, after=row.seq) == rows[i + 1 :]
        assert await views.queries.transcript(SESSION, after=row.seq) == rows[i + 1 :]


async def test_ids_of_any_form_lead_to_their_run(world: World, views: Views) -> None:
    """Native ids of a first run share their digits and need no index entry; others do not."""
    await world.play(RUN)
    await world.play("imported-1", session="s-1", agent_id="handle")
    await world.play("r_b", session="x_b", agent_id="y_b")
    await world.play("q_c", session="s_c", agent_id="a_c")
    await world.play("r_00000000000000a9", session=SESSION, agent_id="a_c", tenant="t2")
    await world.catch_up(views)
    q = views.queries
    sessions = {"s-1": ["imported-1"], "x_b": ["r_b"], "s_c": ["q_c"], "s_b": []}
    for session, runs in {SESSION: [RUN, "r_00000000000000a9"], **sessions}.items():
        assert sorted(r.id for r in await q.runs_of_session(session)) == sorted(runs)
        assert (await q.session(session) is not None) == bool(runs)
        assert {r.run_id for r in await q.transcript(session)} == set(runs)
    handles = {"a_00000000000000a1": RUN, "handle": "imported-1", "y_b": "r_b", "a_b": None}
    for handle, run in handles.items():
        found = await q.run_by_agent_id(None, handle)
        assert (found.id if found else None) == run
    shared = [await q.run_by_agent_id(tenant, "a_c") for tenant in ("", "t2")]
    assert [run.id for run in shared if run] == ["q_c", "r_00000000000000a9"]


async def test_text_with_a_nul_character_reaches_the_views(world: World, views: Views) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN), finished("failed", error="bad \0 byte"))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert run.error in ("bad \0 byte", "bad \ufffd byte")


async def test_the_first_terminal_event_wins(world: World, views: Views) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN), usage(3, 1))
    await world.append(journal, finished("cancelled", stop_reason="cancelled by api"))
    totals = v.UsageTotals(input_tokens=99, output_tokens=99)
    await world.append(journal, finished("completed", stop_reason="end_turn", usage=totals))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled by api")
    assert run.completed_ns == 2 * SECOND
    assert run.input_tokens == 3


async def test_a_failed_run_keeps_the_usage_of_its_turns(world: World, views: Views) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN), usage(100, 10))
    await world.append(journal, usage(200, 20, model="m-2"))
    await world.append(journal, v.Error(error="boom"), finished("failed", error="boom"))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.status, run.error) == ("failed", "boom")
    assert (run.input_tokens, run.output_tokens, run.model) == (300, 30, "m-2")


async def test_a_withdrawn_start_leaves_no_run(world: World, views: Views) -> None:
    await world.append(Journal(RUN), v.RunWithdrawn(reason="queue timeout"))
    await world.catch_up(views)
    assert await views.queries.run(RUN) is None
    assert await views.queries.problems() == []


async def test_a_handle_names_the_run_that_started_last(world: World, views: Views) -> None:
    """Also when the later run stands in a stream that is folded earlier."""
    await world.play(OTHER, agent_id="mine", tenant="t1", at=5)
    await world.play(RUN, agent_id="mine", tenant="t1", at=7)
    await world.play("r_880000000000000c", agent_id="mine", tenant="t2", at=9)
    await world.catch_up(views)
    by_handle = views.queries.run_by_agent_id
    found = [await by_handle(tenant, "mine") for tenant in ("t1", "t2", None)]
    assert [run.id if run else "" for run in found] == [RUN, *["r_880000000000000c"] * 2]
    assert await by_handle("t3", "mine") is None


async def test_a_run_that_never_started_does_not_hide_the_holder_of_its_handle(
    world: World, views: Views
) -> None:
    async def found() -> str | None:
        await world.catch_up(views)
        run = await views.queries.run_by_agent_id(None, "mine")
        return run.id if run else None

    refused = Journal(OTHER, at=9 * SECOND)
    failed = finished("failed", error=HANDLE_TAKEN)
    await world.append(refused, *opening(OTHER, agent_id="mine"), failed)
    assert await found() == OTHER
    holder = Journal(RUN)
    await world.append(holder, *opening(RUN, agent_id="mine"))
    assert await found() == RUN
    await world.append(holder, *ending())
    assert await found() == RUN, "it ended before the other was refused"


async def test_a_run_starts_with_its_first_commit(world: World, views: Views) -> None:
    """Not when it was asked for: it may have waited in the queue since."""
    await world.play(RUN, at=9 * SECOND, started_ns=2 * SECOND)
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert run.started_ns == 9 * SECOND


async def test_the_provider_that_serves_outlasts_usage_that_names_none(
    world: World, views: Views
) -> None:
    async def served() -> tuple[str, str]:
        await world.catch_up(views)
        run = await views.queries.run(RUN)
        assert run is not None
        return run.model, run.provider

    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    await world.append(journal, v.ModelSwitched(provider="other", model="m-2"))
    assert await served() == ("m-2", "other")
    counted = v.UsageTotals(input_tokens=1, output_tokens=1, model="m-2-vendor")
    await world.append(journal, v.Usage(usage=counted), v.RunParked(reason="input"))
    assert await served() == ("m-2-vendor", "other")


async def test_runs_of_a_user_come_newest_first_and_are_cut_after_the_filters(
    world: World, views: Views
) -> None:
    runs = [f"r_{i:02x}00000000000000" for i in range(6)]
    for i, run in enumerate(runs):
        await world.play(run, tenant="t1" if i < 2 else "t2", at=100 + i)
    living = Journal("r_ee00000000000000", "t1", at=1)
    await world.append(living, *opening(living.run, tenant="t1"))
    await world.catch_up(views)
    of_user = views.queries.runs_of_user
    assert [r.id for r in await of_user("u1")] == [*reversed(runs), living.run]
    assert [r.id for r in await of_user("u1", limit=2)] == [runs[5], runs[4]]
    assert [r.id for r in await of_user("u1", tenant="t1", limit=2)] == [runs[1], runs[0]]
    assert [r.id for r in await of_user("u1", "running")] == [living.run]
    assert await of_user("u1", "sleeping") == []
    assert await of_user("u2") == []


async def test_the_sweeper_sees_running_runs_by_owner_and_parking(
    world: World, views: Views
) -> None:
    working, waiting = Journal(RUN, writer="w1"), Journal(OTHER, writer="w2")
    await world.append(working, *opening(RUN))
    await world.append(waiting, *opening(OTHER), v.RunParked(reason="input"))
    await world.play("r_110000000000000c")
    await world.catch_up(views)
    running = views.queries.running_runs
    assert {r.id for r in await running()} == {RUN, OTHER}
    assert [r.id for r in await running("w2")] == [OTHER]
    assert [r.id for r in await running(unparked=True)] == [RUN]
    counts = await views.queries.live_counts()
    assert (counts.active, counts.parked, counts.per_user) == (1, 1, {("", "u1"): 1})
    await world.append(waiting, v.RunClaimed(worker="w3"))
    await world.catch_up(views)
    assert {r.id for r in await running(unparked=True)} == {RUN, OTHER}
    awaiting = v.AwaitingInput(awaiting_input=v.AwaitingInputBody(since_turn=0))
    await world.append(waiting, awaiting)
    await world.catch_up(views)
    assert {r.id for r in await running(unparked=True)} == {RUN, OTHER}, "it was not let go yet"


async def test_descendants_are_found_at_any_depth_while_they_run(
    world: World, views: Views
) -> None:
    family = {"a": "", "b": "a", "c": "b", "d": "c", "e": "a"}
    for i, (child, parent) in enumerate(family.items()):
        journal = Journal(f"r_{i:02x}0000000000000c", at=i + 1)
        ids = {"agent_id": child, "parent_agent_id": parent}
        await world.append(journal, *opening(journal.run, **ids))
        if child in "be":
            await world.append(journal, *ending())
    await world.catch_up(views)
    assert [r.agent_id for r in await views.queries.descendants("", "a")] == ["c", "d"]
    assert await views.queries.descendants("other", "a") == []


async def test_an_open_call_says_what_a_run_waits_for(world: World, views: Views) -> None:
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    call = called("t1", "Channel", '{"op":"subscribe","channel":"news"}')
    await world.append(journal, call, usage(1, 1))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.awaited_state, run.awaited_on) == ("channel", "news")
    await world.append(journal, answered("t1", "Channel"), called("t2", "Interruption"))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert (run.awaited_state, run.awaited_on) == ("", "")
    await world.append(journal, called("t3", "Interruption", '{"op":"ask","question":"?"}'))
    await world.append(journal, finished("cancelled"))
    await world.catch_up(views)
    run = await views.queries.run(RUN)
    assert run is not None
    assert run.awaited_state == ""


async def test_a_large_body_is_fetched_from_its_blob(world: World, views: Views) -> None:
    journal = Journal(RUN)
    text = "x" * 300_000
    body = b'{"type":"text","text":"%b"}' % text.encode()
    await world.store.blobs.put(body)
    await world.append(journal, *opening(RUN), v.Text(text=text))
    await world.catch_up(views)
    rows = await views.queries.transcript(SESSION)
    assert rows[-1].event == body.decode()
