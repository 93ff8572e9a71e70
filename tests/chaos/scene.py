"""What fault tests share: runs in the middle of their work, and questions to the log and servers.

Everything is real: processes, nats-server, disks; time is waited for by condition.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from events.commit import Commit, decode
from events.log import EventStore, LogError
from events.nats_api import Api
from events.nats_link import open_link
from tests.bench.deployment import Deployment, Server, eventually
from tests.chaos.clients import CONFIG, Clients, Tracked, results
from tests.chaos.invariants import settle, violations

SLOW_MOCK = {"LOOMCYCLE_MOCK_LATENCY_MS": "60", "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "0"}
"""With it a run of agent ``long`` takes at least five seconds."""

PLAIN = {"agent": "plain", "prompt": "hi"}


MASTER_KEY = "5" * 64


def deployment(
    directory: Path, *, nats_url: str = "", queue_timeout_ms: int = 30_000
) -> Deployment:
    """Agents of the kill loop, model calls slow enough to be in the middle of something."""
    environ = {**SLOW_MOCK, "LOOMCYCLE_MASTER_KEY": MASTER_KEY}
    concurrency = {**CONFIG["concurrency"], "queue_timeout_ms": queue_timeout_ms}
    config = {**CONFIG, "concurrency": concurrency}
    return Deployment(directory, config, environ, nats_url=nats_url)


def replica(made: Deployment, name: str) -> Server:
    """One more server on the same log, its data directory its own, as on another machine."""
    return made.start(environ={"LOOMCYCLE_DATA_DIR": str(made.directory / name)})


def busiest(servers: Sequence[Server]) -> Server:
    """The server that advances most runs now."""

    def active(server: Server) -> int:
        return int(httpx.get(f"{server.url}/v1/_concurrency/stats", timeout=10).json()["active"])

    return max(servers, key=active)


@asynccontextmanager
async def long_runs(servers: Sequence[Server], count: int) -> AsyncIterator[Clients]:
    """Clients of long runs, each run with some tool results behind it."""
    clients = Clients(lambda: [server.port for server in servers], seed=1, agents=["long"])
    await clients.start_one_each(count, calls=3)
    yield clients


async def all_kept(made: Deployment, clients: Clients) -> list[str]:
    """Wait for the clients' streams and the log's journals; what is wrong with them."""
    await clients.finish()
    store = await made.store("judge")
    try:
        log = await settle(store)
        return await violations(store, log, clients.runs)
    finally:
        await store.close()


async def journal(store: EventStore, run_id: str) -> list[Commit]:
    messages = await store.log.read(store.subjects.journal("", run_id))
    return [decode(message.data, message.seq) for message in messages]


async def last_writer(store: EventStore, run_id: str) -> str:
    """Who wrote the last commit of a run; "" while the log is away."""
    try:
        message = await store.log.last(store.subjects.journal("", run_id))
    except LogError:
        return ""
    return decode(message.data, message.seq).header.writer if message is not None else ""


async def writers(store: EventStore, runs: Sequence[Tracked]) -> dict[str, str]:
    """The process that wrote each run's last commit."""
    return {run.run_id: await last_writer(store, run.run_id) for run in runs}


async def progress(clients: Clients, calls: int, limit_s: float = 30.0) -> None:
    """Wait until every run has so many more tool results than now."""
    goals = [(run, results(run) + calls) for run in clients.runs]
    await eventually(
        lambda: all(results(run) >= goal or run.ended for run, goal in goals),
        f"{calls} more tool results in each run",
        limit_s,
    )


def post_plain(server: Server) -> httpx.Response:
    """One short run, read to its end."""
    return httpx.post(f"{server.url}/v1/runs", json=PLAIN, timeout=30)


def command(made: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command line of the product on this deployment."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "loomcycle.cli", *arguments, "--config", str(made.config)],
        cwd=made.directory,
        env=made.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def complete(server: Server) -> str:
    """One short run that must be completed; its id."""
    answer = post_plain(server)
    assert answer.status_code == 200, answer.text
    assert "event: done" in answer.text, answer.text
    return answer.text.partition('"run_id":"')[2].partition('"')[0]


@asynccontextmanager
async def raw_api(made: Deployment) -> AsyncIterator[Api]:
    """JetStream itself, for damage that no interface of ours offers."""
    facts = made.facts()
    link = await open_link(f"nats://127.0.0.1:{facts.port}", name="vandal", token=facts.token)
    try:
        yield Api(link)
    finally:
        await link.close()
