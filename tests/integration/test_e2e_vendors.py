"""A run with each vendor, from the request to the transcript (http-runs.md 4, loop.md 2 to 8).

Real HTTP on both sides: the client's and the vendor's. Every journal that these tests leave
behind is verified at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.proofs import assert_durable_ids, prove_everything, rows, text_of, whole_texts
from tests.e2e.turns import (
    ERROR_NAMES,
    INPUT_TOKENS,
    MODELS,
    OUTPUT_TOKENS,
    VENDORS,
    WITHOUT_CALL_IDS,
    Call,
    Told,
    asked,
    conversation,
    reply,
)
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, open_stream, serving
from tests.wire.vendors import Cut, FakeVendor, Reply, Stall, environment, json_reply, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

IDLE_MS = 700

AGENT = """
  {name}: {{provider: {provider}, model: m-1, system_prompt: Be brief., memory_scopes: [user],
    allowed_tools: [Read, Memory], volumes: [docs]{more}}}"""


def config(docs: str) -> str:
    agents = [AGENT.format(name=v, provider=v, more="") for v in VENDORS]
    agents.append(AGENT.format(name="impatient", provider="openai", more=", max_iterations: 2"))
    return f"""
concurrency: {{max_concurrent_runs: 8}}
runtime: {{reader_grace_ms: 400}}
volumes:
  docs: {{path: {docs}, mode: ro}}
agents:{"".join(agents)}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("vendors")
    docs = directory / "docs"
    docs.mkdir()
    (docs / "note.txt").write_text("the note")
    settings = environment(
        vendor,
        LOOMCYCLE_PROVIDER_IDLE_TIMEOUT_MS=str(IDLE_MS),
        LOOMCYCLE_PROVIDER_HEADER_TIMEOUT_MS=str(IDLE_MS),
    )
    async with serving(directory, config(str(docs)), settings) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def fresh_script(vendor: FakeVendor) -> AsyncIterator[None]:
    vendor.requests.clear()
    yield
    assert not vendor.replies


READ = Call("call_a", "Read", {"path": "note.txt"})
COUNT = Call("call_b", "Memory", {"op": "incr", "scope": "user", "key": "seen"})


async def transcript_of(gateway: GatewayUnderTest, frames: list[SseFrame]) -> Json:
    response = await gateway.http.get(f"/v1/sessions/{frames[0].data['text']}/transcript")
    assert response.status_code == 200
    transcript: Json = response.json()
    return transcript


def kinds(frames: list[SseFrame]) -> list[str]:
    """Event names, a text in pieces counted once."""
    return [event for event, _ in whole_texts(frames)]


