"""The log is away, or takes no more: a clear answer meanwhile, and work goes on by itself after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.bench.deployment import Server, eventually, wait_for
from tests.bench.nats_server import NatsServer
from tests.chaos.clients import Clients
from tests.chaos.scene import PLAIN, all_kept, deployment, long_runs, post_plain, progress

pytestmark = pytest.mark.integration

AWAY_S = 8.0


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        yield server


async def test_an_absent_log_means_503_with_retry_after_and_no_accepted_run_is_lost(
    tmp_path: Path, nats: NatsServer
) -> None:
    nats.start()
    with deployment(tmp_path / "deployment", nats_url=nats.url) as made:
        server = made.start()
        async with long_runs([server], 6) as clients:
            await asyncio.to_thread(nats.kill)
            until = time.monotonic() + AWAY_S
            while time.monotonic() < until:
                answer = await asyncio.to_thread(post_plain, server)
                assert answer.status_code == 503, answer.text
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.text.strip()
                assert (await _get(server, "/healthz")).status_code == 200
                await asyncio.sleep(0.2)
            assert (await _get(server, "/readyz")).status_code == 503
            await asyncio.to_thread(nats.start)
            await progress(clients, 3, limit_s=15.0)
            answer = await asyncio.to_thread(post_plain, server)
            assert answer.status_code == 200
            assert "event: done" in answer.text
            assert await all_kept(made, clients) == []


async def test_a_full_disk_is_said_clearly_and_work_goes_on_when_there_is_room(
    tmp_path: Path, nats: NatsServer
) -> None:
    nats.start(max_file_store="3MB")
    with deployment(tmp_path / "deployment", nats_url=nats.url, queue_timeout_ms=3000) as made:
        server = made.start()
        clients = Clients(lambda: [server.port], seed=1, agents=["plain", "steps"])
        clients.start(8)
        await eventually(lambda: "insufficient resources" in server.tail(5), "a full store", 60.0)
        answer = await asyncio.to_thread(_refused, server)
        assert int(answer.headers["retry-after"]) >= 1
        assert any(word in answer.text for word in ("full", "resources", "storage", "limit"))
        assert (await _get(server, "/healthz")).status_code == 200
        await asyncio.to_thread(nats.kill)
        await asyncio.to_thread(nats.start)
        await asyncio.to_thread(wait_for, lambda: _completes(server), "runs after the repair", 20.0)
        assert await all_kept(made, clients) == []


async def _get(server: Server, path: str) -> httpx.Response:
    return await asyncio.to_thread(httpx.get, f"{server.url}{path}", timeout=30)


def _refused(server: Server) -> httpx.Response:
    """The first 503; runs before it may still fit in."""
    deadline = time.monotonic() + 20.0
    while True:
        answer = httpx.post(f"{server.url}/v1/runs", json=PLAIN, timeout=40)
        if answer.status_code == 503:
            return answer
        assert time.monotonic() < deadline, answer.text


def _completes(server: Server) -> bool:
    answer = post_plain(server)
    return answer.status_code == 200 and "event: done" in answer.text
