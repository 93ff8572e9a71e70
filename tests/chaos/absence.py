"""The log is away for half a minute under mixed load, then everything is checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from projections.views import Views, ViewSettings
from tests.bench.deployment import Deployment, eventually
from tests.bench.nats_server import NatsServer
from tests.bench.sse import BrokenOff, request
from tests.chaos.clients import CONFIG, ENVIRON, Clients
from tests.chaos.invariants import Log, settle, violations

PLAIN = {"agent": "plain", "prompt": "hi"}
BACK_WITHIN_S = 10.0


async def absence(
    directory: Path, seconds: float, seed: int, say: Callable[[str], None]
) -> list[str]:
    """What is wrong after nats-server was away for ``seconds``."""
    with (
        NatsServer(directory / "nats") as nats,
        Deployment(directory / "deployment", CONFIG, ENVIRON, nats_url=nats.url) as made,
    ):
        nats.start()
        server = made.start()
        clients = Clients(lambda: [server.port], seed)
        clients.start(8)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(nats.kill)
        found = await _refusals(server.port, seconds)
        before = len(clients.runs)
        await asyncio.to_thread(nats.start)
        back = time.monotonic()
        try:
            await eventually(lambda: len(clients.runs) > before, "a run", BACK_WITHIN_S)
        except AssertionError as cause:
            found.append(f"after the log's return: {cause}")
        took = time.monotonic() - back
        await clients.finish()
        store = await made.store("judge")
        try:
            log = await settle(store)
            found += await violations(store, log, clients.runs, long_outage=True)
            found += await view_differences(made, log)
        finally:
            await store.close()
        say(
            f"log away for {seconds:g} s, runs again after {took:.1f} s: {len(clients.runs)} runs"
            f" followed, clients met {dict(clients.tally)}"
        )
        return found


async def _refusals(port: int, seconds: float) -> list[str]:
    """Ask for a run four times a second; answers that are no 503 with Retry-After."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            status, headers, body = await request(port, "POST", "/v1/runs", PLAIN)
        except BrokenOff as cause:
            found.append(f"no answer while the log was away: {cause}")
            continue
        if status != 503 or "retry-after" not in headers:
            found.append(f"while the log was away: {status} {headers} {body!r}")
        await asyncio.sleep(0.25)
    return found


async def view_differences(made: Deployment, log: Log) -> list[str]:
    """The served views against a fold of the log into new tables."""
    settings = ViewSettings(path=str(made.data / "views"))
    views = await Views.open(settings, lambda: made.store("judge-of-views"))
    try:
        await views.barrier(log.ends, timeout=30.0)
        report = await views.verify()
        problems = (await views.status()).problems
    finally:
        await views.close()
    return [f"views: {wrong}" for wrong in (*report.differences, *problems)]