@pytest.mark.parametrize("name", VENDORS)
async def test_a_turn_of_two_tools_and_an_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    vendor.script(
        reply(name, "Let me ", "look.", calls=[READ, COUNT]),
        reply(name, "It says: ", "the note."),
    )
    frames = await gateway.run(name, user_id=f"u-{name}", prompt="What does the note say?")
    assert [f.event for f in frames[:3]] == ["session", "agent", "started"]
    results = ["tool_result", "tool_result"]
    calls = ["tool_call", "tool_call"]
    assert kinds(frames) == [
        "started", "text", *calls, "usage", *results, "text", "usage", "done",
    ]  # fmt: skip

    ids = ["lc-0-0", "lc-0-1"] if name in WITHOUT_CALL_IDS else [READ.id, COUNT.id]
    called = [f.data["tool_use"] for f in frames if f.event == "tool_call"]
    assert called == [
        {"id": ids[0], "name": "Read", "input": READ.input},
        {"id": ids[1], "name": "Memory", "input": COUNT.input},
    ]
    answers = {f.data["tool_use"]["id"]: f.data for f in frames if f.event == "tool_result"}
    assert answers[ids[0]] == {"type": "tool_result", "tool_use": called[0], "text": "the note"}
    assert answers[ids[1]]["tool_use"] == called[1]
    assert json.loads(answers[ids[1]]["text"]) == {"value": 1}
    assert text_of(frames) == "Let me look.It says: the note."

    usages = [f.data["usage"] for f in frames if f.event == "usage"]
    for usage in usages:
        assert (usage["input_tokens"], usage["output_tokens"]) == (INPUT_TOKENS, OUTPUT_TOKENS)
        assert usage["model"] == MODELS[name]
        assert "provider" not in usage
    done = frames[-1].data
    assert done["stop_reason"] == "end_turn"
    assert done["usage"] == {
        "input_tokens": 2 * INPUT_TOKENS,
        "output_tokens": 2 * OUTPUT_TOKENS,
        "model": MODELS[name],
        "provider": name,
    }

    first, second = asked(vendor)
    question = Told("user", "What does the note say?")
    assert conversation(name, first) == [question]
    assert b"Be brief." in first.body
    wanted = (("Read", READ.input), ("Memory", COUNT.input))
    assert conversation(name, second) == [
        question,
        Told("assistant", "Let me look.", wanted),
        Told("user", results=("the note", answers[ids[1]]["text"])),
    ]

    transcript = await transcript_of(gateway, frames)
    assert rows(transcript) == whole_texts(frames)
    assert_durable_ids(frames, transcript)
    assert [row["type"] for row in transcript["events"]][:2] == ["user_input", "system_prompt"]
    status = await gateway.status(frames[1].data["agent_id"])
    assert (status["status"], status["stop_reason"]) == ("completed", "end_turn")
    assert status["usage"] == done["usage"]


