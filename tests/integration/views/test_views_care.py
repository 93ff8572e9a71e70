"""Rebuild, verify, repair, versions, and several processes over one database."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from events import vocabulary as v
from events.log import EventStore
from events.memory_store import MemoryServer
from projections import feed
from projections.framework import ViewUnavailable
from projections.progress import Rebuild
from projections.sources import Source
from projections.views import PROJECTIONS, Views, ViewSettings
from tests.integration.journals import (
    Journal,
    called,
    ending,
    opening,
    usage,
)
from tests.integration.views.world import (
    OTHER,
    RUN,
    World,
    eventually,
    is_reader,
    rebuilt,
)

pytestmark = pytest.mark.integration


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


async def test_what_is_purged_before_it_is_read_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "GOALS_S", 0.01)
    waiting, go_on = asyncio.Event(), asyncio.Event()
    tail = feed.Feed._tail

    async def late(one: feed.Feed, source: Source) -> None:
        waiting.set()
        await go_on.wait()
        await tail(one, source)

    monkeypatch.setattr(feed.Feed, "_tail", late)
    await world.play(RUN)
    views = await world.open()
    await waiting.wait()
    await world.store.log.purge(world.store.subjects.journal("", RUN))
    go_on.set()
    await views.ready()
    await world.catch_up(views)
    assert await views.queries.run(RUN) is None


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
        return await rebuilt(updated, 1)

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
    await eventually(lambda: is_reader(old, "it reads but does not write"))
    assert await old.queries.run(RUN) is not None


async def test_a_second_process_reads_and_takes_over(world: World, views: Views) -> None:
    second = await world.open()
    await eventually(lambda: is_reader(second))
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
    await eventually(lambda: is_reader(second))
    await second.rebuild()
    await eventually(lambda: rebuilt(views, before + 1))


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
    await eventually(lambda: rebuilt(views, before + 1))
    await world.catch_up(views)
    assert await views.queries.run(RUN) is not None
    assert (await views.verify()).equal


async def test_views_of_a_log_that_was_replaced_are_folded_anew(world: World, views: Views) -> None:
    await world.play(RUN)
    await world.catch_up(views)
    await views.close()
    world.server = MemoryServer()
    world.store = world.server.connect("writer")
    again = await world.open()
    await eventually(lambda: rebuilt(again, 1))
    assert await again.queries.run(RUN) is None


async def test_a_log_that_lost_its_end_is_named_and_nothing_is_folded_until_it_is_accepted(
    world: World, views: Views
) -> None:
    """The rows are the only witness of what was lost; runs must not be done again."""
    await world.play(RUN)
    await world.play(OTHER)
    await world.catch_up(views)
    await views.close()
    world.server = MemoryServer()
    world.store = world.server.connect("writer")
    await world.play(OTHER)
    again = await world.open()
    with pytest.raises(ViewUnavailable, match=r"ends at sequence \d+, but \d+ was seen"):
        await eventually(lambda: cut(again))
    assert "messages are missing" in again.log_cut
    assert await again.queries.run(RUN) is not None
    await again.rebuild()
    await world.catch_up(again)
    assert again.log_cut == ""
    assert await again.queries.run(RUN) is None
    assert await again.queries.run(OTHER) is not None


async def cut(views: Views) -> bool:
    """Never true: raises what a question gets as soon as the loss is known."""
    if views.log_cut:
        await views.barrier({})
    return False


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
