"""Figures of a budget that three replicas draw on at once, while they are being killed."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from events.log import EventStore, LogError
from events.vocabulary import BudgetRefused, Event, Unrecognised, Usage
from loomcycle.admission import terminal
from loomcycle.loading import read_commits
from tests.bench.bench import Bench
from tests.bench.deployment import MASTER_KEY, Deployment, Server
from tests.bench.nats_server import NatsServer
from tests.bench.parked import ASYNC
from tests.bench.sse import request
from tests.bench.throughput import deployment
from tests.e2e.ledgers import ledger_of
from tests.wire.journals import proofs, runs_in

REPLICAS = 3
BRANCHES, LEAVES = 3, 30
"""30 children at a time for each replica."""

STEPS = 30
LATENCY_MS = 300
KILLS = 4
LIMIT_TOKENS = 200_000
"""About half of what the children would use up."""

ENDED_S = 120.0
SPREAD_S = 20.0

FAN = """
function run(input) {
  const spawns = [];
  for (let i = 0; i < COUNT; i++) spawns.push({ name: "CHILD", prompt: "part " + i });
  const found = Agent.spawn({ op: "parallel_spawn", spawns: spawns }).results;
  return String(found.filter((child) => child.ok).length);
}
"""


class _Books(NamedTuple):
    """``spent`` by the ledger, ``used`` by the usage events; ``left`` is still reserved.

    ``kills``: replicas killed while calls were under way.
    """

    spent: int
    used: int
    left: int
    refused: int
    writers: int
    kills: int


def budget(bench: Bench) -> None:
    """3 replicas, 90 children at a time near their budget's limit, and replicas killed -9."""
    agents = {
        "root": {**_fan("branch", BRANCHES), "max_tokens_total": LIMIT_TOKENS},
        "branch": _fan("leaf", LEAVES),
        "leaf": {
            "provider": "mock",
            "model": f"mock-steps-{STEPS}",
            "max_iterations": STEPS + 1,
            "max_tokens": 64,
            "allowed_tools": ["Context"],
        },
    }
    environ = {
        "LOOMCYCLE_MOCK_LATENCY_MS": str(LATENCY_MS),
        "LOOMCYCLE_MASTER_KEY": MASTER_KEY,
    }
    concurrency = {"max_concurrent_runs": LEAVES, "max_queue_depth": 1024}
    folder = Path(tempfile.mkdtemp(dir=bench.directory))
    try:
        with NatsServer(folder) as nats:
            nats.start()
            with deployment(
                bench, environ=environ, nats_url=nats.url, agents=agents, concurrency=concurrency
            ) as made:
                replicas = [made.replica(f"replica-{n}") for n in range(REPLICAS)]
                kills = 1 if bench.quick else KILLS
                books = asyncio.run(_tree(made, replicas, kills))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.figure("budget_spent", 100 * books.spent / LIMIT_TOKENS)
    bench.figure("budget_drift", abs(books.spent - books.used))
    bench.figure("budget_reserved", books.left)
    bench.figure("budget_refused", books.refused)
    bench.figure("budget_kills", books.kills)
    bench.figure("budget_writers", books.writers)


def _fan(child: str, count: int) -> dict[str, object]:
    return {
        "provider": "code-js",
        "code": FAN.replace("COUNT", str(count)).replace("CHILD", child),
        "allowed_tools": ["Agent"],
        "max_concurrent_children": count,
    }


async def _spread_out(store: EventStore) -> None:
    """Wait until all replicas advance children: at first most are where their parents are."""
    async with asyncio.timeout(SPREAD_S):
        while await _writers(store) < REPLICAS:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _tree(made: Deployment, replicas: list[Server], kills: int) -> _Books:
    """Run one tree to its end, killing and restarting replicas meanwhile."""
    store = await made.store()
    try:
        root = await _start(replicas[0].port)
        await _until(store, began=BRANCHES * LEAVES + BRANCHES + 1)
        rng, in_time = random.Random(1), 0
        for number in range(kills):
            victim = replicas[number % REPLICAS]
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            in_time += await _spending(store, root)
            await asyncio.to_thread(victim.kill)
            replicas[number % REPLICAS] = await asyncio.to_thread(
                made.replica, f"replica-{number % REPLICAS}"
            )
            if number == 0:
                await _spread_out(store)
        await _until(store, ended=True)
        wrong = [report for report in await proofs(store) if not (report.ok and report.complete)]
        assert not wrong, wrong[:3]
        return await _books(store, root, in_time)
    finally:
        await store.close()


async def _start(port: int) -> str:
    body = {"agent": "root", "prompt": "go"}
    status, _, answer = await request(port, "POST", "/v1/runs", body, ASYNC)
    assert status == 202, answer
    return str(json.loads(answer)["run_id"])


async def _until(store: EventStore, *, began: int = 0, ended: bool = False) -> None:
    """Wait until so many runs have begun, or all that began have ended."""
    async with asyncio.timeout(ENDED_S):
        while True:
            try:
                runs = await runs_in(store)
                if not ended and len(runs) >= began:
                    return
                if ended and all([await _has_ended(store, *run) for run in runs]):
                    return
            except LogError:
                pass
            await asyncio.sleep(0.2)


async def _has_ended(store: EventStore, tenant: str, run: str) -> bool:
    last = await store.log.last(store.subjects.journal(tenant, run))
    return last is not None and terminal(last)


async def _spending(store: EventStore, root: str) -> bool:
    """Whether some run has a model call reserved."""
    ledger, _ = await ledger_of(store, root)
    return any(entry.reserved.tokens for entry in ledger.entries.values())


async def _events(store: EventStore, tenant: str, run: str) -> list[Event | Unrecognised]:
    return [
        record.event
        for commit in await read_commits(store, tenant, run)
        for record in commit.records()
    ]


async def _books(store: EventStore, root: str, kills: int) -> _Books:
    used = refused = 0
    for tenant, run in await runs_in(store):
        for event in await _events(store, tenant, run):
            if isinstance(event, Usage):
                used += event.usage.input_tokens + event.usage.output_tokens
            refused += isinstance(event, BudgetRefused)
    ledger, _ = await ledger_of(store, root)
    left = sum(entry.reserved.tokens for entry in ledger.entries.values())
    return _Books(ledger.spent.tokens, used, left, refused, await _writers(store), kills)


async def _writers(store: EventStore) -> int:
    """How many processes made commits."""
    journals = [await read_commits(store, tenant, run) for tenant, run in await runs_in(store)]
    return len({commit.header.writer for commits in journals for commit in commits})
