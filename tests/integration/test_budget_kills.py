"""A tree of runs over three processes near its budget, one of them killed: no overrun, no drift."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from events.budget import Amount
from events.log import EventStore
from loomcycle.loading import Plans, load
from tests.e2e.ledgers import ledger_of
from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.replicas import Replica, replicas, settings
from tests.wire.gateway import sse_frames
from tests.wire.journals import runs_in
from tests.wire.vendors import (
    FakeVendor,
    Hold,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    environment,
    sse,
)

pytestmark = pytest.mark.integration

LIMIT = 24_000
CHILDREN = 30

TAKEOVER_S = 60
"""For so long a busy machine may take to end the runs of a process that was killed."""

CONFIG = f"""
concurrency: {{max_concurrent_runs: 3}}
runtime: {{reader_grace_ms: 60000}}
agents:
  chief: {{provider: anthropic, model: m-1, max_tokens: 100, allowed_tools: [Agent]}}
  boss:
    provider: anthropic
    model: m-1
    max_tokens: 100
    allowed_tools: [Agent]
    max_concurrent_children: {CHILDREN}
    max_tokens_total: {LIMIT}
  hand: {{provider: anthropic, model: m-1, max_tokens: 250}}
"""

SPAWNS = {
    "op": "parallel_spawn",
    "spawns": [{"name": "hand", "prompt": f"part {i}"} for i in range(CHILDREN)],
}


SPAWN_BOSS = {"op": "spawn", "name": "boss", "prompt": "go"}


@pytest.mark.parametrize("top", ["boss", "chief"])
async def test_children_of_three_processes_stay_within_the_budget_when_one_is_killed(
    tmp_path: Path, top: str
) -> None:
    """The budget is that of the run at the top, or of its only child."""
    runs = CHILDREN + (1 if top == "boss" else 2)
    go_on = asyncio.Event()
    answer = anthropic_events([{"type": "text", "text": "ok"}], input_tokens=600, output_tokens=230)
    async with FakeVendor() as vendor:
        if top == "chief":
            vendor.script(anthropic_tool_call("Agent", SPAWN_BOSS, input_tokens=700))
        vendor.script(anthropic_tool_call("Agent", SPAWNS, input_tokens=700))
        vendor.script(*(Reply([Hold(go_on), sse(*answer)]) for _ in range(CHILDREN)))
        vendor.script(
            *(anthropic_text("ok", input_tokens=600, output_tokens=250) for _ in range(90))
        )
        environ = settings(tmp_path, **environment(vendor))
        async with replicas(tmp_path, CONFIG, environ, "one", "two", "three") as processes:
            first, second, _ = processes
            reading = asyncio.create_task(start(second, top))
            await vendor.wait_for(lambda v: len(v.requests) > 20)
            second.kill()
            await second.gone()
            await asyncio.gather(reading, return_exceptions=True)
            go_on.set()
            async with open_log(tmp_path / "data") as store:
                await come_to_their_ends(store, runs)
            await first.stop()
        async with open_log(tmp_path / "data") as store:
            await check(store)


async def start(replica: Replica, agent: str) -> None:
    reply = await replica.http.post("/v1/runs", json={"agent": agent, "prompt": "go"})
    sse_frames(reply.text)


async def come_to_their_ends(store: EventStore, count: int) -> None:
    """Asks seldom, for it reads everything; a lease has to run out first. Raises TimeoutError."""
    async with asyncio.timeout(TAKEOVER_S):
        while True:
            if await all_ended(store, count):
                return
            await asyncio.sleep(0.2)


async def all_ended(store: EventStore, count: int) -> bool:
    plans = Plans(store)
    runs = await runs_in(store)
    for tenant, run in runs:
        loaded = await load(store, plans, tenant, run)
        if loaded is None or loaded.state.finished is None:
            return False
    return len(runs) == count


async def check(store: EventStore) -> None:
    """What the ledger says is what the journals say, and within the limit."""
    await prove_everything(store)
    plans = Plans(store)
    spent: dict[str, int] = {}
    refused = 0
    holder = ""
    for tenant, run in await runs_in(store):
        loaded = await load(store, plans, tenant, run)
        assert loaded is not None
        state = loaded.state
        refused += bool(state.budget_refused)
        if state.started.agent == "chief":
            continue
        holder = run if state.plan.budget else holder
        spent[run] = sum(u.input_tokens + u.output_tokens for u in state.spend.values())
    ledger, _ = await ledger_of(store, holder)
    told = {run: entry.spent.tokens for run, entry in ledger.entries.items()}
    assert {run: told.get(run, 0) for run in spent} == spent
    assert all(entry.reserved == Amount() for entry in ledger.entries.values())
    assert ledger.spent.tokens == sum(spent.values()) <= LIMIT
    assert refused > 0, json.dumps(spent)
    assert sum(tokens > 0 for tokens in spent.values()) > CHILDREN // 2
