"""Parents and children whose processes die: every child runs once, the answer stays the same."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from events.embedded import EmbeddedServer
from events.log import EventStore
from events.vocabulary import ChildStarted
from loomcycle.loading import read_commits
from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.replicas import Replica, replicas, settings
from tests.e2e.turns import reply
from tests.wire.gateway import Json, until
from tests.wire.journals import runs_in
from tests.wire.vendors import FakeVendor, Reply, environment

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {max_concurrent_runs: 4}
agents:
  helper: {provider: anthropic, model: m-1}
  fan:
    provider: code-js
    allowed_tools: [Agent]
    max_concurrent_children: 32
    code: |
      function run(input) {
        const task = JSON.parse(input.prompt);
        const spawns = [];
        for (let i = 0; i < task.width; i++)
          spawns.push(task.levels > 1
            ? {name: "fan", prompt: JSON.stringify({width: task.width, levels: task.levels - 1})}
            : {name: "helper", prompt: "p" + i});
        const found = Agent.spawn({op: "parallel_spawn", spawns: spawns}).results;
        return "(" + found.map(x => x.ok ? x.output.split("\\n")[1] : x.error).join(" ") + ")";
      }
"""


class Tree:
    """A fan-out of helpers that wait for ``go_on`` after their first word."""

    def __init__(self, width: int, levels: int) -> None:
        self.prompt = json.dumps({"width": width, "levels": levels})
        self.leaves = width**levels
        self.runs = sum(width**level for level in range(levels + 1))
        self.answer = "leaf"
        for _ in range(levels):
            self.answer = f"({' '.join([self.answer] * width)})"
        self.go_on = asyncio.Event()

    def replies(self) -> list[Reply]:
        """Twice as many as there are leaves: calls of the dead are made again."""
        return [reply("anthropic", "le", self.go_on, "af") for _ in range(2 * self.leaves)]

    async def begin(self, http: httpx.AsyncClient) -> Json:
        body = {"agent": "fan", "prompt": self.prompt}
        response = await http.post("/v1/runs", json=body, headers={"Prefer": "respond-async"})
        assert response.status_code == 202, response.text
        ids: Json = response.json()
        return ids


def asked(vendor: FakeVendor) -> int:
    return sum(request.method == "POST" for request in vendor.requests)


async def answer_of(store: EventStore, run: str) -> str:
    """The last text of a run, as its journal has it."""
    texts = [
        json.loads(record.body)["text"]
        for commit in await read_commits(store, "", run)
        for record in commit.records()
        if record.type == "text"
    ]
    return str(texts[-1])


async def check(data: Path, tree: Tree, run: str) -> set[str]:
    """Prove all journals; every child once, each result used once. Returns the writers."""
    async with open_log(data) as store:
        assert await answer_of(store, run) == tree.answer
        reports = await prove_everything(store)
        assert len(reports) == tree.runs
        writers: set[str] = set()
        begun: Counter[str] = Counter()
        for tenant, each in await runs_in(store):
            kinds: Counter[str] = Counter()
            for commit in await read_commits(store, tenant, each):
                writers.add(commit.header.writer)
                for record in commit.records():
                    kinds[record.type] += 1
                    if isinstance(record.event, ChildStarted):
                        begun[record.event.run] += 1
            assert kinds["run.finished"] == kinds["run.started"] == 1
            assert kinds["tool_result"] == kinds["tool_call"] <= 1
        assert set(begun.values()) == {1}
        assert len(begun) == tree.runs - 1
        return writers


async def test_a_tree_survives_the_death_of_the_only_process(tmp_path: Path) -> None:
    tree, data = Tree(3, 2), tmp_path / "data"
    data.mkdir()
    server = await EmbeddedServer.start(data)
    async with FakeVendor(*tree.replies()) as vendor:
        environ = settings(tmp_path, **environment(vendor))
        async with replicas(tmp_path, CONFIG, environ, "first") as (first,):
            ids = await tree.begin(first.http)
            await vendor.wait_for(lambda v: asked(v) == tree.leaves)
            first.kill()
            await first.gone()
            async with replicas(tmp_path, CONFIG, environ, "second") as (second,):
                tree.go_on.set()
                assert (await second.ended(ids["agent_id"]))["status"] == "completed"
    await check(data, tree, ids["run_id"])
    await server.stop()


async def until_elsewhere(store: EventStore, count: int) -> dict[str, list[str]]:
    """Writer -> the runs that it wrote last, once ``count`` processes hold some."""

    async def spread() -> dict[str, list[str]] | None:
        held: dict[str, list[str]] = {}
        for tenant, run in await runs_in(store):
            held.setdefault((await read_commits(store, tenant, run))[-1].header.writer, []).append(
                run
            )
        return held if len(held) >= count else None

    return await until(spread)


@pytest.mark.parametrize("victim", ["parent", "helper"])
async def test_children_elsewhere_and_the_death_of_either_side(tmp_path: Path, victim: str) -> None:
    """More children than the parent's process has room for: some are advanced elsewhere."""
    tree, data = Tree(9, 2), tmp_path / "data"
    data.mkdir()
    server = await EmbeddedServer.start(data)
    async with FakeVendor(*tree.replies()) as vendor:
        environ = settings(tmp_path, **environment(vendor))
        async with replicas(tmp_path, CONFIG, environ, "one", "two") as both:
            ids = await tree.begin(both[0].http)
            async with open_log(data) as store:
                held = await until_elsewhere(store, 2)
            assert sorted(map(len, held.values()))[0] > 0
            await vendor.wait_for(lambda v: asked(v) >= 60)
            died: Replica = both[0] if victim == "parent" else both[1]
            lives: Replica = both[1] if victim == "parent" else both[0]
            died.kill()
            tree.go_on.set()
            assert (await lives.ended(ids["agent_id"]))["status"] == "completed"
    writers = await check(data, tree, ids["run_id"])
    assert len(writers) == 2
    await server.stop()


async def test_cancelling_on_another_replica_reaches_every_level(tmp_path: Path) -> None:
    tree, data = Tree(3, 2), tmp_path / "data"
    data.mkdir()
    server = await EmbeddedServer.start(data)
    async with FakeVendor(*tree.replies()) as vendor:
        environ = settings(tmp_path, **environment(vendor))
        async with replicas(tmp_path, CONFIG, environ, "one", "two") as (one, two):
            ids = await tree.begin(one.http)
            await vendor.wait_for(lambda v: asked(v) >= tree.leaves)
            response = await two.http.post(f"/v1/agents/{ids['agent_id']}/cancel")
            assert response.json()["cancelled_count"] == tree.runs
            assert (await two.ended(ids["agent_id"]))["status"] == "cancelled"
            for cascaded in response.json()["cascaded"]:
                assert (await two.ended(cascaded))["status"] == "cancelled"
    async with open_log(data) as store:
        assert len(await prove_everything(store)) == tree.runs
    await server.stop()