async def test_results_are_shown_as_they_come_and_told_in_call_order(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    calls = [READ, Call("call_x", "Nope", {"deep": [1.5, None, "ü"]}), COUNT]
    vendor.script(reply("openai", calls=calls), reply("openai", "fine"))
    frames = await gateway.run("openai", user_id="u-order")
    answers = {f.data["tool_use"]["id"]: f.data for f in frames if f.event == "tool_result"}
    assert answers["call_x"] == {
        "type": "tool_result",
        "tool_use": {"id": "call_x", "name": "Nope", "input": {"deep": [1.5, None, "ü"]}},
        "text": "tool not found: Nope",
        "is_error": True,
    }
    told = conversation("openai", asked(vendor)[1])[-1].results
    assert told == tuple(answers[call.id]["text"] for call in calls)
    assert frames[-1].event == "done"


@pytest.mark.parametrize("name", VENDORS)
async def test_a_rate_limited_call_announces_its_wait_and_goes_on(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    limited = json_reply({"error": "slow down"}, status=429, headers={"Retry-After": "0"})
    vendor.script(limited, limited, reply(name, "at last"))
    frames = await gateway.run(name)
    retries = [f.data["retry"] for f in frames if f.event == "retry"]
    provider = ERROR_NAMES.get(name, name)
    reason = "retry-after header"
    assert retries == [
        {"provider": provider, "attempt": n, "wait_ms": 0, "reason": reason} for n in (1, 2)
    ]
    assert kinds(frames) == ["started", "retry", "retry", "text", "usage", "done"]
    bodies = {request.body for request in asked(vendor)}
    assert len(bodies) == 1
    assert rows(await transcript_of(gateway, frames)) == whole_texts(frames)


async def test_the_retry_frame_comes_before_the_wait(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        json_reply({}, status=429, headers={"Retry-After": "1"}), reply("anthropic", "now")
    )
    body = {"agent": "anthropic", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        session = (await stream.until("session")).data["text"]
        retry = await stream.until("retry")
        assert retry.data["retry"]["wait_ms"] == 1000
        assert len(asked(vendor)) == 1
        stored = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
        assert stored["events"][-1]["type"] == "retry"
        assert len(asked(vendor)) == 1
        assert (await stream.rest())[-1].event == "done"


async def test_a_cancel_ends_the_wait_for_a_rate_limit(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(json_reply({}, status=429, headers={"Retry-After": "60"}))
    body = {"agent": "openai", "prompt": "hi", "agent_id": "a_limited"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("retry")
        await gateway.http.post("/v1/agents/a_limited/cancel")
        await stream.rest()
    assert (await gateway.ended("a_limited"))["status"] == "cancelled"


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("status", [500, 503, 529, 400])
async def test_a_refused_call_fails_the_run_with_the_vendors_text(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str, status: int
) -> None:
    vendor.script(Reply([b"  the reason\n"], status=status))
    frames = await gateway.run(name)
    text = f"{ERROR_NAMES.get(name, name)} {status}: the reason"
    assert whole_texts(frames) == [
        ("started", {"type": "started"}),
        ("error", {"type": "error", "error": text}),
    ]
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row.get("stop_reason"), row["error"]) == ("failed", None, text)
    assert rows(await transcript_of(gateway, frames)) == whole_texts(frames)
    assert len(asked(vendor)) == 1


@pytest.mark.parametrize("name", VENDORS)
async def test_a_cut_stream_fails_the_run_and_keeps_what_was_said(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    vendor.script(reply(name, "half a sen", Cut()))
    frames = await gateway.run(name)
    assert kinds(frames) == ["started", "text", "error"]
    assert text_of(frames) == "half a sen"
    error = frames[-1].data["error"]
    assert error.startswith("stream read: ")
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["error"]) == ("failed", f"provider error: {error}")
    assert rows(await transcript_of(gateway, frames)) == whole_texts(frames)


@pytest.mark.parametrize("name", VENDORS)
async def test_a_stream_that_ends_early_is_no_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    whole = reply(name, "half")
    vendor.script(Reply(whole.parts[:-1]))
    frames = await gateway.run(name)
    assert frames[-1].event == "error"
    assert frames[-1].data["error"].startswith("stream read: ")


async def test_a_silent_stream_and_silent_headers_fail_the_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async def stalls(said: Reply) -> tuple[str, str]:
        vendor.script(said)
        frames = await gateway.run("anthropic")
        row = await gateway.ended(frames[1].data["agent_id"])
        return frames[-1].data["error"], row["error"]

    shown, row = await stalls(reply("anthropic", "half", Stall()))
    assert shown.startswith("stream read: context deadline exceeded")
    assert row == f"provider error: {shown}"
    shown, row = await stalls(Reply(stall_headers=True))
    assert shown.startswith("http: timeout awaiting response headers")
    assert row == shown


async def test_an_error_inside_the_stream_is_prefixed_in_the_row_only(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    vendor.script(Reply([*reply("anthropic", "so ").parts[:-1], sse(overloaded)]))
    frames = await gateway.run("anthropic")
    assert [f.data for f in frames if f.event == "error"] == [
        {"type": "error", "error": "overloaded_error: Busy"}
    ]
    row = await gateway.ended(frames[1].data["agent_id"])
    assert row["error"] == "provider error: overloaded_error: Busy"


async def test_a_run_at_its_iteration_cap_completes_after_its_last_tools(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", calls=[READ]), reply("openai", "more", calls=[READ]))
    frames = await gateway.run("impatient")
    turn = ["tool_call", "usage", "tool_result"]
    assert kinds(frames) == ["started", *turn, "text", *turn, "done"]
    assert frames[-1].data["stop_reason"] == "max_iterations"
    assert frames[-1].data["usage"]["input_tokens"] == 2 * INPUT_TOKENS
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["stop_reason"]) == ("completed", "max_iterations")


STOPPED_BY_LENGTH = {
    "anthropic": "max_tokens",
    "openai": "length",
    "deepseek": "length",
    "gemini": "MAX_TOKENS",
    "ollama": "length",
}


@pytest.mark.parametrize("name", VENDORS)
async def test_an_answer_cut_by_max_tokens_ends_the_run_without_its_tools(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    calls = [] if name == "ollama" else [READ]
    vendor.script(reply(name, "and then", calls=calls, stop=STOPPED_BY_LENGTH[name]))
    frames = await gateway.run(name)
    expected = ["started", "text", *["tool_call"] * len(calls), "usage", "done"]
    assert kinds(frames) == expected
    assert frames[-1].data["stop_reason"] == "max_tokens"
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["stop_reason"]) == ("completed", "max_tokens")


@pytest.mark.parametrize("name", VENDORS)
async def test_a_cancel_while_the_vendor_holds_its_answer_is_prompt(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    vendor.script(reply(name, "thinking about it\n", asyncio.Event()))
    body = {"agent": name, "prompt": "hi", "agent_id": f"a_cancel_{name}"}
    dropped = vendor.dropped
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        session = (await stream.until("session")).data["text"]
        await stream.until("text")
        began = asyncio.get_running_loop().time()
        answer = await gateway.http.post(
            f"/v1/agents/a_cancel_{name}/cancel", json={"reason": "enough"}
        )
        assert answer.json() == {
            "cancelled": True, "agent_id": f"a_cancel_{name}", "reason": "enough",
            "cancelled_count": 1,
        }  # fmt: skip
        rest = await stream.rest()
        assert asyncio.get_running_loop().time() - began < IDLE_MS / 1000 / 2
    assert [f.event for f in rest] == ["error"]
    await vendor.wait_for(lambda v: v.dropped > dropped)
    row = await gateway.ended(f"a_cancel_{name}")
    assert (row["status"], row["stop_reason"], row.get("error")) == ("cancelled", "enough", None)
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    assert ("text", {"type": "text", "text": "thinking about it\n"}) in rows(transcript)


async def test_a_cancel_before_the_first_byte_of_an_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(Reply(stall_headers=True))
    body = {"agent": "openai", "prompt": "hi", "agent_id": "a_silent"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await vendor.wait_for(lambda v: len(asked(v)) == 1)
        await gateway.http.post("/v1/agents/a_silent/cancel")
        assert (await stream.rest())[-1].event == "error"
    row = await gateway.ended("a_silent")
    assert (row["status"], row["stop_reason"]) == ("cancelled", "cancelled by api")
    again = (await gateway.http.post("/v1/agents/a_silent/cancel")).json()
    assert again == {
        "cancelled": False, "agent_id": "a_silent", "status": "cancelled", "cancelled_count": 0,
    }  # fmt: skip


async def test_a_run_without_readers_is_cancelled_after_the_grace(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", "one\n", asyncio.Event()))
    body = {"agent": "openai", "prompt": "hi", "agent_id": "a_alone"}
    dropped = vendor.dropped
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("text")
    assert (await gateway.status("a_alone"))["status"] == "running"
    row = await gateway.ended("a_alone")
    assert (row["status"], row["stop_reason"]) == ("cancelled", "client disconnected")
    await vendor.wait_for(lambda v: v.dropped > dropped)


async def test_a_reader_that_comes_back_in_the_grace_keeps_the_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    beats = [asyncio.Event() for _ in range(4)]
    spoken: list[Any] = ["one\n"]
    for number, beat in enumerate(beats):
        spoken += [beat, f"{number}\n"]
    vendor.script(reply("openai", *spoken))
    body = {"agent": "openai", "prompt": "hi", "agent_id": "a_back"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data["run_id"]
        last = await stream.until("text")
    headers = {"Last-Event-ID": last.id}
    async with open_stream(gateway, "GET", f"/v1/runs/{run}/stream", headers=headers) as stream:
        for beat in beats:
            await asyncio.sleep(0.2)  # together longer than the grace
            beat.set()
        frames = await stream.rest()
    assert frames[-1].event == "done"
    assert text_of(frames) == "0\n1\n2\n3\n"
    assert (await gateway.ended("a_back"))["status"] == "completed"
