"""What every back end of the views must do, over SQLite and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec import UNSET, Raw

from events import state
from events import vocabulary as v
from events.commit import NewEvent
from events.log import EventStore
from events.memory_store import MemoryServer
from events.streams import RUN_STREAM_NAMES
from projections.framework import ViewHeld, ViewUnavailable
from projections.progress import Rebuild
from projections.views import PROJECTIONS, Views, ViewSettings
from tests.integration.journals import (
    SECOND,
    Journal,
    answered,
    called,
    ending,
    finished,
    opening,
    plain_run,
    usage,
)
from tests.integration.postgres import fresh_database, running_server

pytestmark = pytest.mark.integration

RUN = "r_00000000000000a1"
SESSION = "s_00000000000000a1"
OTHER = "r_ff000000000000b2"
STREAMS = (*RUN_STREAM_NAMES, "STATE")


@pytest.fixture(scope="module")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ViewSettings:
    if request.param == "sqlite":
        return ViewSettings(path=str(tmp_path / "views"))
    server = request.getfixturevalue("postgres_server")
    return ViewSettings(backend="postgres", dsn=fresh_database(server))


class World:
    """One log in memory and any number of views over it, as several processes would see it."""

    def __init__(self, settings: ViewSettings) -> None:
        self.settings = settings
        self.server = MemoryServer()
        self.store: EventStore = self.server.connect("writer")
        self.opened: list[Views] = []

    async def open(self, **options: Any) -> Views:
        async def factory() -> EventStore:
            return self.server.connect(f"views-{len(self.opened)}")

        views = await Views.open(self.settings, factory, own_thread=False, **options)
        self.opened.append(views)
        return views

    async def append(self, journal: Journal, *events: v.Event | NewEvent) -> int:
        return await journal.append(self.store.log, self.store.subjects, *events)

    async def play(self, run: str, **fields: Any) -> None:
        """A whole plain run."""
        journal, commits = plain_run(run, **fields)
        for data in commits:
            await self.store.log.append(journal.subject(self.store.subjects), data)

    async def remember(self, key: str, value: str | None, **fields: Any) -> int:
        given: dict[str, Any] = {
            "scope": "user",
            "scope_id": "u1",
            "op": "set",
            "created_at_ns": 1,
            "updated_at_ns": 2,
        } | fields
        event = state.MemoryWritten(
            key=key, value=UNSET if value is None else Raw(value.encode()), **given
        )
        subject = self.store.subjects.memory(event.tenant, event.scope, event.scope_id, key)
        return await self.store.log.append(subject, state.encode(event))

    async def catch_up(self, views: Views) -> None:
        await views.barrier(await self.store.log.ends(STREAMS))


@pytest_asyncio.fixture
async def world(settings: ViewSettings) -> AsyncIterator[World]:
    world = World(settings)
    yield world
    for views in world.opened:
        await views.close()


@pytest_asyncio.fixture
async def views(world: World) -> Views:
    views = await world.open()
    await views.ready()
    return views


async def eventually(check: Callable[[], Awaitable[bool]], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await check():  # noqa: ASYNC110  (another process' state has no event)
            await asyncio.sleep(0.005)


# --- runs, sessions, transcripts --------------------------------------------------------------


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
    await world.play(OTHER, agent_id="mine", tenant="t1", started_ns=5)
    await world.play(RUN, agent_id="mine", tenant="t1", started_ns=7)
    await world.play("r_880000000000000c", agent_id="mine", tenant="t2", started_ns=9)
    await world.catch_up(views)
    by_handle = views.queries.run_by_agent_id
    found = [await by_handle(tenant, "mine") for tenant in ("t1", "t2", None)]
    assert [run.id if run else "" for run in found] == [RUN, *["r_880000000000000c"] * 2]
    assert await by_handle("t3", "mine") is None


async def test_runs_of_a_user_come_newest_first_and_are_cut_after_the_filters(
    world: World, views: Views
) -> None:
    runs = [f"r_{i:02x}00000000000000" for i in range(6)]
    for i, run in enumerate(runs):
        await world.play(run, tenant="t1" if i < 2 else "t2", started_ns=100 + i)
    living = Journal("r_ee00000000000000", "t1")
    await world.append(living, *opening(living.run, tenant="t1", started_ns=1))
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
    parking = NewEvent(type="awaiting_input", body=b'{"type":"x"}', must_understand=False)
    working, waiting = Journal(RUN, writer="w1"), Journal(OTHER, writer="w2")
    await world.append(working, *opening(RUN))
    await world.append(waiting, *opening(OTHER), parking)
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


async def test_descendants_are_found_at_any_depth_while_they_run(
    world: World, views: Views
) -> None:
    family = {"a": "", "b": "a", "c": "b", "d": "c", "e": "a"}
    for i, (child, parent) in enumerate(family.items()):
        journal = Journal(f"r_{i:02x}0000000000000c")
        ids = {"agent_id": child, "parent_agent_id": parent, "started_ns": i + 1}
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


# --- memory -----------------------------------------------------------------------------------


async def test_memory_rows_follow_their_writes(world: World, views: Views) -> None:
    await world.remember("k", '{"a": 1}')
    await world.remember("gone", "1")
    await world.remember("k", "null", updated_at_ns=9)
    await world.remember("gone", None)
    await world.remember("k", "2", tenant="t2")
    await world.catch_up(views)
    row = await views.queries.memory_get("", "user", "u1", "k", now_ns=10)
    assert row is not None
    assert (row.value, row.created_ns, row.updated_ns, row.expires_ns) == ("null", 1, 9, None)
    assert await views.queries.memory_get("", "user", "u1", "gone", now_ns=10) is None
    assert await views.queries.memory_usage("", "user", "u1", now_ns=10) == (1, 5)
    scopes = await views.queries.memory_scopes("user", now_ns=10)
    assert [(s.tenant, s.key_count) for s in scopes] == [("", 1), ("t2", 1)]


async def test_expiry_is_decided_by_the_reader(world: World, views: Views) -> None:
    await world.remember("k", "1", expires_at_ns=100)
    await world.catch_up(views)
    get = views.queries.memory_get
    assert await get("", "user", "u1", "k", now_ns=99) is not None
    assert await get("", "user", "u1", "k", now_ns=100) is None
    rows, truncated = await views.queries.memory_list("", "user", "u1", limit=9, now_ns=100)
    assert (rows, truncated) == ([], False)


async def test_memory_is_listed_in_byte_order_with_a_literal_prefix(
    world: World, views: Views
) -> None:
    keys = ["a%", "a_b", "ab", "aé", "a\0z", "A", "b" * 80, "", "aé\U0001f600"]
    for key in keys:
        await world.remember(key, "1")
    await world.catch_up(views)

    async def listed(prefix: str, limit: int = 100) -> tuple[list[str], bool]:
        rows, truncated = await views.queries.memory_list(
            "", "user", "u1", prefix=prefix, limit=limit, now_ns=5
        )
        return [r.key for r in rows], truncated

    assert await listed("") == (sorted(keys, key=str.encode), False)
    assert await listed("a_") == (["a_b"], False)
    assert await listed("a%") == (["a%"], False)
    assert await listed("aé") == (["aé", "aé\U0001f600"], False)
    assert await listed("a", limit=6) == (["a\0z", "a%", "a_b", "ab", "aé", "aé\U0001f600"], False)
    assert (await listed("a", limit=5))[1]


# --- damage and the future --------------------------------------------------------------------


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
    await eventually(lambda: _rebuilt(updated, 1))
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


# --- rebuild, verify, repair, several processes -----------------------------------------------


async def _rebuilt(views: Views, times: int) -> bool:
    return (await views.status()).rebuilds == times


async def fill(world: World) -> None:
    """A log with a little of everything."""
    for i in range(12):
        await world.play(f"r_{i * 21:02x}0000000000000c", user_id=f"u{i % 3}")
    journal = Journal(RUN)
    await world.append(journal, *opening(RUN))
    call = called("t1", "Channel", '{"op":"subscribe","channel":"c"}')
    await world.append(journal, call, usage(7, 7))
    damaged = Journal(OTHER)
    await world.append(damaged, *opening(OTHER))
    damaged.commit(v.Text(text="lost"))
    await world.append(damaged, *ending())
    for i in range(8):
        await world.remember(f"k{i % 5}", None if i == 6 else str(i))


async def test_a_rebuild_gives_the_same_rows(world: World, views: Views) -> None:
    await fill(world)
    await world.catch_up(views)
    before = await views.verify()
    assert before.equal
    assert before.rows["runs"] == 14
    assert before.rows["awaits"] == 1
    await views.rebuild()
    await world.catch_up(views)
    after = await views.verify()
    assert after == before


async def test_a_rebuild_does_not_wait_for_purged_messages(world: World, views: Views) -> None:
    await world.play(RUN)
    await world.play("r_0000000000000c0d")
    await world.catch_up(views)
    await world.store.log.purge(world.store.subjects.journal("", "r_0000000000000c0d"))
    await views.rebuild()
    await world.catch_up(views)
    assert await views.queries.run(RUN) is not None
    await world.play("r_0000000000000c0e")
    await world.catch_up(views)
    assert await views.queries.run("r_0000000000000c0e") is not None
    assert (await views.verify()).equal


async def _execute(settings: ViewSettings, sql: str) -> None:
    """What somebody does to the served tables behind our back."""
    if settings.backend == "sqlite":
        folder = Path(settings.path)
        slot = (folder / "serving").read_text()
        with sqlite3.connect(folder / f"views-{slot}.db") as db:
            db.execute(sql)
        db.close()
        return
    connection = await asyncpg.connect(settings.dsn)
    slot = await connection.fetchval("SELECT slot FROM loomcycle_views.serving")
    await connection.execute(f"SET search_path TO loomcycle_views_{slot}")
    await connection.execute(sql)
    await connection.close()


async def test_verify_names_a_changed_a_missing_and_an_added_row(
    world: World, views: Views
) -> None:
    await fill(world)
    await world.catch_up(views)
    await _execute(world.settings, f"UPDATE runs SET status = 'failed' WHERE run_id = '{RUN}'")
    await _execute(world.settings, "DELETE FROM transcripts WHERE type = 'done'")
    await _execute(world.settings, "INSERT INTO awaits VALUES ('z', 'z', 1, 'x', 'x')")
    report = await views.verify()
    assert not report.equal
    found = {d.table: d for d in report.differences}
    assert set(found) == {"runs", "transcripts", "awaits"}
    assert "'failed'" in (found["runs"].found or "")
    assert "'running'" in (found["runs"].expected or "")
    assert found["awaits"].expected is None


async def test_a_new_version_is_folded_while_the_old_rows_serve(world: World) -> None:
    views = await world.open()
    await fill(world)
    await world.catch_up(views)
    await views.close()
    seen: list[Rebuild] = []
    newer = tuple(replace(p, version=p.version + 1) for p in PROJECTIONS)
    updated = await world.open(projections=newer, on_rebuild=seen.append)
    answers = 0

    async def swapped() -> bool:
        nonlocal answers
        run = await updated.queries.run(RUN)
        assert run is not None
        answers += 1
        return await _rebuilt(updated, 1)

    await eventually(swapped)
    assert answers > 0
    assert seen[-1].done == seen[-1].total > 0
    await world.catch_up(updated)
    assert (await updated.verify()).equal


async def test_an_older_version_reads_newer_tables_and_does_not_write(world: World) -> None:
    newer = tuple(replace(p, version=p.version + 1) for p in PROJECTIONS)
    updated = await world.open(projections=newer)
    await world.play(RUN)
    await world.catch_up(updated)
    await updated.close()
    old = await world.open()
    await eventually(lambda: _is_reader(old, "it reads but does not write"))
    assert await old.queries.run(RUN) is not None


async def _is_reader(views: Views, detail: str = "") -> bool:
    status = await views.status()
    return status.state == "reader" and detail in status.detail


async def test_a_second_process_reads_and_takes_over(world: World, views: Views) -> None:
    second = await world.open()
    await eventually(lambda: _is_reader(second))
    await world.play(RUN)
    await world.catch_up(second)
    assert await second.queries.run(RUN) is not None
    await views.close()
    await world.play(OTHER)
    await world.catch_up(second)
    assert await second.queries.run(OTHER) is not None
    assert (await second.status()).writer


async def test_a_reader_sees_the_tables_that_another_process_swapped_in(
    world: World, views: Views
) -> None:
    second = await world.open()
    await world.play(RUN)
    await world.catch_up(second)
    assert await second.queries.run(RUN) is not None
    await views.rebuild()
    await world.play(OTHER)
    await world.catch_up(second)
    assert await second.queries.run(OTHER) is not None


async def test_a_rebuild_can_be_asked_from_a_process_that_does_not_write(
    world: World, views: Views
) -> None:
    second = await world.open()
    await world.play(RUN)
    await world.catch_up(second)
    before = (await views.status()).rebuilds
    await eventually(lambda: _is_reader(second))
    await second.rebuild()
    await eventually(lambda: _rebuilt(views, before + 1))


async def test_a_barrier_that_is_not_reached_in_time_says_so(world: World, views: Views) -> None:
    with pytest.raises(ViewUnavailable, match="serving"):
        await views.barrier({"RUNS-0": 10**9}, timeout=0.02)


async def _destroy(settings: ViewSettings) -> None:
    if settings.backend == "sqlite":
        for file in ("views-a.db", "views-b.db"):
            Path(settings.path, file).unlink(missing_ok=True)  # noqa: ASYNC240
        return
    connection = await asyncpg.connect(settings.dsn)
    for slot in "ab":
        await connection.execute(f"DROP SCHEMA IF EXISTS loomcycle_views_{slot} CASCADE")
    await connection.close()


async def test_deleted_tables_come_back_from_the_log(world: World, views: Views) -> None:
    await fill(world)
    await world.catch_up(views)
    before = (await views.status()).rebuilds
    await _destroy(world.settings)
    await eventually(lambda: _rebuilt(views, before + 1))
    await world.catch_up(views)
    assert await views.queries.run(RUN) is not None
    assert (await views.verify()).equal


async def test_views_of_a_log_that_lost_its_end_are_folded_anew(world: World, views: Views) -> None:
    """Otherwise they would show what never happened, and miss what happens next."""
    await world.play(RUN)
    await world.play(OTHER)
    await world.catch_up(views)
    await views.close()
    world.server = MemoryServer()
    world.store = world.server.connect("writer")
    await world.play(OTHER)
    again = await world.open()
    await eventually(lambda: _rebuilt(again, 1))
    await world.catch_up(again)
    assert await again.queries.run(RUN) is None
    assert await again.queries.run(OTHER) is not None


async def test_there_is_no_answer_before_there_is_a_view(settings: ViewSettings) -> None:
    async def unreachable() -> EventStore:
        raise OSError("connection refused")

    views = await Views.open(settings, unreachable, own_thread=False)
    with pytest.raises(ViewUnavailable):
        await views.queries.run(RUN)
    with pytest.raises(ViewUnavailable, match="connection refused"):
        await views.ready(timeout=0.05)
    assert (await views.status()).state == "failing"
    await views.close()
