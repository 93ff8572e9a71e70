"""The views as they run in production: own thread, own connection, a real nats-server, SQLite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from events.log import EventStore
from events.streams import RUN_STREAM_NAMES
from projections import feed, hosts
from projections.framework import ViewUnavailable
from projections.views import Views, ViewSettings
from tests.integration.journals import Journal, ending, opening, plain_run

pytestmark = pytest.mark.integration

RUN = "r_00000000000000a1"
STREAMS = (*RUN_STREAM_NAMES, "STATE")
OpenStore = Callable[..., Awaitable[EventStore]]
OpenViews = Callable[[], Awaitable[Views]]


@pytest_asyncio.fixture
async def opened(open_store: OpenStore, tmp_path: Path) -> AsyncIterator[OpenViews]:
    views: list[Views] = []
    prefix = (await open_store()).subjects.prefix

    async def open_views() -> Views:
        async def factory() -> EventStore:
            return await open_store(f"projector-{len(views)}", prefix=prefix)

        views.append(await Views.open(ViewSettings(path=str(tmp_path / "v")), factory))
        return views[-1]

    yield open_views
    for one in views:
        await one.close()


async def play(store: EventStore, run: str) -> None:
    journal, commits = plain_run(run)
    for data in commits:
        await store.log.append(journal.subject(store.subjects), data)


async def catch_up(store: EventStore, views: Views) -> None:
    await views.barrier(await store.log.ends(STREAMS))


async def test_views_over_an_empty_log_are_ready_at_once(
    nats_store: EventStore, opened: OpenViews
) -> None:
    views = await opened()
    await views.ready()
    await catch_up(nats_store, views)
    assert await views.queries.run(RUN) is None


async def test_a_client_reads_its_own_writes(nats_store: EventStore, opened: OpenViews) -> None:
    views = await opened()
    for i in range(20):
        run = f"r_{i * 12:02x}000000000000a1"
        await play(nats_store, run)
        await catch_up(nats_store, views)
        found = await views.queries.run(run)
        assert found is not None
        assert found.status == "completed"


async def test_a_napping_thread_wakes_for_a_reader_and_for_the_end(
    nats_store: EventStore, opened: OpenViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BATCH_S", 60.0)
    naps: list[float] = []
    nap = hosts.ThreadHost._nap

    def counted(host: hosts.ThreadHost, seconds: float) -> None:
        naps.append(seconds)
        nap(host, seconds)

    monkeypatch.setattr(hosts.ThreadHost, "_nap", counted)
    views = await opened()
    await views.ready()
    async with asyncio.timeout(20):
        for i in range(4):
            before = len(naps)
            await play(nats_store, f"r_{i:02x}000000000000a1")
            while len(naps) == before:  # noqa: ASYNC110  (a thread has no asyncio.Event)
                await asyncio.sleep(0.001)
            if i < 3:
                await catch_up(nats_store, views)
        await views.close()


async def test_a_restart_goes_on_where_the_last_one_ended(
    nats_store: EventStore, opened: OpenViews
) -> None:
    journal = Journal(RUN)
    first = await opened()
    await journal.append(nats_store.log, nats_store.subjects, *opening(RUN))
    await catch_up(nats_store, first)
    await first.close()
    await journal.append(nats_store.log, nats_store.subjects, *ending())
    second = await opened()
    await catch_up(nats_store, second)
    run = await second.queries.run(RUN)
    assert run is not None
    assert (run.status, run.input_tokens, run.fault) == ("completed", 10, "")
    assert (await second.status()).rebuilds == 0
    assert (await second.verify()).equal


async def test_purged_streams_do_not_stop_a_rebuild(
    nats_store: EventStore, opened: OpenViews
) -> None:
    views = await opened()
    for run in (RUN, "r_000000000000dead"):
        await play(nats_store, run)
    await nats_store.log.purge(nats_store.subjects.journal("", "r_000000000000dead"))
    await views.rebuild(timeout=10)
    await catch_up(nats_store, views)
    assert await views.queries.run(RUN) is not None


@pytest.mark.parametrize("damage", ["overwritten", "truncated", "replaced", "deleted"])
async def test_a_file_damaged_while_in_use_is_set_aside_and_rebuilt(
    nats_store: EventStore, opened: OpenViews, tmp_path: Path, damage: str
) -> None:
    views = await opened()
    for i in range(30):
        await play(nats_store, f"r_{i:02x}000000000000a1")
    await catch_up(nats_store, views)
    before = (await views.status()).rebuilds
    folder = tmp_path / "v"
    _damage(folder / f"views-{(folder / 'serving').read_text()}.db", damage)
    for i in range(2):
        await play(nats_store, f"r_f{i}000000000000b2")
    async with asyncio.timeout(15):
        while (await views.status()).rebuilds == before:
            with contextlib.suppress(ViewUnavailable):
                await views.queries.runs_of_user("u1")
            await asyncio.sleep(0.01)
    await catch_up(nats_store, views)
    assert len(await views.queries.runs_of_user("u1")) == 32
    assert (await views.verify()).equal


def _damage(path: Path, how: str) -> None:
    match how:
        case "overwritten":
            with path.open("r+b") as file:
                file.write(b"\xde\xad" * 50_000)
            wal = Path(f"{path}-wal")
            with wal.open("r+b") as file:
                file.write(b"\xde\xad" * 50_000)
        case "truncated":
            path.open("r+b").truncate(0)
        case "replaced":
            copy = path.with_suffix(".copy")
            copy.write_bytes(b"not a database at all")
            copy.replace(path)
        case "deleted":
            path.unlink()
            Path(f"{path}-wal").unlink()


async def test_a_reader_hurries_the_writer_of_another_process(
    nats_store: EventStore, opened: OpenViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BATCH_S", 60.0)
    writer = await opened()
    await writer.ready()
    reader = await opened()
    await reader.ready()
    for views in (writer, reader):
        await views.share(nats_store.live)
    async with asyncio.timeout(20):
        for i in range(4):
            run = f"r_{i:02x}000000000000a1"
            await play(nats_store, run)
            await reader.barrier(await nats_store.log.ends(STREAMS), timeout=20)
            assert await reader.queries.run(run) is not None
    assert [(await v.status()).writer for v in (writer, reader)] == [True, False]


async def test_two_processes_share_one_file(nats_store: EventStore, opened: OpenViews) -> None:
    first, second = await opened(), await opened()
    await play(nats_store, RUN)
    await catch_up(nats_store, first)
    await catch_up(nats_store, second)
    assert {(await v.status()).writer for v in (first, second)} == {True, False}
    assert await first.queries.run(RUN) == await second.queries.run(RUN)
