"""Effects that happened before a crash and results that did not (kernel.md 5): never twice.

A process is killed between a tool's effect and the commit of its result; the next process on the
same directory goes on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from events.log import EventStore
from tests.e2e.proofs import open_log, prove_everything, text_of
from tests.e2e.readers import Client
from tests.e2e.replicas import Replica, replicas, settings
from tests.e2e.turns import Call, asked, conversation, reply
from tests.wire.gateway import until
from tests.wire.vendors import FakeVendor, environment

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {{max_concurrent_runs: 8}}
volumes:
  docs: {{path: {docs}, mode: ro}}
agents:
  counter: {{provider: anthropic, model: m-1, volumes: [docs], allowed_tools: [Memory, Grep],
    memory_scopes: [user]}}
  program:
    provider: code-js
    allowed_tools: [Memory]
    memory_scopes: [user]
    code: |
      function run(input) {{
        var first = Memory.incr({{scope: "user", key: "n"}});
        for (var i = 0, sum = 0; i < 4000000; i++) sum += i;
        var second = Memory.incr({{scope: "user", key: "n", delta: 10}});
        return first.value + " " + second.value;
      }}
"""

INCR = {"op": "incr", "scope": "user", "key": "n"}


@asynccontextmanager
async def one_replica(directory: Path, vendor: FakeVendor) -> AsyncIterator[Replica]:
    docs = directory / "docs"
    docs.mkdir()
    environ = settings(directory, **environment(vendor))
    async with replicas(directory, CONFIG.format(docs=docs), environ, "only") as (replica,):
        yield replica


async def killed_after_an_effect(
    replica: Replica, directory: Path, body: dict[str, Any], *, effects: int, delay_s: float = 0.0
) -> Client:
    """Start a run and kill its process once so many effects are stored."""
    client = Client()
    async with open_log(directory / "data") as store:
        reading = asyncio.create_task(client.start(replica.http, {**body, "user_id": "u"}))
        await until(lambda: _stored(store, effects))
        await asyncio.sleep(delay_s)
        replica.kill()
        await replica.gone()
        await asyncio.gather(reading, return_exceptions=True)
    return client


async def _stored(store: EventStore, effects: int) -> bool | None:
    return (await store.log.ends(["STATE"]))["STATE"] >= effects or None


def results_of(client: Client) -> list[Any]:
    return [json.loads(f.data["text"]) for f in client.frames if f.event == "tool_result"]


async def test_an_increment_of_a_program_is_not_repeated(tmp_path: Path) -> None:
    async with FakeVendor() as vendor, one_replica(tmp_path, vendor) as replica:
        body = {"agent": "program", "prompt": "go"}
        client = await killed_after_an_effect(replica, tmp_path, body, effects=1)
        assert results_of(client) == []
        await replica.start(settings(tmp_path, **environment(vendor)))
        await client.insist(replica.http)
        assert [result["value"] for result in results_of(client)] == [1, 11]
        assert text_of(client.frames) == "1 11"
    async with open_log(tmp_path / "data") as store:
        await prove_everything(store)


@pytest.mark.parametrize("seed", [1, 2])
async def test_parallel_increments_are_counted_once_each(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    calls = [Call(f"toolu_{n}", "Memory", {**INCR, "delta": 10**n}) for n in range(8)]
    read = Call("toolu_r", "Memory", {"op": "get", "scope": "user", "key": "n"})
    async with FakeVendor() as vendor, one_replica(tmp_path, vendor) as replica:
        vendor.script(reply("anthropic", calls=calls), reply("anthropic", asyncio.Event()))
        client = await killed_after_an_effect(
            replica, tmp_path, {"agent": "counter", "prompt": "go"},
            effects=rng.randint(1, 4), delay_s=rng.random() / 500,
        )  # fmt: skip
        vendor.replies[:] = [reply("anthropic", calls=[read]), reply("anthropic", "counted")]
        await replica.start(settings(tmp_path, **environment(vendor)))
        await client.insist(replica.http)
        assert client.frames[-1].event == "done"
        assert results_of(client)[-1]["value"] == 11111111
        told = conversation("anthropic", asked(vendor)[-1])
        seen = [json.loads(result)["value"] for result in told[2].results]
        assert len(seen) == 8
        assert max(seen) == 11111111
    async with open_log(tmp_path / "data") as store:
        await prove_everything(store)


async def test_a_finished_call_is_kept_and_a_harmless_one_runs_again(tmp_path: Path) -> None:
    slow = Call("toolu_2", "Grep", {"pattern": "(x+x+)+y$|never", "path": "."})
    count = Call("toolu_1", "Memory", INCR)
    async with FakeVendor() as vendor, one_replica(tmp_path, vendor) as replica:
        line = "x" * 2000 + "\n"
        for n in range(400):
            (tmp_path / "docs" / f"{n}.txt").write_text(line * 100)
        vendor.script(reply("anthropic", calls=[slow, count]), reply("anthropic", "done"))
        client = await killed_after_an_effect(
            replica, tmp_path, {"agent": "counter", "prompt": "go"}, effects=1, delay_s=0.05
        )
        shown = [f.data["tool_use"]["name"] for f in client.frames if f.event == "tool_result"]
        assert shown == ["Memory"]
        await replica.start(settings(tmp_path, **environment(vendor)))
        await client.insist(replica.http)
        results = {
            f.data["tool_use"]["name"]: f.data for f in client.frames if "tool_use" in f.data
        }
        assert json.loads(results["Memory"]["text"]) == {"value": 1}
        assert "is_error" not in results["Grep"]
        shown = [f.data["tool_use"]["name"] for f in client.frames if f.event == "tool_result"]
        assert shown == ["Memory", "Grep"]
        assert len(asked(vendor)) == 2
    async with open_log(tmp_path / "data") as store:
        await prove_everything(store)
