"""Pause and resume of the whole runtime through HTTP (snapshot.md sections 1 to 6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from tests.e2e.proofs import prove_everything
from tests.e2e.turns import Call, asked, reply
from tests.wire.gateway import (
    GatewayUnderTest,
    Json,
    StreamReader,
    open_stream,
    serving,
    until,
)
from tests.wire.vendors import FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 8}
runtime: {reader_grace_ms: 50}
agents:
  speaker: {provider: openai, model: gpt-fake-1}
  worker: {provider: openai, model: gpt-fake-1, allowed_tools: [Slow, Danger]}
"""


@dataclass
class Slow:
    """A tool that lasts until the test says so."""

    name: str = "Slow"
    repeat: Repeat = Repeat.SAFE
    description: str = "takes long"
    input_schema: bytes = b'{"type":"object"}'
    side_effect_class: str = "pure"
    begun: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        self.begun += 1
        await self.done.wait()
        return ToolOutput("slowly done")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("pause")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        tools: Any = gateway.runtime.services.tools
        tools["Slow"] = Slow()
        tools["Danger"] = Slow("Danger", Repeat.UNSAFE)
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def running(gateway: GatewayUnderTest, vendor: FakeVendor) -> AsyncIterator[None]:
    """Each test leaves a running runtime and no run."""
    vendor.requests.clear()
    yield
    await gateway.http.post("/v1/_resume")
    await gateway.runtime.lookups.parked()
    for run in await gateway.runtime.views.queries.running_runs():
        await gateway.http.post(f"/v1/agents/{run.agent_id}/cancel")
        await gateway.ended(run.agent_id)
    assert not vendor.replies


async def pause(http: httpx.AsyncClient, **body: Any) -> Json:
    response = await http.post("/v1/_pause", json=body)
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    assert reply["state"] == "paused"
    return reply


async def resume(http: httpx.AsyncClient) -> int:
    response = await http.post("/v1/_resume")
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    assert reply.keys() == {"state", "resumed_runs_count"}
    assert reply["state"] == "running"
    return int(reply["resumed_runs_count"])


async def state(http: httpx.AsyncClient) -> tuple[str, int]:
    reply = (await http.get("/v1/_state")).json()
    return reply["state"], reply["paused_runs_count"]


@asynccontextmanager
async def a_run(
    gateway: GatewayUnderTest, agent: str = "speaker", **fields: Any
) -> AsyncIterator[tuple[StreamReader, str]]:
    """(stream, agent id) of a run that has begun."""
    body = {"agent": agent, "prompt": "go", **fields}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        yield stream, (await stream.until("agent")).data["agent_id"]


async def test_an_idle_runtime_pauses_at_once_and_refuses_starts(gateway: GatewayUnderTest) -> None:
    http = gateway.http
    assert await state(http) == ("running", 0)
    done = await pause(http)
    assert done.pop("duration_ms") < 500
    assert done == {"state": "paused", "force_cancelled_count": 0, "paused_runs_count": 0}
    assert await state(http) == ("paused", 0)
    refused = await http.post("/v1/runs", json={"agent": "speaker", "prompt": "hi"})
    assert (refused.status_code, refused.json()["code"]) == (503, "runtime_paused")
    assert "retry-after" not in refused.headers
    content = [{"type": "trusted-text", "text": "hi"}]
    spawn = {"agent": "speaker", "segments": [{"role": "user", "content": content}]}
    batch = await http.post("/v1/runs:batch", json={"spawns": [spawn]})
    (entry,) = batch.json()["results"]
    assert entry["status"] == "failed"
    assert entry["error"].startswith("runtime paused")
    wrong = await http.post("/v1/runs", json={"agent": "nobody", "prompt": "hi"})
    assert wrong.status_code == 400, "a bad request is told first"
    again = await http.post("/v1/_pause")
    assert (again.status_code, again.json()["code"]) == (409, "already_pausing")
    assert await resume(http) == 0
    again = await http.post("/v1/_resume")
    assert (again.status_code, again.json()["code"]) == (409, "not_paused")
    assert await state(http) == ("running", 0)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"timeout_ms":"soon"}', b'{"timeout_ms":1.5}'])
