"""Starts that meet an absent log: who was refused, or left, has no run that goes on afterwards."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.commit import Commit
from events.vocabulary import RunFinished, RunWithdrawn
from tests.bench.deployment import Deployment, Server, answers, eventually, send, wait_for
from tests.bench.nats_server import NatsServer
from tests.chaos.clients import CONFIG, Clients
from tests.chaos.invariants import Log
from tests.chaos.scene import MASTER_KEY, SLOW_MOCK, all_kept

pytestmark = pytest.mark.integration

AWAY_S = 4.5
"""Long enough that attempts which become rare are far apart when the log is back."""

STARTS = 5
DEPTH = 4

CAP = {"max_concurrent_runs_per_user": 50}
"""With it, starts of named users go through the queue; without it, those of a busy process."""


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        server.start()
        yield server


def deployment(directory: Path, nats: NatsServer, **concurrency: int) -> Deployment:
    config: dict[str, Any] = {
        **CONFIG,
        "concurrency": {"max_concurrent_runs": 4, "max_queue_depth": DEPTH, **concurrency},
        "runtime": {"reader_grace_ms": 300},
    }
    environ = {**SLOW_MOCK, "LOOMCYCLE_MASTER_KEY": MASTER_KEY}
    return Deployment(directory, config, environ, nats_url=nats.url)


def serving(made: Deployment, agent: str) -> Server:
    """A server that has run ``agent``: it knows its plan without asking the log."""
    server = made.start()
    server.wait_ready()
    assert "event: done" in post(server, agent).text
    return server


def post(server: Server, agent: str = "plain", *, timeout_s: float = 30.0) -> httpx.Response:
    body = {"agent": agent, "prompt": "hi", "user_id": "u1"}
    return httpx.post(f"{server.url}/v1/runs", json=body, timeout=timeout_s)


def standing(server: Server) -> dict[str, Any]:
    stats: dict[str, Any] = httpx.get(f"{server.url}/v1/_concurrency/stats", timeout=30).json()
    return stats


async def endings(made: Deployment, runs: int, limit_s: float = 15.0) -> Counter[str]:
    """How the log's runs ended, once there are so many of them and all have."""
    store = await made.store("judge")
    try:
        deadline = time.monotonic() + limit_s
        while True:
            log = await Log.read(store)
            if len(log.journals) == runs and not log.unfinished():
                return Counter(_ending(commits) for commits in log.journals.values())
            assert time.monotonic() < deadline, (sorted(log.journals), log.unfinished())
            await asyncio.sleep(0.1)
    finally:
        await store.close()


def _ending(commits: Sequence[Commit]) -> str:
    match commits[-1].records()[-1].event:
        case RunFinished(status=status):
            return status
        case RunWithdrawn():
            return "withdrawn"
    raise AssertionError(f"{commits[-1].run} has not ended")


async def test_a_start_that_was_told_503_never_runs_when_the_log_is_back(
    tmp_path: Path, nats: NatsServer
) -> None:
    with deployment(tmp_path / "deployment", nats, max_concurrent_runs=4 * STARTS) as made:
        server = serving(made, "plain")
        await asyncio.to_thread(nats.kill)
        for _ in range(STARTS):
            answer = await asyncio.to_thread(post, server)
            assert answer.status_code == 503, answer.text
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(nats.start)
        assert await endings(made, 1 + STARTS) == {"completed": 1, "withdrawn": STARTS}


@pytest.mark.parametrize("cap", [{}, CAP], ids=["busy", "capped"])
async def test_posts_that_failed_leave_no_place_taken_in_the_queue(
    tmp_path: Path, nats: NatsServer, cap: dict[str, int]
) -> None:
    with deployment(tmp_path / "deployment", nats, **cap) as made:
        server = serving(made, "plain")
        clients = Clients(lambda: [server.port], seed=1, agents=["steps"])
        await clients.start_one_each(3, calls=3)
        await asyncio.to_thread(nats.kill)
        for _ in range(3 * DEPTH):
            answer = await asyncio.to_thread(post, server)
            assert answer.status_code == 503, answer.text
        await asyncio.to_thread(nats.start)
        await asyncio.to_thread(server.wait_ready)
        assert (await asyncio.to_thread(standing, server))["queued"] == 0
        posts = await asyncio.gather(*(asyncio.to_thread(post, server) for _ in range(DEPTH)))
        assert [answer.status_code for answer in posts] == [200] * DEPTH, posts[-1].text
        assert await all_kept(made, clients) == []
        idle = {"active": 0, "queued": 0}
        await asyncio.to_thread(wait_for, lambda: standing(server) == idle, "an idle server")


async def test_a_client_that_leaves_while_its_start_is_posted_leaves_no_run(
    tmp_path: Path, nats: NatsServer
) -> None:
    with deployment(tmp_path / "deployment", nats, **CAP) as made:
        server = serving(made, "steps")
        send(nats.pid, signal.SIGSTOP)
        with suppress(httpx.ReadTimeout):
            await asyncio.to_thread(post, server, "steps", timeout_s=0.5)
            raise AssertionError("the log is not away")
        for _ in range(3):  # by then the server has seen that its client is gone
            assert await asyncio.to_thread(answers, server.port)
        send(nats.pid, signal.SIGCONT)
        found = await endings(made, 2)
        assert found - Counter(["completed"]) in ({"withdrawn": 1}, {"cancelled": 1})


async def test_the_run_of_a_client_that_left_during_an_outage_is_cancelled_after_it(
    tmp_path: Path, nats: NatsServer
) -> None:
    with deployment(tmp_path / "deployment", nats) as made:
        server = serving(made, "plain")
        clients = Clients(lambda: [server.port], seed=1, agents=["long"])
        await clients.start_one_each(1, calls=3)
        await asyncio.to_thread(nats.kill)
        await clients.abandon()
        await eventually(lambda: "has no reader" in server.tail(200), "an attempt to cancel")
        await asyncio.to_thread(nats.start)
        assert await endings(made, 2) == {"completed": 1, "cancelled": 1}
