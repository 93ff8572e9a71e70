"""The stream of a user's runs (http-runs.md section 15.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateways.http.routes import run_states as routes
from tests.e2e.turns import reply
from tests.wire.gateway import GatewayUnderTest, Json, StreamReader, open_stream, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 8}
agents:
  writer: {provider: mock, model: mock-generic}
  other: {provider: mock, model: mock-generic}
  speaker: {provider: openai, model: gpt-fake-1}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("states")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        yield gateway


@asynccontextmanager
async def states_of(
    gateway: GatewayUnderTest, user: str, **params: Any
) -> AsyncIterator[StreamReader]:
    async with open_stream(
        gateway, "GET", f"/v1/users/{user}/agents/stream", params=params
    ) as stream:
        yield stream


async def next_state(stream: StreamReader) -> Json:
    frame = await stream.next()
    assert frame.event == "run_state"
    data: Json = frame.data
    return data


async def test_a_run_shows_its_start_and_its_end(gateway: GatewayUnderTest) -> None:
    lineage = {"function_key": "f"}
    async with states_of(gateway, "u_plain") as stream:
        opened = await stream.next()
        assert (opened.event, opened.data) == (
            "stream_open",
            {
                "user_id": "u_plain",
                "filter_status": None,
                "filter_agent": "",
                "keepalive_interval": 25,
            },
        )
        await gateway.run(user_id="u_other")
        frames = await gateway.run(user_id="u_plain", agent_id="a_states", parent_context=lineage)
        first, last = await next_state(stream), await next_state(stream)
        for state in (first, last):
            assert len(state.pop("ts")) == len("2026-01-31T10:20:30Z")
        about = {
            "run_id": frames[1].data["run_id"],
            "agent_id": "a_states",
            "agent": "writer",
            "user_id": "u_plain",
            "parent_context": lineage,
        }
        assert first == {**about, "status": "running"}
        assert last == {**about, "status": "completed", "stop_reason": "end_turn"}


async def test_filters_by_status_and_agent(gateway: GatewayUnderTest) -> None:
    wanted = {"status": ["failed,completed", "cancelled"], "agent": "other"}
    async with states_of(gateway, "u_filter", **wanted) as stream:
        opened = (await stream.next()).data
        assert opened["filter_status"] == ["cancelled", "completed", "failed"]
        assert opened["filter_agent"] == "other"
        await gateway.run(user_id="u_filter")
        await gateway.run("other", user_id="u_filter")
        state = await next_state(stream)
        assert (state["agent"], state["status"]) == ("other", "completed")


async def test_the_end_of_a_run_that_began_before_anybody_watched(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spoken = asyncio.Event()
    vendor.script(reply("openai", "well\n", spoken))
    body = {"agent": "speaker", "prompt": "hi", "user_id": "u_late", "agent_id": "a_late"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as run:
        await run.until("text")
        async with states_of(gateway, "u_late") as stream:
            await stream.next()
            await gateway.http.post("/v1/agents/a_late/cancel", json={"reason": "enough"})
            state = await next_state(stream)
            assert (state["agent_id"], state["agent"]) == ("a_late", "speaker")
            assert (state["status"], state["stop_reason"]) == ("cancelled", "enough")
        await run.rest()


async def test_a_tenant_sees_its_own_runs_only(gateway: GatewayUnderTest) -> None:
    async with states_of(gateway, "u_tenant", tenant="acme") as stream:
        await stream.next()
        await gateway.run(user_id="u_tenant", tenant_id="elsewhere")
        await gateway.run(user_id="u_tenant", tenant_id="acme", agent_id="a_acme")
        assert (await next_state(stream))["agent_id"] == "a_acme"


async def test_any_text_is_a_user(gateway: GatewayUnderTest) -> None:
    async with states_of(gateway, "m%C3%BCller%20%2B1") as stream:
        assert (await stream.next()).data["user_id"] == "müller +1"


async def test_nothing_is_followed_while_nobody_watches(gateway: GatewayUnderTest) -> None:
    async def quiet() -> bool | None:
        return not gateway.runtime.run_states._tasks or None

    async with states_of(gateway, "u_quiet") as stream:
        await stream.next()
        assert gateway.runtime.run_states._tasks
    await until(quiet)


async def test_a_connection_is_kept_alive_and_closed_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LIFE_S", 0.4)
    monkeypatch.setattr(routes, "KEEPALIVE_S", 0.1)
    async with (
        serving(tmp_path, CONFIG) as gateway,
        gateway.http.stream("GET", "/v1/users/u/agents/stream") as response,
    ):
        text = (await response.aread()).decode()
    assert text.count(": keepalive\n\n") in (2, 3)
    assert text.startswith("id: 0\nevent: stream_open\n")


async def test_transitions_on_any_replica_are_seen(tmp_path: Path, vendor: FakeVendor) -> None:
    settings = environment(vendor)
    async with (
        serving(tmp_path, CONFIG, settings) as first,
        serving(tmp_path, CONFIG, settings) as second,
        states_of(second, "u_far") as stream,
    ):
        await stream.next()
        await first.run(user_id="u_far")
        assert [(await next_state(stream))["status"] for _ in range(2)] == ["running", "completed"]