async def test_a_body_that_is_no_request(gateway: GatewayUnderTest, body: bytes) -> None:
    response = await gateway.http.post("/v1/_pause", content=body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_json")
    assert await state(gateway.http) == ("running", 0)


async def test_a_run_finishes_its_turn_parks_and_goes_on_after_the_resume(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spoken = asyncio.Event()
    call = Call("c1", "Slow", {})
    slow: Any = gateway.runtime.services.tools["Slow"]
    slow.done.set()
    vendor.script(reply("openai", "well\n", spoken, calls=[call]), reply("openai", "done"))
    async with a_run(gateway, "worker") as (stream, agent_id):
        await stream.until("text")
        pausing = asyncio.create_task(pause(gateway.http))
        await until(lambda: is_state(gateway.http, "pausing"))
        resuming = await gateway.http.post("/v1/_resume")
        assert (resuming.status_code, resuming.json()["code"]) == (409, "not_paused")
        spoken.set()
        done = await pausing
        assert (done["paused_runs_count"], "warnings" in done) == (1, False)
        assert len(asked(vendor)) == 1, "no model was asked while the runtime paused"
        status = await gateway.status(agent_id)
        assert (status["status"], gateway.runtime.worker.active) == ("running", 0)
        assert await resume(gateway.http) == 1
        assert [frame.event for frame in await stream.rest()][-1] == "done"
    slow.done.clear()


async def is_state(http: httpx.AsyncClient, wanted: str) -> bool | None:
    return (await state(http))[0] == wanted or None


async def test_a_run_that_waits_for_a_person_is_parked_already(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", "hello"))
    async with a_run(gateway, interactive=True) as (stream, agent_id):
        await stream.until("awaiting_input")
        run = (await gateway.status(agent_id))["run_id"]
        done = await pause(gateway.http)
        assert (done["paused_runs_count"], done["duration_ms"] < 1500) == (1, True)
        steer = await gateway.http.post(f"/v1/runs/{run}/input", json={"text": "more"})
        assert steer.status_code == 200
        await stream.until("steer")
        await until(lambda: is_idle(gateway))
        assert len(asked(vendor)) == 1
        vendor.script(reply("openai", "more"))
        await resume(gateway.http)
        await stream.until("awaiting_input")
        assert len(asked(vendor)) == 2


async def is_idle(gateway: GatewayUnderTest) -> bool | None:
    return gateway.runtime.worker.active == 0 or None


async def test_a_run_that_does_not_park_in_time_is_named_and_parks_later(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spoken = asyncio.Event()
    vendor.script(reply("openai", "well\n", spoken, calls=[Call("c1", "Slow", {})]))
    async with a_run(gateway, "worker") as (stream, agent_id):
        await stream.until("text")
        run = (await gateway.status(agent_id))["run_id"]
        done = await pause(gateway.http, timeout_ms=50)
        assert done["paused_runs_count"] == 0
        (warning,) = done["warnings"]
        assert warning.startswith("runs that did not park in time")
        assert "(1)" in warning
        assert run in warning
        assert await state(gateway.http) == ("paused", 0)
        spoken.set()
        await until(lambda: is_counted(gateway.http, 1))
        vendor.script(reply("openai", "done"))
        slow: Any = gateway.runtime.services.tools["Slow"]
        slow.done.set()
        await resume(gateway.http)
        assert (await stream.rest())[-1].event == "done"
        slow.done.clear()


async def is_counted(http: httpx.AsyncClient, wanted: int) -> bool | None:
    return (await state(http))[1] == wanted or None


async def test_a_call_that_may_be_repeated_is_given_up_at_once_and_made_again(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    slow: Any = gateway.runtime.services.tools["Slow"]
    slow.begun = 0
    vendor.script(reply("openai", calls=[Call("c1", "Slow", {})]), reply("openai", "done"))
    async with a_run(gateway, "worker") as (stream, _):
        await until(lambda: has_begun(slow))
        done = await pause(gateway.http)
        assert (done["force_cancelled_count"], done["paused_runs_count"]) == (0, 1)
        assert done["duration_ms"] < 1500
        slow.done.set()
        await resume(gateway.http)
        result = await stream.until("tool_result")
        assert (result.data["text"], result.data.get("is_error")) == ("slowly done", None)
        assert (await stream.rest())[-1].event == "done"
        assert slow.begun == 2
        slow.done.clear()


async def has_begun(tool: Slow) -> bool | None:
    return tool.begun > 0 or None


async def test_a_call_that_must_not_be_repeated_has_until_the_time_is_over(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    danger: Any = gateway.runtime.services.tools["Danger"]
    vendor.script(reply("openai", calls=[Call("c1", "Danger", {})]), reply("openai", "done"))
    async with a_run(gateway, "worker") as (stream, _):
        await until(lambda: has_begun(danger))
        done = await pause(gateway.http, timeout_ms=200)
        assert (done["force_cancelled_count"], done["paused_runs_count"]) == (1, 1)
        assert done["duration_ms"] >= 200
        await resume(gateway.http)
        result = await stream.until("tool_result")
        assert result.data["is_error"]
        assert (await stream.rest())[-1].event == "done"
        assert danger.begun == 1


async def test_a_paused_run_can_be_cancelled(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    spoken = asyncio.Event()
    slow: Any = gateway.runtime.services.tools["Slow"]
    slow.begun = 0
    vendor.script(reply("openai", spoken, calls=[Call("c1", "Slow", {})]))
    async with a_run(gateway, "worker") as (stream, agent_id):
        spoken.set()
        await until(lambda: has_begun(slow))
        await pause(gateway.http)
        response = await gateway.http.post(f"/v1/agents/{agent_id}/cancel")
        assert response.json()["cancelled"] is True
        assert (await stream.rest())[-1].event == "error"
        assert (await gateway.ended(agent_id))["status"] == "cancelled"
        assert await state(gateway.http) == ("paused", 0)


async def test_a_pause_is_finished_when_its_client_leaves(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spoken = asyncio.Event()
    vendor.script(reply("openai", "well\n", spoken))
    async with a_run(gateway) as (stream, _):
        await stream.until("text")
        with pytest.raises(httpx.ReadTimeout):
            await gateway.http.post("/v1/_pause", timeout=0.2)
        await until(lambda: is_state(gateway.http, "paused"))
        spoken.set()
        await resume(gateway.http)
        assert (await stream.rest())[-1].event == "done"


async def test_a_pause_outlives_a_restart_and_so_do_its_runs(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", "hello"))
    settings = environment(vendor)
    async with (
        serving(tmp_path, CONFIG, settings) as gateway,
        a_run(gateway, interactive=True) as (stream, agent_id),
    ):
        await stream.until("awaiting_input")
        run = (await gateway.status(agent_id))["run_id"]
        await pause(gateway.http)
        await gateway.http.post(f"/v1/runs/{run}/input", json={"text": "more"})
        await stream.until("steer")
    async with serving(tmp_path, CONFIG, settings) as gateway:
        assert await state(gateway.http) == ("paused", 1)
        refused = await gateway.http.post("/v1/runs", json={"agent": "speaker", "prompt": "hi"})
        assert refused.status_code == 503
        assert len(asked(vendor)) == 1
        vendor.script(reply("openai", "and more"))
        async with open_stream(gateway, "GET", f"/v1/runs/{run}/stream") as stream:
            assert await resume(gateway.http) == 1
            for event in ("awaiting_input", "steer", "awaiting_input"):
                await stream.until(event)
        await gateway.http.post(f"/v1/agents/{agent_id}/cancel")
        await gateway.ended(agent_id)
        await prove_everything(gateway.runtime.store)


async def test_every_replica_pauses_and_any_resumes(tmp_path: Path, vendor: FakeVendor) -> None:
    spoken = asyncio.Event()
    vendor.script(reply("openai", "well\n", spoken, calls=[Call("c1", "none", {})]))
    settings = environment(vendor)
    async with (
        serving(tmp_path, CONFIG, settings) as first,
        serving(tmp_path, CONFIG, settings) as second,
    ):
        await until(lambda: acquainted(first, second))
        async with a_run(second) as (stream, _):
            await stream.until("text")
            pausing = asyncio.create_task(pause(first.http))
            await until(lambda: is_state(second.http, "pausing"))
            spoken.set()
            assert (await pausing)["paused_runs_count"] == 1
            for gateway in (first, second):
                body = {"agent": "speaker", "prompt": "hi"}
                assert (await gateway.http.post("/v1/runs", json=body)).status_code == 503
            vendor.script(reply("openai", "done"))
            assert await resume(second.http) == 1
            assert (await stream.rest())[-1].event == "done"
        await prove_everything(first.runtime.store)


async def acquainted(*gateways: GatewayUnderTest) -> bool | None:
    return all(len(g.runtime.cluster.members) == len(gateways) for g in gateways) or None
