"""Runs go on elsewhere: when their process dies, hangs, or is told to stop. Real processes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.log import EventStore
from tests.bench.deployment import Deployment, Server, send, wait_for
from tests.bench.nats_server import NatsServer
from tests.chaos.clients import Clients
from tests.chaos.scene import (
    all_kept,
    busiest,
    deployment,
    journal,
    long_runs,
    progress,
    replica,
    writers,
)

pytestmark = pytest.mark.integration

TAKEOVER_S = 6.0
SUSPENDED_S = 20.0


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        server.start()
        yield server


@pytest.fixture
def made(tmp_path: Path, nats: NatsServer) -> Iterator[Deployment]:
    with deployment(tmp_path / "deployment", nats_url=nats.url) as made:
        yield made


async def taken_over(
    store: EventStore, clients: Clients, before: dict[str, str], since: float
) -> tuple[str, float]:
    """The process that lost its runs, and the seconds until the last of them was claimed."""
    lost = [run for run in clients.runs if not run.ended]
    while True:
        now = await writers(store, lost)
        moved = {run: writer for run, writer in now.items() if writer not in ("", before[run])}
        gone = {before[run] for run in moved}
        stuck = [run for run in now if before[run] in gone and run not in moved]
        if gone and not stuck:
            return gone.pop(), time.monotonic() - since
        assert time.monotonic() - since < 3 * TAKEOVER_S, f"nobody took over {stuck or lost}"
        await asyncio.sleep(0.02)


async def test_another_process_takes_over_within_six_seconds_of_a_death(made: Deployment) -> None:
    servers = [replica(made, "a"), replica(made, "b")]
    async with long_runs(servers, 8) as clients:
        store = await made.store()
        before = await writers(store, clients.runs)
        victim = busiest(servers)
        servers.remove(victim)
        since = time.monotonic()
        await asyncio.to_thread(victim.kill)
        _, took = await taken_over(store, clients, before, since)
        assert took < TAKEOVER_S
        await store.close()
        assert await all_kept(made, clients) == []


async def test_what_a_process_took_over_is_taken_over_as_fast_when_it_dies_too(
    made: Deployment,
) -> None:
    servers = [replica(made, "a"), replica(made, "b")]
    async with long_runs(servers, 8) as clients:
        store = await made.store()
        before = await writers(store, clients.runs)
        victim = busiest(servers)
        heir = next(server for server in servers if server is not victim)
        servers.remove(victim)
        await asyncio.to_thread(victim.kill)
        await taken_over(store, clients, before, time.monotonic())
        servers.append(replica(made, "c"))
        servers.remove(heir)
        between = await writers(store, [run for run in clients.runs if not run.ended])
        since = time.monotonic()
        await asyncio.to_thread(heir.kill)
        _, took = await taken_over(store, clients, between, since)
        assert took < TAKEOVER_S
        await store.close()
        assert await all_kept(made, clients) == []


async def test_the_embedded_log_comes_back_with_another_owner(tmp_path: Path) -> None:
    with deployment(tmp_path) as made:
        servers = [made.start(), made.start()]
        async with long_runs(servers, 6) as clients:
            old = made.nats_pid()
            await asyncio.to_thread(servers.pop(0).kill)
            await asyncio.to_thread(
                wait_for, lambda: made.nats_pid() not in (0, old), "nats-server", 10.0
            )
            await progress(clients, 3, limit_s=15.0)
            assert await all_kept(made, clients) == []


async def test_a_suspended_worker_commits_nothing_when_it_wakes(made: Deployment) -> None:
    servers = [replica(made, "a"), replica(made, "b")]
    async with long_runs(servers, 8) as clients:
        store = await made.store()
        before = await writers(store, clients.runs)
        suspended = busiest(servers)
        servers.remove(suspended)
        since = time.monotonic()
        send(suspended.pid, signal.SIGSTOP)
        try:
            loser, took = await taken_over(store, clients, before, since)
            assert took < TAKEOVER_S
            kept = {run: writer for run, writer in before.items() if writer == loser}
            await asyncio.sleep(max(0.0, SUSPENDED_S - (time.monotonic() - since)))
        finally:
            send(suspended.pid, signal.SIGCONT)
        assert await all_kept(made, clients) == []
        for run in kept:
            commits = [commit.header for commit in await journal(store, run)]
            claim = next(c.c for c in commits if c.events[0].type == "run.claimed")
            assert loser not in {c.writer for c in commits if c.c >= claim}
        await store.close()
    suspended.wait_healthy()
    assert "continues elsewhere" in suspended.tail(200)
    assert suspended.process.poll() is None


async def test_a_terminated_process_hands_its_runs_over_and_ends(made: Deployment) -> None:
    servers = [replica(made, "a"), replica(made, "b")]
    async with long_runs(servers, 8) as clients:
        leaving = busiest(servers)
        servers.remove(leaving)
        since = time.monotonic()
        took = await asyncio.to_thread(leaving.stop)
        assert took < 10.0
        assert leaving.process.returncode == 0
        await progress(clients, 2, limit_s=TAKEOVER_S)
        assert time.monotonic() - since < took + TAKEOVER_S
        assert await all_kept(made, clients) == []


async def test_a_terminated_single_process_finishes_its_runs_after_the_restart(
    tmp_path: Path,
) -> None:
    with deployment(tmp_path) as made:
        servers: list[Server] = [made.start()]
        async with long_runs(servers, 6) as clients:
            port = servers[0].port
            assert await asyncio.to_thread(servers[0].stop) < 10.0
            servers[0] = await asyncio.to_thread(lambda: made.start(port=port))
            await progress(clients, 3, limit_s=10.0)
            assert await all_kept(made, clients) == []
            store = await made.store()
            for run in clients.runs:
                wrote = {commit.header.writer for commit in await journal(store, run.run_id)}
                assert len(wrote) == 2, wrote
            await store.close()
