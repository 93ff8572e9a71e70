"""Views damaged, events from the future: a rebuild or a refusal, never a wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from events.commit import Commit, NewEvent
from events.embedded import EmbeddedServer
from events.log import EventStore
from tests.bench.deployment import Deployment, Server, wait_for
from tests.chaos.clients import Clients
from tests.chaos.invariants import settle, violations
from tests.chaos.scene import (
    all_kept,
    command,
    complete,
    deployment,
    journal,
    long_runs,
    progress,
    raw_api,
)
from tests.integration.journals import Journal

pytestmark = pytest.mark.integration


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as made:
        yield made


def status_of(server: Server, run_id: str) -> httpx.Response:
    agent_id = "a_" + run_id.removeprefix("r_")
    return httpx.get(f"{server.url}/v1/agents/{agent_id}", timeout=30)


def databases(made: Deployment) -> list[Path]:
    """The files that hold tables; their journals and locks are SQLite's own business."""
    return [file for file in (made.data / "views").rglob("*") if _is_database(file)]


def _is_database(file: Path) -> bool:
    with suppress(OSError):
        return file.is_file() and file.open("rb").read(15) == b"SQLite format 3"
    return False


def overwrite(file: Path) -> None:
    """Replace everything behind the first page's header in place."""
    size = file.stat().st_size
    with file.open("r+b") as content:
        content.seek(100)
        content.write(b"\xa5" * (size - 100))


def test_a_corrupted_view_database_is_rebuilt_at_the_next_start(made: Deployment) -> None:
    server = made.start()
    runs = [complete(server) for _ in range(5)]
    wait_for(lambda: status_of(server, runs[-1]).status_code == 200, "the view")
    server.stop()
    found = databases(made)
    assert found
    for file in found:
        overwrite(file)
        for log in file.parent.glob(file.name + "-*"):
            log.unlink()
    server = made.start()
    server.wait_ready()
    assert [status_of(server, run).json()["status"] for run in runs] == ["completed"] * 5
    assert command(made, "projections", "verify").returncode == 0


async def test_a_view_database_corrupted_under_load_is_rebuilt_while_runs_go_on(
    made: Deployment,
) -> None:
    server = made.start()
    runs = [await asyncio.to_thread(complete, server) for _ in range(5)]
    async with long_runs([server], 4) as clients:
        for file in databases(made):
            overwrite(file)
        await progress(clients, 5)

        def right_or_refused() -> bool:
            answers = [status_of(server, run) for run in runs]
            assert {answer.status_code for answer in answers} <= {200, 503}, answers
            good = [a for a in answers if a.status_code == 200]
            assert all(a.json()["status"] == "completed" for a in good)
            return len(good) == len(answers)

        await asyncio.to_thread(wait_for, right_or_refused, "all answers", 30.0)
        assert await all_kept(made, clients) == []
    assert (await asyncio.to_thread(command, made, "projections", "verify")).returncode == 0


FROM_THE_FUTURE = NewEvent(type="run.teleported", body=b'{"type":"run.teleported"}')


async def test_a_run_with_an_event_from_the_future_is_left_alone_and_others_go_on(
    made: Deployment,
) -> None:
    servers = [made.start()]
    victims = Clients(lambda: [server.port for server in servers], seed=6, agents=["long"])
    await victims.start_one_each(1, calls=4)
    run_id = victims.runs[0].run_id
    async with long_runs(servers, 3) as clients:
        await victims.abandon()
        await asyncio.to_thread(made.kill_everything)
        held = await append_while_stopped(made, run_id, FROM_THE_FUTURE)
        servers[0] = await asyncio.to_thread(lambda: made.start(port=servers[0].port))
        await progress(clients, 3, limit_s=30.0)
        assert (await asyncio.to_thread(status_of, servers[0], run_id)).status_code == 503
        await asyncio.to_thread(complete, servers[0])
        store = await made.store()
        assert (await journal(store, run_id))[-1].seq == held
        await clients.finish()
        log = await settle(store, limit_s=1.0)
        assert run_id in log.unfinished()
        found = await violations(store, log, clients.runs)
        assert [text for text in found if run_id not in text] == []
        await store.close()
        refused = await asyncio.to_thread(command, made, "replay", "verify", run_id)
        assert refused.returncode == 1
        assert "run.teleported" in refused.stdout + refused.stderr


async def append_while_stopped(made: Deployment, run_id: str, event: NewEvent) -> int:
    """A commit as a newer version would have written it; its sequence."""
    embedded = await EmbeddedServer.start(made.data)
    store = await made.store()
    try:
        last = (await journal(store, run_id))[-1]
        return await store.log.append(
            store.subjects.journal("", run_id), _after(last, run_id).commit(event)
        )
    finally:
        await store.close()
        await embedded.stop()


def _after(last: Commit, run_id: str) -> Journal:
    journal = Journal(run_id, writer=last.header.writer, at=last.header.events[-1].ts)
    journal.c, journal.n, journal.prev = last.c, last.last_n, last.hash
    journal.epoch = last.header.epoch
    return journal


async def test_a_journal_whose_end_is_gone_is_noticed_by_the_views(
    made: Deployment,
) -> None:
    servers = [made.start()]
    victims = Clients(lambda: [server.port for server in servers], seed=7, agents=["long"])
    await victims.start_one_each(1, calls=6)
    run_id = victims.runs[0].run_id
    await victims.abandon()
    store = await made.store()
    reached = (await journal(store, run_id))[-1]
    await store.close()
    await asyncio.to_thread(
        wait_for, lambda: status_of(servers[0], run_id).status_code == 200, "the view"
    )
    await asyncio.to_thread(made.kill_everything)
    await drop_while_stopped(made, run_id, reached.c - 3)
    servers[0] = await asyncio.to_thread(lambda: made.start(port=servers[0].port))
    await asyncio.to_thread(wait_for, lambda: run_id in told(made), "a word", 20.0)


async def drop_while_stopped(made: Deployment, run_id: str, kept: int) -> None:
    """Delete every commit after number ``kept``."""
    embedded = await EmbeddedServer.start(made.data)
    store: EventStore = await made.store()
    try:
        async with raw_api(made) as api:
            for commit in await journal(store, run_id):
                if commit.c > kept:
                    stream = f"loom-RUNS-{commit.seq >> 38}"
                    assert await api.delete_message(stream, commit.seq)
    finally:
        await store.close()
        await embedded.stop()


def told(made: Deployment) -> str:
    status = command(made, "projections", "status")
    return made.servers[-1].tail(500) + status.stdout + status.stderr
