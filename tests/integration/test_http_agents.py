"""Status, lists and cancelling of runs by their handle (http-runs.md 10 and 14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from tests.wire.gateway import GatewayUnderTest, StreamReader, open_stream, serving
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 16}
runtime: {reader_grace_ms: 50}
agents:
  writer: {provider: mock, model: mock-generic}
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
    directory = tmp_path_factory.mktemp("agents")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        yield gateway


@asynccontextmanager
async def running(
    gateway: GatewayUnderTest, vendor: FakeVendor, agent_id: str, **fields: object
) -> AsyncIterator[StreamReader]:
    """A run whose model has begun to speak and does not go on."""
    vendor.script(Reply([sse(openai_chunk({"content": "well\n"})), Hold(asyncio.Event())]))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": agent_id, **fields}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("text")
        yield stream


async def test_the_status_of_a_finished_run(gateway: GatewayUnderTest) -> None:
    lineage = {"function_key": "f"}
    frames = await gateway.run(agent_id="a_done", user_id="u1", parent_context=lineage)
    status = await gateway.ended("a_done")
    times = [status.pop(name) for name in ("started_at", "completed_at", "last_heartbeat_at")]
    assert all(t.endswith("Z") for t in times)
    assert times[0] <= times[1]
    assert status == {
        "agent_id": "a_done",
        "run_id": frames[1].data["run_id"],
        "session_id": frames[0].data["text"],
        "agent": "writer",
        "user_id": "u1",
        "status": "completed",
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": frames[-1].data["usage"]["input_tokens"],
            "output_tokens": frames[-1].data["usage"]["output_tokens"],
            "model": "mock-generic",
            "provider": "mock",
        },
        "live": False,
        "parent_context": lineage,
    }


async def test_the_status_of_a_live_run(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    async with running(gateway, vendor, "a_live"):
        status = await gateway.status("a_live")
        assert (status["status"], status["live"]) == ("running", True)
        assert not status.keys() & {"completed_at", "stop_reason", "error", "user_id"}
        assert status["usage"] == {
            "input_tokens": 0,
            "output_tokens": 0,
            "model": "gpt-fake-1",
            "provider": "openai",
        }
        seconds, _, _ = status["last_heartbeat_at"].partition(".")
        beat = datetime.fromisoformat(seconds.removesuffix("Z")).replace(tzinfo=UTC)
        assert (datetime.now(UTC) - beat).total_seconds() < 5


async def test_a_handle_names_its_latest_run(gateway: GatewayUnderTest) -> None:
    runs = [(await gateway.run(agent_id="a_again"))[1].data["run_id"] for _ in range(2)]
    assert (await gateway.status("a_again"))["run_id"] == runs[1]


@pytest.mark.parametrize("path", ["/v1/agents/a_nobody", "/v1/agents/a_nobody/cancel"])
async def test_unknown_handles(gateway: GatewayUnderTest, path: str) -> None:
    method = "POST" if path.endswith("cancel") else "GET"
    response = await gateway.http.request(method, path)
    assert response.status_code == 404
    assert response.json()["code"] == "unknown_agent_id"


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v1/agents/a.b", "agent_id"),
        ("POST", "/v1/agents/a%20b/cancel", "agent_id"),
        ("GET", "/v1/users/%C3%A9/agents", "user_id"),
        ("GET", f"/v1/users/{'u' * 129}/agents", "user_id"),
    ],
)
async def test_impossible_ids(
    gateway: GatewayUnderTest, method: str, path: str, field: str
) -> None:
    response = await gateway.http.request(method, path)
    assert response.status_code == 400
    assert response.text == f"{field} must match [A-Za-z0-9_-]{{1,128}}\n"


async def test_the_runs_of_a_user(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    for n in range(3):
        await gateway.run(user_id="u_list", agent_id=f"a_list{n}")
    await gateway.run(user_id="u_other")

    async def listed(**params: str) -> list[str]:
        response = await gateway.http.get("/v1/users/u_list/agents", params=params)
        return [row["agent_id"] for row in response.json()["agents"]]

    assert await listed(status="all") == ["a_list2", "a_list1", "a_list0"]
    assert await listed(status="completed") == ["a_list2", "a_list1", "a_list0"]
    assert await listed() == await listed(status="running") == []
    assert await listed(status="unheard of") == []
    async with running(gateway, vendor, "a_list3", user_id="u_list"):
        assert await listed() == ["a_list3"]
        assert await listed(status="all", tenant="") == ["a_list3", "a_list2", "a_list1", "a_list0"]
        assert await listed(status="all", tenant="acme") == []


async def test_nobodys_runs_are_an_empty_list(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.get("/v1/users/nobody/agents")
    assert response.json() == {"agents": []}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason":"enough"}', "enough"),
        (b'{"reason":""}', "cancelled by api"),
        (b"", "cancelled by api"),
        (b"nonsense", "cancelled by api"),
        (b'{"reason":7}', "cancelled by api"),
        (b'{"reason":"' + b"x" * 2000 + b'"}', "cancelled by api"),
    ],
    ids=["reason", "empty reason", "no body", "no json", "no text", "too long"],
)
async def test_cancelling_ends_a_run_with_the_given_reason(
    gateway: GatewayUnderTest, vendor: FakeVendor, body: bytes, reason: str
) -> None:
    async with running(gateway, vendor, "a_stop") as stream:
        response = await gateway.http.post("/v1/agents/a_stop/cancel", content=body)
        assert response.status_code == 200
        assert response.json() == {
            "cancelled": True,
            "agent_id": "a_stop",
            "reason": reason,
            "cancelled_count": 1,
        }
        await stream.rest()
    status = await gateway.ended("a_stop")
    assert (status["status"], status["stop_reason"]) == ("cancelled", reason)


async def test_cancelling_what_has_ended_changes_nothing(gateway: GatewayUnderTest) -> None:
    await gateway.run(agent_id="a_over")
    for _ in range(2):
        response = await gateway.http.post("/v1/agents/a_over/cancel", json={"reason": "late"})
        assert response.status_code == 200
        assert response.json() == {
            "cancelled": False,
            "agent_id": "a_over",
            "status": "completed",
            "cancelled_count": 0,
        }
    assert (await gateway.status("a_over"))["stop_reason"] == "end_turn"
