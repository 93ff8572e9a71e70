"""Starting runs over HTTP, as a client of the real server sees it (http-runs.md 3, 4, 5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.wire.gateway import GatewayUnderTest, open_stream, serving, until
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 4, max_queue_depth: 4}
runtime: {reader_grace_ms: 50}
user_tiers:
  default: {}
  gold: {}
agents:
  writer: {provider: mock, model: mock-generic, system_prompt: Be brief.}
  speaker: {provider: openai, model: gpt-fake-1}
  keyless: {provider: gemini, model: gemini-fake-1}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    variables = environment(vendor)
    del variables["GEMINI_API_KEY"]
    async with serving(tmp_path_factory.mktemp("runs"), CONFIG, variables) as gateway:
        yield gateway


def says(*parts: str | asyncio.Event) -> Reply:
    """A streamed answer; an event holds it there."""
    pieces: list[bytes | Hold] = [
        Hold(part) if isinstance(part, asyncio.Event) else sse(openai_chunk({"content": part}))
        for part in parts
    ]
    return Reply([*pieces, sse(openai_chunk(finish="stop"), done=True)])


async def test_a_run_streams_its_events_in_order(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.post("/v1/runs", json={"agent": "writer", "prompt": "hi"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.text.endswith("\n\n")


async def test_the_frames_of_a_plain_run(gateway: GatewayUnderTest) -> None:
    lineage = {"root_agent_run_id": "r_0", "function_key": "f"}
    frames = await gateway.run(agent_id="a_mine", parent_context=lineage)
    assert [f.event for f in frames] == ["session", "agent", "started", "text", "usage", "done"]
    session, agent, *rest = frames
    assert session.data["text"].startswith("s_")
    assert agent.data == {
        "agent_id": "a_mine",
        "run_id": session.data["text"].replace("s_", "r_"),
        "session_id": session.data["text"],
        "parent_agent_id": None,
        "parent_context": lineage,
    }
    assert all(f.data["type"] == f.event for f in [session, *rest])
    ids = [int(f.id) for f in frames]
    assert ids == sorted(ids)
    assert rest[-1].data["stop_reason"] == "end_turn"


async def test_segments_and_an_absent_content_type_are_fine(gateway: GatewayUnderTest) -> None:
    block = {"type": "trusted-text", "text": "x", "kind": None}
    body = {"agent": "writer", "segments": [{"role": "user", "content": [block]}]}
    response = await gateway.http.post("/v1/runs", content=json.dumps(body) + " and more")
    assert response.status_code == 200
    assert "event: done" in response.text


async def test_a_run_can_join_a_session_without_its_history(gateway: GatewayUnderTest) -> None:
    first = await gateway.run()
    second = await gateway.run(session_id=first[0].data["text"])
    assert second[0].data["text"] == first[0].data["text"]
    assert second[1].data["run_id"] != first[1].data["run_id"]


IDENT = " must match [A-Za-z0-9_-]{1,128}\n"
ORDER: list[tuple[str, dict[str, Any], int, str]] = [
    ("agent is required", {"agent": "", "user_id": "not ok"}, 400, "agent is required\n"),
    ("no input", {"prompt": "", "user_id": "not ok"}, 400, "no input"),
    ("empty segments", {"prompt": "", "segments": []}, 400, "no input"),
    ("user_id", {"user_id": "a b", "agent_id": "a b"}, 400, "user_id" + IDENT),
    ("agent_id", {"agent_id": "é", "agent": "ghost"}, 400, "agent_id" + IDENT),
    ("agent", {"agent": 'gh"ost', "user_tier": "tin"}, 400, 'unknown agent "gh"ost"\n'),
    ("tier", {"user_tier": "tin", "user_bearer": "short"}, 400, 'unknown user_tier "tin"\n'),
    ("bearer", {"user_bearer": "short", "user_credentials": {"a b": ""}}, 400, "user_bearer"),
    (
        "credentials",
        {"user_credentials": {"a b": ""}, "parent_context": {"function_key": "x" * 257}},
        400,
        'user_credentials: key "a b" must match',
    ),
    (
        "lineage",
        {"parent_context": {"function_key": "x" * 257}, "agent": "keyless"},
        400,
        "parent_context.function_key exceeds 256 bytes\n",
    ),
    ("provider", {"agent": "keyless", "session_id": "s_no"}, 400, "gemini"),
    ("session", {"session_id": "s_no"}, 404, "session not found: s_no\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "status", "text"), [row[1:] for row in ORDER], ids=[row[0] for row in ORDER]
)
async def test_the_first_wrong_thing_is_the_one_reported(
    gateway: GatewayUnderTest, fields: dict[str, Any], status: int, text: str
) -> None:
    body = {"agent": "writer", "prompt": "hi", **fields}
    response = await gateway.http.post("/v1/runs", json=body)
    assert (response.status_code, text in response.text) == (status, True), response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_content_type_is_checked_before_the_body(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.post(
        "/v1/runs", content=b"nonsense", headers={"Content-Type": "text/plain"}
    )
    assert response.status_code == 415
    assert response.text == "Content-Type must be application/json\n"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"agent":7}', b'{"agent":"' + b"x" * 2**20])
async def test_bad_bodies_are_refused(gateway: GatewayUnderTest, body: bytes) -> None:
    response = await gateway.http.post("/v1/runs", content=body)
    assert response.status_code == 400
    assert response.text.startswith("bad json: ")


async def test_a_body_of_almost_a_mebibyte_runs(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run(prompt="x" * (2**20 - 100))
    assert frames[-1].event == "done"


async def test_a_live_agent_id_cannot_be_used_twice(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(says("one\n", hold))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_taken"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("text")
        response = await gateway.http.post("/v1/runs", json=body)
        assert response.status_code == 409
        assert response.json()["code"] == "agent_id_in_use"
        assert "session" not in response.text
        hold.set()
        assert (await stream.rest())[-1].event == "done"
    vendor.script(says("two"))
    assert (await gateway.run("speaker", agent_id="a_taken"))[-1].event == "done"


async def test_a_session_with_a_live_run_is_busy(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(says("one\n", hold))
    body = {"agent": "speaker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        session = (await stream.until("session")).data["text"]
        await stream.until("text")
        joining = await gateway.http.post("/v1/runs", json={**body, "session_id": session})
        continuing = await gateway.http.post(f"/v1/sessions/{session}/messages", json={})
        for response in (joining, continuing):
            assert (response.status_code, response.json()) == (
                409,
                {
                    "code": "session_busy",
                    "error": f'another request is in flight on session "{session}"',
                },
            )
        hold.set()
        await stream.rest()


async def test_text_is_streamed_while_the_model_speaks(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    holds = [asyncio.Event(), asyncio.Event()]
    vendor.script(says("Hel\n", holds[0], "lo\n", holds[1], "!"))
    body = {"agent": "speaker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        assert (await stream.until("text")).data == {"type": "text", "text": "Hel\n"}
        holds[0].set()
        assert (await stream.until("text")).data["text"] == "lo\n"
        holds[1].set()
        rest = await stream.rest()
    assert [f.event for f in rest] == ["text", "done"]


async def test_a_failing_model_ends_the_stream_with_one_error(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(Reply([b'{"error":{"message":"no"}}'], status=400))
    frames = await gateway.run("speaker", agent_id="a_failing")
    assert [f.event for f in frames][-2:] == ["started", "error"]
    status = await gateway.ended("a_failing")
    assert (status["status"], status.get("stop_reason", "")) == ("failed", "")
    assert status["error"]


async def test_a_client_that_leaves_cancels_its_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("one\n", asyncio.Event()))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_left"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("text")
    status = await gateway.ended("a_left")
    assert (status["status"], status["stop_reason"]) == ("cancelled", "client disconnected")
    assert "error" not in status


async def test_an_interactive_run_outlives_its_client(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(says("one\n", hold))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_stays", "interactive": True}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run_id = (await stream.until("agent")).data["run_id"]
        assert (await stream.next()).data == {
            "type": "steer",
            "user_input": {"text": "hi", "source": "replay"},
        }
        await stream.until("text")
    status = await gateway.status("a_stays")
    assert (status["status"], status["interactive"], status["live"]) == ("running", True, True)
    async with open_stream(gateway, "GET", f"/v1/runs/{run_id}/stream") as stream:
        await stream.until("text")
        hold.set()
    await gateway.http.post("/v1/agents/a_stays/cancel")
    assert (await gateway.ended("a_stays")).get("stop_reason") != "client disconnected"


async def test_a_client_that_leaves_the_queue_gives_its_place_up(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(*(says("busy", hold) for _ in range(4)))
    body = {"agent": "speaker", "prompt": "hi"}
    busy = [asyncio.create_task(gateway.run("speaker")) for _ in range(4)]
    await vendor.wait_for(lambda v: not v.replies)
    queued = asyncio.create_task(gateway.http.post("/v1/runs", json=body))

    async def waiting(expected: int) -> bool | None:
        stats = (await gateway.http.get("/v1/_concurrency/stats")).json()
        assert stats["active"] == 4
        return stats["queued"] == expected or None

    await until(lambda: waiting(1))
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)
    await until(lambda: waiting(0))
    hold.set()
    assert [(await task)[-1].event for task in busy] == ["done"] * 4
    assert not vendor.replies


async def test_a_full_queue_refuses(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    hold = asyncio.Event()
    vendor.script(*(says("busy", hold) for _ in range(8)))
    runs = [asyncio.create_task(gateway.run("speaker")) for _ in range(8)]

    async def full() -> bool | None:
        stats = (await gateway.http.get("/v1/_concurrency/stats")).json()
        return (stats["active"], stats["queued"]) == (4, 4) or None

    await until(full)
    response = await gateway.http.post("/v1/runs", json={"agent": "speaker", "prompt": "hi"})
    assert response.status_code == 429
    assert response.json() == {"code": "backpressure", "error": "queue full"}
    assert "retry-after" not in response.headers
    hold.set()
    assert [(await task)[-1].event for task in runs] == ["done"] * 8
