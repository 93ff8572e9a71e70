"""Several runs in one request, and runs that nobody waits for (http-runs.md 9, RFC 7240)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.proofs import prove_everything
from tests.e2e.turns import Call, conversation, reply
from tests.wire.gateway import GatewayUnderTest, Json, open_stream, serving, sse_frames, until
from tests.wire.journals import runs_in
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 4, max_queue_depth: 2, queue_timeout_ms: 5000}
runtime: {reader_grace_ms: 50}
user_tiers: {default: {}}
agents:
  writer: {provider: mock, model: mock-generic}
  speaker: {provider: openai, model: m-1}
  strict:
    provider: openai
    model: m-1
    allowed_tools: [Context]
    max_iterations: 2
    output_schema: {type: object}
  boss: {provider: openai, model: m-1, allowed_tools: [Agent]}
  echo:
    provider: code-js
    code: |
      function run(input) { return "echo " + input.prompt; }
  broken:
    provider: code-js
    code: |
      function run(input) { throw new Error("no luck"); }
  counter:
    provider: mock
    model: mock-steps-2
    allowed_tools: [Memory]
    memory_scopes: [agent]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    variables = {**environment(vendor), "LOOMCYCLE_CODE_AGENTS_ENABLED": "1"}
    async with serving(tmp_path_factory.mktemp("batch"), CONFIG, variables) as gateway:
        yield gateway

        async def idle() -> bool | None:
            return gateway.runtime.worker.active == 0 or None

        await until(idle)
        await prove_everything(gateway.runtime.store)


def says(text: str, **fields: Any) -> Json:
    content = [{"type": "trusted-text", "text": text}]
    return {"agent": "echo", "segments": [{"role": "user", "content": content}], **fields}


def speaks(*parts: str | asyncio.Event) -> Reply:
    pieces: list[bytes | Hold] = [
        Hold(part) if isinstance(part, asyncio.Event) else sse(openai_chunk({"content": part}))
        for part in parts
    ]
    return Reply([*pieces, sse(openai_chunk(finish="stop"), done=True)])


def asked(vendor: FakeVendor) -> int:
    """How often a model was asked."""
    return sum(request.method == "POST" for request in vendor.requests)


async def batch(gateway: GatewayUnderTest, *spawns: Json, **fields: Any) -> list[Json]:
    response = await gateway.http.post("/v1/runs:batch", json={"spawns": spawns, **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["spawned"] == len(spawns) == len(answer["results"])
    results: list[Json] = answer["results"]
    return results


async def journals(gateway: GatewayUnderTest) -> int:
    return len(await runs_in(gateway.runtime.store))


async def test_results_stand_in_the_order_of_the_request(gateway: GatewayUnderTest) -> None:
    lineage = {"function_key": "f"}
    one, two = await batch(
        gateway, says("1", parent_context=lineage), says("2", agent_id="a_mine", mode="x")
    )
    assert one["final_text"] == "echo 1"
    assert (one["status"], one["stop_reason"]) == ("completed", "end_turn")
    assert one["parent_context"] == lineage
    assert one["run_id"] == one["session_id"].replace("s_", "r_")
    assert "error" not in one
    assert (two["final_text"], two["agent_id"]) == ("echo 2", "a_mine")
    assert "parent_context" not in two
    assert (await gateway.status(one["agent_id"]))["status"] == "completed"


async def test_the_text_is_all_that_was_said_and_the_usage_that_of_the_last_turn(
    gateway: GatewayUnderTest,
) -> None:
    (result,) = await batch(gateway, says("go", agent="counter"))
    frames = sse_frames((await gateway.http.get(f"/v1/runs/{result['run_id']}/stream")).text)
    texts = [f.data["text"] for f in frames if f.event == "text"]
    assert len(texts) > 1
    assert result["final_text"] == "".join(texts)
    assert result["usage"] == [f.data["usage"] for f in frames if f.event == "usage"][-1]


async def test_the_text_of_a_structured_run_is_its_answer_alone(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    look = Call("c1", "Context", {"op": "time"})
    vendor.script(reply("openai", "I look.", calls=[look]), speaks("bad"), speaks('{"a"', ":1}"))
    (result,) = await batch(gateway, says("go", agent="strict"))
    assert (result["status"], result["final_text"]) == ("completed", '{"a":1}')


async def test_what_a_structured_run_said_without_answering_is_no_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    look = Call("c1", "Context", {"op": "time"})
    vendor.script(*(reply("openai", "I look.", calls=[look]) for _ in range(2)))
    (result,) = await batch(gateway, says("go", agent="strict"))
    assert (result["status"], result["stop_reason"]) == ("failed", "output_invalid")
    assert "final_text" not in result


async def test_the_answer_of_a_structured_child_is_its_last_turn(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spawn = Call("c1", "Agent", {"name": "strict", "prompt": "go"})
    vendor.script(reply("openai", calls=[spawn]), speaks("bad"), speaks('{"a":1}'), speaks("So."))
    (result,) = await batch(gateway, says("go", agent="boss"))
    assert result["final_text"] == "So."
    (given,) = conversation("openai", vendor.last)[-1].results
    assert given.splitlines()[1:] == ['{"a":1}']


ENTRIES: list[tuple[str, Json, str]] = [
    ("agent", {"agent": "ghost"}, 'unknown agent: "ghost"'),
    ("no agent", {"agent": ""}, "invalid argument: agent is required"),
    ("only a prompt", {"segments": None, "prompt": "x"}, "invalid argument: no input"),
    ("user", {"user_id": "a b"}, "invalid argument: user_id must match"),
    ("tier", {"user_tier": "tin"}, 'invalid argument: unknown user_tier "tin"'),
    ("bearer", {"user_bearer": "short"}, "invalid argument: user_bearer must match"),
]  # fmt: skip


async def test_what_refuses_an_entry_says_nothing_about_the_others(
    gateway: GatewayUnderTest,
) -> None:
    good, *bad = await batch(gateway, says("fine"), *(says("x", **row[1]) for row in ENTRIES))
    assert good["final_text"] == "echo fine"
    for result, (_, _, error) in zip(bad, ENTRIES, strict=True):
        assert result["error"].startswith(error), result
        assert (result["status"], result["agent_id"], result["run_id"]) == ("failed", "", "")


async def test_a_session_interactivity_and_time_limits_of_an_entry_are_ignored(
    gateway: GatewayUnderTest,
) -> None:
    (result,) = await batch(
        gateway, says("x", session_id="s_none", interactive=True, run_timeout_seconds=1)
    )
    assert result["final_text"] == "echo x"


async def test_a_run_that_fails_is_failed(gateway: GatewayUnderTest) -> None:
    (result,) = await batch(gateway, says("x", agent="broken"))
    assert result["status"] == "failed"
    assert "no luck" in result["error"]
    assert result["run_id"]


async def test_an_agent_id_that_is_taken_twice_refuses_the_second(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    vendor.script(speaks("one", go_on))
    before = asked(vendor)
    first = asyncio.create_task(batch(gateway, says("x", agent="speaker", agent_id="a_one")))
    await vendor.wait_for(lambda v: asked(v) == before + 1)
    (second,) = await batch(gateway, says("x", agent_id="a_one"))
    assert second["error"].startswith("agent_id in use: ")
    assert second["run_id"] == ""
    go_on.set()
    assert (await first)[0]["final_text"] == "one"


async def test_more_runs_than_slots_and_queue_have_room_for(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    """Four run, two wait, whoever comes after is refused."""
    go_on = asyncio.Event()
    vendor.script(*(speaks("said", go_on) for _ in range(6)))
    before = asked(vendor)
    spawns = [says("x", agent="speaker", user_id="u") for _ in range(9)]
    task = asyncio.create_task(batch(gateway, *spawns))
    await vendor.wait_for(lambda v: asked(v) == before + 4)
    go_on.set()
    results = await task
    refused = [r for r in results if r["error" if "error" in r else "status"].startswith("backp")]
    assert len([r for r in results if r.get("final_text") == "said"]) == 6, results
    assert len(refused) == 3
    assert refused[0]["error"] == "backpressure: queue full"


WRONG: list[tuple[str, Any, str]] = [
    ("no spawns", {}, "spawn_runs: no spawns supplied\n"),
    ("empty", {"spawns": []}, "spawn_runs: no spawns supplied\n"),
    ("33", {"spawns": [says("x")] * 33}, "33"),
    ("detach", {"spawns": [says("x")], "mode": "detach"}, "detach"),
    ("other mode", {"spawns": [says("x")], "mode": "x"}, "must be join"),
    ("time", {"spawns": [says("x")], "timeout_ms": -1}, "timeout_ms"),
    ("types", {"spawns": "x"}, "bad json: "),
    ("entry", {"spawns": [says("x"), {"agent": 1}]}, "bad json: "),
]


@pytest.mark.parametrize(("body", "text"), [r[1:] for r in WRONG], ids=[r[0] for r in WRONG])
async def test_nothing_starts_when_the_request_is_wrong(
    gateway: GatewayUnderTest, body: Any, text: str
) -> None:
    before = await journals(gateway)
    response = await gateway.http.post("/v1/runs:batch", json=body)
    assert (response.status_code, text in response.text) == (400, True), response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert await journals(gateway) == before


async def test_the_content_type_is_checked(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.post(
        "/v1/runs:batch", content=b"x", headers={"content-type": "text/plain"}
    )
    assert response.status_code == 415


async def test_what_has_not_ended_in_time_is_cancelled(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(speaks("par\n", asyncio.Event()))
    late, quick = await batch(gateway, says("x", agent="speaker"), says("y"), timeout_ms=300)
    assert quick["final_text"] == "echo y"
    assert (late["status"], late["stop_reason"]) == ("cancelled", "batch timeout")
    assert late["final_text"] == "par\n"
    assert (await gateway.ended(late["agent_id"]))["status"] == "cancelled"


async def test_all_runs_of_a_batch_end_when_the_client_leaves(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(speaks("par\n", asyncio.Event()), speaks("par\n", asyncio.Event()))
    before = asked(vendor)
    spawns = [says("x", agent="speaker", agent_id=f"a_gone{i}") for i in (1, 2)]
    task = asyncio.create_task(gateway.http.post("/v1/runs:batch", json={"spawns": spawns}))
    await vendor.wait_for(lambda v: asked(v) == before + 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for i in (1, 2):
        ended = await gateway.ended(f"a_gone{i}")
        assert (ended["status"], ended["stop_reason"]) == ("cancelled", "client disconnected")


# Prefer: respond-async


async def detached(gateway: GatewayUnderTest, **body: Any) -> httpx.Response:
    return await gateway.http.post(
        "/v1/runs", json=body, headers={"Prefer": "wait=10, Respond-Async;x=y"}
    )


async def a_plain_run_is_cancelled_without_readers(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    """By then, any other run without readers would have been cancelled too."""
    vendor.script(speaks("par\n", asyncio.Event()))
    body = {"agent": "speaker", "prompt": "x"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        agent = (await stream.until("agent")).data["agent_id"]
    assert (await gateway.ended(agent))["stop_reason"] == "client disconnected"


async def test_a_run_that_nobody_waits_for_is_answered_with_its_ids(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    vendor.script(speaks("all\n", go_on, "said"))
    before = asked(vendor)
    response = await detached(gateway, agent="speaker", prompt="x")
    assert response.status_code == 202
    ids = response.json()
    assert set(ids) == {"run_id", "session_id", "agent_id"}
    assert response.headers["location"] == f"/v1/runs/{ids['run_id']}/stream"
    assert response.headers["preference-applied"] == "respond-async"
    await vendor.wait_for(lambda v: asked(v) == before + 1)
    await a_plain_run_is_cancelled_without_readers(gateway, vendor)
    assert (await gateway.status(ids["agent_id"]))["status"] == "running"
    go_on.set()
    stream = await gateway.http.get(response.headers["location"])
    assert sse_frames(stream.text)[-1].event == "done"
    assert (await gateway.ended(ids["agent_id"]))["status"] == "completed"


async def test_a_session_goes_on_without_readers_too(gateway: GatewayUnderTest) -> None:
    first = (await detached(gateway, agent="writer", prompt="x")).json()
    await gateway.ended(first["agent_id"])
    path = f"/v1/sessions/{first['session_id']}/messages"
    headers = {"Prefer": "respond-async"}
    response = await gateway.http.post(path, json={"prompt": "and?"}, headers=headers)
    assert response.status_code == 202
    second = response.json()
    assert second["session_id"] == first["session_id"]
    assert (await gateway.ended(second["agent_id"]))["status"] == "completed"


async def test_what_is_wrong_is_answered_as_ever(gateway: GatewayUnderTest) -> None:
    response = await detached(gateway, agent="ghost", prompt="x")
    assert (response.status_code, response.text) == (400, 'unknown agent "ghost"\n')


async def test_other_preferences_are_ignored(gateway: GatewayUnderTest) -> None:
    body = {"agent": "writer", "prompt": "x"}
    headers = {"Prefer": "return=minimal"}
    response = await gateway.http.post("/v1/runs", json=body, headers=headers)
    assert response.status_code == 200
    assert sse_frames(response.text)[-1].event == "done"
