"""What passes between parents and children: bounds, secrets, and the record of a fan-out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from events.plan import Compaction, RunPlan
from events.vocabulary import ChildStarted, RunStarted
from loomcycle.loading import read_commits
from tests.e2e.secrets import assert_no_seals, assert_not_in_streams, assert_not_on_disk
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, serving, sse_frames, until
from tests.wire.vendors import (
    FakeVendor,
    anthropic_text,
    environment,
    openai_text,
    openai_tool_call,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
volumes:
  docs: {path: %(docs)s, mode: rw}
  notes: {path: %(notes)s, mode: ro}
agents:
  model: {provider: openai, model: m-1}
  echo:
    provider: code-js
    code: |
      function run(input) { return "heard " + input.prompt; }
  reader: {provider: mock, model: mock-generic, volumes: [docs, notes]}
  anywhere: {provider: mock, model: mock-generic}
  terse:
    provider: mock
    model: mock-generic
    compaction: {enabled: true, keep_last_n: 9, target_percentage: 20}
  small: {provider: openai, model: m-1, compaction: {model: m-tiny}}
  foreign: {provider: anthropic, model: m-2, compaction: {model: m-own}}
  lead:
    provider: openai
    model: m-1
    allowed_tools: [Agent]
    compaction: {model: m-small, keep_last_n: 3}
  caller:
    provider: code-js
    allowed_tools: [Agent]
    volumes: [docs]
    compaction: {keep_last_n: 3}
    code: |
      function run(input) {
        try { return Agent.spawn(JSON.parse(input.prompt)); }
        catch (e) { return "refused: " + e.message; }
      }
"""

TOKEN = "ghp-a-person-s-own-token-1234567890"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inherit")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(directory: Path, vendor: FakeVendor) -> AsyncIterator[GatewayUnderTest]:
    places = {name: directory / name for name in ("docs", "notes")}
    for place in places.values():
        place.mkdir()
    variables = {
        **environment(vendor),
        "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
        "LOOMCYCLE_RESUME_FANOUT": "1",
    }
    async with serving(directory, CONFIG % places, variables) as gateway:
        yield gateway


def said(frames: list[SseFrame]) -> str:
    return "".join(f.data["text"] for f in frames if f.event == "text")


async def child_plan(gateway: GatewayUnderTest, name: str, **spawn: Json) -> RunPlan:
    """The plan under which a child of ``caller`` ran."""
    frames = await gateway.run("caller", json.dumps({"name": name, "prompt": "x", **spawn}))
    assert not said(frames).startswith("refused"), said(frames)
    (plan,) = await child_plans(gateway, frames)
    return plan


async def child_plans(gateway: GatewayUnderTest, frames: list[SseFrame]) -> list[RunPlan]:
    """The plans of the children of a run, in the order of their start."""
    store, plans = gateway.runtime.store, []
    for commit in await read_commits(store, "", frames[1].data["run_id"]):
        for record in commit.records():
            if isinstance(record.event, ChildStarted):
                opening = (await read_commits(store, "", record.event.run))[0].records()[0].event
                assert isinstance(opening, RunStarted)
                plans.append(await gateway.runtime.services.plans.get(opening.plan))
    return plans


async def test_volumes_of_a_child_are_never_more_than_its_parents(
    gateway: GatewayUnderTest,
) -> None:
    for name in ("reader", "anywhere"):
        plan = await child_plan(gateway, name)
        assert plan.volumes is not None
        assert [(v.name, v.mode) for v in plan.volumes] == [("docs", "rw")]


async def test_compaction_of_the_call_then_the_parent_then_the_definition(
    gateway: GatewayUnderTest,
) -> None:
    plan = await child_plan(gateway, "terse", compaction={"target_percentage": 30})
    assert plan.compaction == Compaction(enabled=True, keep_last_n=3, target_percentage=30)


async def test_a_model_for_summaries_is_inherited_by_children_on_its_provider_only(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.route("POST", "/v1/messages", anthropic_text("here"))
    spawns = [{"name": name, "prompt": "x"} for name in ("small", "foreign")]
    call = openai_tool_call("Agent", {"op": "parallel_spawn", "spawns": spawns})
    vendor.script(call, openai_text("here"), openai_text("all here"))
    frames = await gateway.run("lead")
    assert [plan.compaction for plan in await child_plans(gateway, frames)] == [
        Compaction(model="m-small", keep_last_n=3),
        Compaction(model="m-own", keep_last_n=3),
    ]


async def test_a_secret_reaches_a_childs_model_and_no_journal(
    gateway: GatewayUnderTest, vendor: FakeVendor, directory: Path
) -> None:
    vendor.script(openai_text("used it"))
    spawns = [{"name": name, "prompt": f"use {TOKEN}"} for name in ("model", "echo")]
    frames = await gateway.run(
        "caller",
        json.dumps({"op": "parallel_spawn", "spawns": spawns}),
        user_credentials={"github": TOKEN},
    )
    assert vendor.last.json["messages"][-1]["content"] == f"use {TOKEN}"
    results = json.loads(said(frames))["results"]
    assert results[0]["output"].endswith("\nused it")
    assert "heard use [redacted" in results[1]["output"]
    store = gateway.runtime.store
    await until(lambda: no_seals(gateway, frames[1].data["run_id"]))
    for result in results:
        agent_id = result["output"].split("agent_id=")[1].split("]")[0]
        await assert_no_seals(store, agent_id.replace("a_", "r_"))
    assert await assert_not_in_streams([TOKEN], store)
    assert assert_not_on_disk([TOKEN], directory)


async def no_seals(gateway: GatewayUnderTest, run: str) -> bool | None:
    return (await gateway.runtime.store.seals.get(run, "credentials")) is None or None


async def test_the_record_of_a_fan_out_is_on_re_read_streams_only(
    gateway: GatewayUnderTest,
) -> None:
    spawns = [{"name": name, "prompt": "x"} for name in ("echo", "nobody")]
    request = json.dumps({"op": "parallel_spawn", "spawns": spawns})
    live = await gateway.run("caller", request)
    agent = live[1].data
    assert not [f for f in live if f.event.startswith("spawn_child")]
    path = f"/v1/runs/{agent['run_id']}/stream"
    again = sse_frames((await gateway.http.get(path)).text)
    shown = [f for f in again if f.event.startswith("spawn_child")]
    bodies = {(f.event, f.data["spawn_child"]["index"]): f.data["spawn_child"] for f in shown}
    assert set(bodies) == {
        ("spawn_child_started", 0), ("spawn_child_result", 0), ("spawn_child_result", 1),
    }  # fmt: skip
    call = next(f for f in live if f.event == "tool_call").data["tool_use"]["id"]
    started = bodies["spawn_child_started", 0]
    assert started == {
        "tool_use_id": call, "index": 0, "run_id": started["run_id"], "agent": "echo",
    }  # fmt: skip
    result = bodies["spawn_child_result", 0]
    assert (result["ok"], result["run_id"]) == (True, started["run_id"])
    assert result["output"].endswith("\nheard x")
    failed = bodies["spawn_child_result", 1]
    assert (failed["tool_use_id"], failed["agent"]) == (call, "nobody")
    assert failed["error"] == 'unknown sub-agent "nobody"'
    path = f"/v1/sessions/{agent['session_id']}/transcript"
    rows = (await gateway.http.get(path)).json()["events"]
    assert [r["type"] for r in rows if r["type"].startswith("spawn_child")] == [
        f.event for f in shown
    ]
