"""The event catalogue (http-runs.md 4.3), row by row: live, re-attached and in the transcript.

Each scenario is a run through HTTP with vendors at the wire; its events must stand in the
specified order, and a client who comes later must be told the same, twice.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from events.vocabulary import TYPES, is_public
from tests.e2e.turns import Call, reply
from tests.wire.gateway import (
    GatewayUnderTest,
    Json,
    SseFrame,
    open_stream,
    serving,
    sse_frames,
)
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    environment,
    json_reply,
    sse,
)
from tests.wire.witness import Pay

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 8}
runtime: {reader_grace_ms: 50}
provider_priority: [anthropic, openai, deepseek]
interruption: {max_timeout_ms: 60000}
hooks: {permit_host_widen: {owners: [app]}}
tiers:
  middle: [{provider: anthropic, model: m-1}, {provider: deepseek, model: deepseek-reasoner}]
user_tiers:
  default: {}
  falling: {fallback_on_error: true}
  trying: {retry_attempts: 1}
agents:
  speaker: {provider: openai, model: gpt-fake-1}
  caller: {provider: openai, model: gpt-fake-1, allowed_tools: [Context, Pay]}
  once: {provider: openai, model: gpt-fake-1, allowed_tools: [Context], max_iterations: 1}
  strict: {provider: openai, model: gpt-fake-1, output_schema: {type: object}}
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true, kinds: [question]}
  tiered: {tier: middle, effort: medium, max_tokens: 9000, allowed_tools: [Context]}
  compact:
    provider: anthropic
    model: claude-fake-1
    allowed_tools: [Context]
    compaction: {enabled: true, keep_last_n: 2, autocompact_at_pct: 80}
  forgetful:
    provider: anthropic
    model: claude-fake-1
    allowed_tools: [Context]
    compaction: {keep_last_n: 0}
  boss: {provider: openai, model: gpt-fake-1, allowed_tools: [Agent]}
  echo:
    provider: code-js
    code: |
      function run(input) { return "echo of " + input.prompt; }
"""

FULL = 190_000
"""Tokens of a turn that fills a window of 200 000 beyond 80 %."""

BUSY = Reply([b"busy"], status=503)

Scenario = Callable[..., Awaitable[list[str]]]

PRODUCED: dict[str, str] = {}
"""Event -> the scenario that produces it."""


def produces(*events: str) -> Callable[[Scenario], Callable[..., Awaitable[None]]]:
    """A scenario returns the names of all its events; these must be among them."""

    def decorated(scenario: Scenario) -> Callable[..., Awaitable[None]]:
        PRODUCED.update(dict.fromkeys(events, scenario.__name__))

        @functools.wraps(scenario)
        async def test(*args: Any, **kwargs: Any) -> None:
            assert set(events) <= set(await scenario(*args, **kwargs))

        return test

    return decorated


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        models = json_reply(
            {"data": [{"id": name} for name in ("m-1", "deepseek-reasoner", "deepseek-chat")]}
        )
        vendor.listings |= {"/v1/models": models, "/deepseek/models": models}
        yield vendor


def settings(vendor: FakeVendor, **extra: str) -> dict[str, str]:
    return environment(vendor, LOOMCYCLE_CODE_AGENTS_ENABLED="1", **extra)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("catalogue")
    async with serving(directory, CONFIG, settings(vendor)) as gateway:
        tools: Any = gateway.runtime.services.tools
        tools[Pay.name] = Pay()
        yield gateway


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def fresh(gateway: GatewayUnderTest, vendor: FakeVendor) -> AsyncIterator[None]:
    """No script, and no provider that is avoided."""
    await gateway.http.post("/v1/_resolve/probe")
    vendor.requests.clear()
    yield
    assert not vendor.replies


# --- three times the same ---------------------------------------------------------------------


class Item(NamedTuple):
    """An event as a reader knows it; ``seq`` is 0 for a text, whose pieces have ids of their own.

    Input of people is ``user_input`` with its text, however a reader is told of it.
    """

    event: str
    content: Any
    seq: int = 0


def as_streamed(frames: Sequence[SseFrame]) -> list[Item]:
    """What a client that obeys ``text_reset`` knows after ``frames``."""
    items: list[Item] = []
    for frame in frames:
        match frame.event:
            case "session" | "agent":
                pass
            case "text" if items and items[-1].event == "text":
                items[-1] = Item("text", items[-1].content + frame.data["text"])
            case "text":
                items.append(Item("text", frame.data["text"]))
            case "text_reset":
                if items[-1].event == "text":
                    items.pop()
            case "steer":
                items.append(Item("user_input", frame.data["user_input"]["text"], int(frame.id)))
            case event:
                assert frame.data["type"] == event
                items.append(Item(event, frame.data, int(frame.id)))
    return items


def as_stored(transcript: Json, run_id: str) -> list[Item]:
    """The same of a run's rows."""
    items = []
    for row in transcript["events"]:
        if row["run_id"] != run_id:
            continue
        match row["type"]:
            case "system_prompt":
                pass
            case "text":
                items.append(Item("text", row["event"]["text"]))
            case "user_input":
                blocks = [b for segment in row["payload"] for b in segment["content"]]
                text = "\n".join(block["text"] for block in blocks)
                items.append(Item("user_input", text, row["seq"]))
            case event:
                items.append(Item(event, row["event"], row["seq"]))
    return items


async def told_thrice(
    gateway: GatewayUnderTest, frames: Sequence[SseFrame], *, unseen: Sequence[str] = ()
) -> list[str]:
    """Names of a run's events, once it is sure that all three readers know the same of it.

    ``frames`` are those of the request that started it: without its own input, and without the
    events that are only stored (``unseen``).
    """
    agent = next(frame.data for frame in frames if frame.event == "agent")
    run_id, session_id = agent["run_id"], agent["session_id"]
    answer = await gateway.http.get(f"/v1/runs/{run_id}/stream", headers={"Last-Event-ID": "0"})
    again = as_streamed(sse_frames(answer.text))
    rows = await gateway.http.get(f"/v1/sessions/{session_id}/transcript")
    assert as_stored(rows.json(), run_id) == again
    live = as_streamed(frames)
    at = [item.event for item in again].index("started")
    opening = [] if live[0].event == "user_input" else again[:at]
    assert [item.event for item in again[:at]] == ["user_input"]
    assert opening + live == [item for item in again if item.event not in unseen]
    return [frame.event for frame in frames] + [item.event for item in again]


def names(frames: Sequence[SseFrame]) -> list[str]:
    """The order of events, with the pieces of a text as one."""
    found: list[str] = []
    for frame in frames:
        if frame.event != "text" or found[-1] != "text":
            found.append(frame.event)
    return found


def one(frames: Sequence[SseFrame], event: str) -> Json:
    (data,) = [frame.data for frame in frames if frame.event == event]
    assert isinstance(data, dict)
    return data


START = ["session", "agent", "started"]
END = ["text", "usage", "done"]


# --- an ordinary run --------------------------------------------------------------------------


@produces("session", "agent", "started", "text", "usage", "done")
async def test_a_turn_is_text_in_pieces_usage_and_the_end(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    pause = asyncio.Event()
    vendor.script(reply("openai", "It was a bright day.\n", pause, "And a cold one."))
    body = {"agent": "speaker", "prompt": "hi", "parent_context": {"function_key": "f"}}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "text":
            frames.append(await stream.next())
        pause.set()
        frames += await stream.rest()
    assert names(frames) == [*START, *END]
    assert sum(frame.event == "text" for frame in frames) > 1
    session, agent = frames[0].data, frames[1].data
    assert session == {"type": "session", "text": agent["session_id"]}
    assert agent.keys() == {
        *("agent_id", "run_id", "session_id"),
        *("parent_agent_id", "parent_context"),
    }
    assert (agent["parent_agent_id"], agent["parent_context"]) == (None, {"function_key": "f"})
    tokens = {"input_tokens": 10, "output_tokens": 5}
    served = {"model": "gpt-fake-1", "provider": "openai"}
    usage = one(frames, "usage")["usage"]
    assert {k: usage[k] for k in (*tokens, "model")} == {**tokens, "model": "gpt-fake-1"}
    assert one(frames, "done") == {
        "type": "done",
        "stop_reason": "end_turn",
        "usage": tokens | served,
    }
    return await told_thrice(gateway, frames)


@produces("tool_call", "tool_result")
async def test_calls_of_a_turn_stand_before_its_usage_and_their_results_after_it(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    wanted = [Call("c1", "Context", {"op": "time"}), Call("c2", "Context", {"op": "nothing"})]
    vendor.script(reply("openai", "Let me look.", calls=wanted), reply("openai", "So it is."))
    frames = await gateway.run("caller")
    turn = ["text", "tool_call", "tool_call", "usage", "tool_result", "tool_result"]
    assert names(frames) == [*START, *turn, *END]
    shown = [f.data for f in frames if f.event == "tool_call"]
    assert shown == [
        {"type": "tool_call", "tool_use": {"id": c.id, "name": c.name, "input": c.input}}
        for c in wanted
    ]
    results = {f.data["tool_use"]["id"]: f.data for f in frames if f.event == "tool_result"}
    assert results["c1"].keys() == {"type", "tool_use", "text"}
    assert results["c2"]["is_error"] is True
    assert results["c2"]["tool_use"] == shown[1]["tool_use"]
    return await told_thrice(gateway, frames)


@produces("done")
async def test_a_run_that_is_cut_at_its_turns_is_done(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(reply("openai", calls=[Call("c1", "Context", {"op": "time"})]))
    frames = await gateway.run("once")
    assert names(frames) == [*START, "tool_call", "usage", "tool_result", "done"]
    assert frames[-1].data["stop_reason"] == "max_iterations"
    return await told_thrice(gateway, frames)


@produces("error")
async def test_a_run_that_failed_ends_with_one_error(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(Reply([b"no such model"], status=400))
    frames = await gateway.run("speaker")
    assert names(frames) == [*START, "error"]
    assert frames[-1].data == {"type": "error", "error": "openai 400: no such model"}
    return await told_thrice(gateway, frames)


@produces("error")
async def test_a_cancelled_run_keeps_what_was_said(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(reply("openai", "Once upon\n", asyncio.Event()))
    async with open_stream(
        gateway, "POST", "/v1/runs", json={"agent": "speaker", "prompt": "hi"}
    ) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "text":
            frames.append(await stream.next())
        agent_id = one(frames, "agent")["agent_id"]
        await gateway.http.post(f"/v1/agents/{agent_id}/cancel", json={"reason": "enough"})
        frames += await stream.rest()
    assert names(frames)[:4] == [*START, "text"]
    assert frames[-1].data == {"type": "error", "error": "cancelled: enough"}
    return await told_thrice(gateway, frames)


# --- providers that fail ----------------------------------------------------------------------


@produces("retry")
async def test_a_wait_is_told_before_the_same_request_is_sent_again(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    later = json_reply({}, status=429, headers={"Retry-After": "0"})
    vendor.script(later, BUSY, reply("openai", "Here."))
    frames = await gateway.run("speaker", user_tier="trying")
    assert names(frames) == [*START, "retry", "retry", *END]
    first, second = (f.data["retry"] for f in frames if f.event == "retry")
    assert first == {
        "provider": "openai",
        "attempt": 1,
        "wait_ms": 0,
        "reason": "retry-after header",
    }
    assert second.keys() == first.keys()
    assert second["reason"] == "exponential backoff"
    assert second["wait_ms"] > 0
    return await told_thrice(gateway, frames)


def thoughtful() -> Reply:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    look = {"type": "tool_use", "id": "t1", "name": "Context", "input": {"op": "self"}}
    return Reply([sse(*anthropic_events([thinking, look], stop_reason="tool_use"))])


@produces("provider_fallback", "cache_invalidated", "reasoning_invalidated", "model_downgraded")
async def test_a_switch_of_providers_is_told_in_all_its_consequences(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(thoughtful(), BUSY, reply("deepseek", "Done."))
    frames = await gateway.run("tiered", user_tier="falling")
    switch = [
        *("provider_fallback", "cache_invalidated"),
        *("reasoning_invalidated", "model_downgraded"),
    ]
    assert names(frames) == [*START, "tool_call", "usage", "tool_result", *switch, *END]
    assert one(frames, "provider_fallback")["fallback"] == {
        "failed_provider": "anthropic",
        "failed_model": "m-1",
        "new_provider": "deepseek",
        "new_model": "deepseek-reasoner",
        "attempt": 1,
        "user_tier": "falling",
        "reason": "retryable",
        "cause_error": "anthropic 503: busy",
    }
    for event in switch[1:]:
        assert one(frames, event).keys() == {"type", "text"}
    return await told_thrice(gateway, frames)


@produces("provider_fallback")
async def test_text_of_a_turn_that_broke_is_taken_back_everywhere(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    shown = asyncio.Event()
    broken = reply("anthropic", "half a sen\n", shown, Cut())
    vendor.script(broken, reply("deepseek", "A whole one."))
    body = {"agent": "tiered", "prompt": "hi", "user_tier": "falling"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "text":
            frames.append(await stream.next())
        shown.set()
        frames += await stream.rest()
    assert "text_reset" in names(frames)
    told = await told_thrice(gateway, frames)
    assert [i.content for i in as_streamed(frames) if i.event == "text"] == ["A whole one."]
    return told


@produces("fallback_suppressed")
async def test_a_switch_that_is_not_made_is_told_before_the_end(
    tmp_path: Path, vendor: FakeVendor
) -> list[str]:
    latched = settings(vendor, LOOMCYCLE_FALLBACK_PIN_AFTER_SUCCESS="1")
    async with serving(tmp_path, CONFIG, latched) as gateway:
        vendor.script(thoughtful(), BUSY)
        frames = await gateway.run("tiered", user_tier="falling")
        turn = ["tool_call", "usage", "tool_result"]
        assert names(frames) == [*START, *turn, "fallback_suppressed", "error"]
        assert one(frames, "fallback_suppressed").keys() == {"type", "text"}
        return await told_thrice(gateway, frames)


# --- answers that do not fit ------------------------------------------------------------------


@produces("answer_rejected")
async def test_an_answer_that_does_not_fit_is_told_to_be_none(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(reply("openai", "[1]"), reply("openai", '{"a": 1}'))
    frames = await gateway.run("strict")
    assert names(frames) == [*START, "text", "usage", "answer_rejected", *END]
    told = {"type": "answer_rejected", "text": "/: [1] is not of type 'object'"}
    assert one(frames, "answer_rejected") == told
    return await told_thrice(gateway, frames)


# --- people and hooks -------------------------------------------------------------------------


@produces("interruption_pending")
async def test_a_question_stands_between_its_call_and_the_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    asked = {
        "op": "ask",
        "question": "Which?",
        "options": ["red", "blue"],
        "context": "of the roses",
        "timeout_ms": 60_000,
    }
    vendor.script(
        reply("openai", calls=[Call("c1", "Interruption", asked)]), reply("openai", "Red.")
    )
    async with open_stream(
        gateway, "POST", "/v1/runs", json={"agent": "asker", "prompt": "hi"}
    ) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "interruption_pending":
            frames.append(await stream.next())
        question = dict(frames[-1].data["interruption"])
        ident = question.pop("interrupt_id")
        assert question.pop("expires_at").endswith("Z")
        assert question == {
            "kind": "question",
            "question": "Which?",
            "options": ["red", "blue"],
            "context": "of the roses",
            "priority": "normal",
        }
        path = f"/v1/runs/{one(frames, 'agent')['run_id']}/interrupts/{ident}/resolve"
        response = await gateway.http.post(path, json={"answer": "red"})
        assert response.status_code == 200, response.text
        frames += await stream.rest()
    turn = ["tool_call", "usage", "interruption_pending", "tool_result"]
    assert names(frames) == [*START, *turn, *END]
    return await told_thrice(gateway, frames)


@asynccontextmanager
async def hooked(gateway: GatewayUnderTest, answer: Json) -> AsyncIterator[None]:
    """An application with a hook before each payment."""
    async with FakeVendor() as app:
        app.route("POST", "/h", json_reply(answer))
        hook = {"owner": "app", "name": "h", "phase": "pre", "callback_url": f"{app.url}/h"}
        registered = await gateway.http.post("/v1/hooks", json={**hook, "tools": ["Pay"]})
        yield
        await gateway.http.delete(f"/v1/hooks/{registered.json()['id']}")


@produces("host_widened")
async def test_a_granted_host_is_told_between_a_call_and_its_result(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    call = Call("c1", "Pay", {"url": "http://api.example/x"})
    vendor.script(reply("openai", calls=[call]), reply("openai", "Paid."))
    async with hooked(gateway, {"allow_hosts": ["api.example"]}):
        frames = await gateway.run("caller")
    turn = ["tool_call", "usage", "host_widened", "tool_result"]
    assert names(frames) == [*START, *turn, *END]
    assert one(frames, "host_widened")["host_widening"] == {
        "tool_call_id": "c1",
        "tool_name": "Pay",
        "url": "http://api.example/x",
        "hook_owner": "app",
        "hook_name": "h",
        "hosts_added": ["api.example"],
    }
    return await told_thrice(gateway, frames)


async def say(gateway: GatewayUnderTest, run_id: str, text: str) -> None:
    response = await gateway.http.post(f"/v1/runs/{run_id}/input", json={"text": text})
    assert response.status_code == 200, response.text


@produces("steer")
async def test_input_during_a_turn_is_echoed_behind_it(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    go_on = asyncio.Event()
    vendor.script(reply("openai", "One moment.\n", go_on), reply("openai", "Both done."))
    async with open_stream(
        gateway, "POST", "/v1/runs", json={"agent": "speaker", "prompt": "hi"}
    ) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "text":
            frames.append(await stream.next())
        run_id = one(frames, "agent")["run_id"]
        await say(gateway, run_id, "First this.")
        await say(gateway, run_id, "Then that.")
        go_on.set()
        frames += await stream.rest()
    assert names(frames) == [*START, "text", "usage", "steer", "steer", *END]
    first, second = (f.data["user_input"] for f in frames if f.event == "steer")
    assert first.pop("seen_at").endswith("Z")
    assert first == {"text": "First this.", "source": "api"}
    assert second["text"] == "Then that."
    return await told_thrice(gateway, frames)


@produces("steer", "awaiting_input", "context_compaction")
async def test_a_conversation_waits_is_continued_compacted_and_ended(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(*(anthropic_text(f"Answer {i}.") for i in range(3)))
    body = {"agent": "compact", "prompt": "Question 0.", "interactive": True}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        frames: list[SseFrame] = []

        async def until(event: str) -> Json:
            frames.append(await stream.next())
            while frames[-1].event != event:
                frames.append(await stream.next())
            data: Json = frames[-1].data
            return data

        assert await until("awaiting_input") == {
            "type": "awaiting_input",
            "awaiting_input": {"since_turn": 0},
        }
        run = one(frames, "agent")
        for i in (1, 2):
            await say(gateway, run["run_id"], f"Question {i}.")
            assert (await until("awaiting_input"))["awaiting_input"] == {"since_turn": i}
        vendor.script(anthropic_text("We talked."))
        answer = await gateway.http.post(f"/v1/runs/{run['run_id']}/compact")
        assert answer.json()["applied"] == "live"
        shown = (await until("context_compaction"))["context_compaction"]
        assert (shown["summary"], shown["trigger"]) == ("We talked.", "manual")
        await gateway.http.post(f"/v1/agents/{run['agent_id']}/cancel")
        frames += await stream.rest()
    turn = ["text", "usage", "awaiting_input"]
    assert names(frames) == [
        *("session", "agent", "steer", "started"),
        *turn,
        *("steer", *turn),
        *("steer", *turn),
        "context_compaction",
        "done",
    ]
    assert "stop_reason" not in frames[-1].data or frames[-1].data["stop_reason"]
    return await told_thrice(gateway, frames)


# --- compaction on its own --------------------------------------------------------------------


def look(call_id: str, tokens: int = 10) -> Reply:
    return anthropic_tool_call("Context", {"op": "time"}, call_id=call_id, input_tokens=tokens)


@produces("context_compaction")
async def test_a_full_window_is_told_to_be_compacted(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(look("t1"), look("t2", FULL), anthropic_text("Half."), anthropic_text("Done."))
    frames = await gateway.run("compact")
    turn = ["tool_call", "usage", "tool_result"]
    assert names(frames) == [*START, *turn, *turn, "context_compaction", *END]
    shown = one(frames, "context_compaction")["context_compaction"]
    assert shown.keys() == {
        *("summary", "before_tokens", "after_tokens", "keep_n", "keep_first", "trigger"),
    }
    assert (shown["summary"], shown["keep_n"], shown["trigger"]) == ("Half.", 2, "auto")
    return await told_thrice(gateway, frames)


@produces("context_compaction")
async def test_a_model_that_asked_for_it_is_told_to_be_compacted(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}, text="Too much."),
        anthropic_text("All I know."),
        anthropic_text("Done."),
    )
    frames = await gateway.run("forgetful")
    turn = ["text", "tool_call", "usage", "tool_result"]
    assert names(frames) == [*START, *turn, "context_compaction", *END]
    assert one(frames, "context_compaction")["context_compaction"]["trigger"] == "self"
    return await told_thrice(gateway, frames)


@produces("error")
async def test_a_summary_that_failed_is_an_error_that_ends_nothing(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(look("t1"), look("t2", FULL), BUSY, anthropic_text("Done."))
    frames = await gateway.run("compact")
    turn = ["tool_call", "usage", "tool_result"]
    assert names(frames) == [*START, *turn, *turn, "error", *END]
    assert one(frames, "error")["error"].startswith("compaction summary failed (auto): ")
    return await told_thrice(gateway, frames)


# --- children ---------------------------------------------------------------------------------

FAN_OUT = {
    "op": "parallel_spawn",
    "spawns": [{"name": "echo", "prompt": "1"}, {"name": "nobody", "prompt": "2"}],
}


@produces("spawn_child_started", "spawn_child_result")
async def test_children_are_told_of_to_those_who_come_later_only(
    tmp_path: Path, vendor: FakeVendor
) -> list[str]:
    told = settings(vendor, LOOMCYCLE_RESUME_FANOUT="1")
    async with serving(tmp_path, CONFIG, told) as gateway:
        vendor.script(
            reply("openai", calls=[Call("c1", "Agent", FAN_OUT)]), reply("openai", "One of two.")
        )
        frames = await gateway.run("boss")
        assert names(frames) == [*START, "tool_call", "usage", "tool_result", *END]
        of_children = ("spawn_child_started", "spawn_child_result")
        known = await told_thrice(gateway, frames, unseen=of_children)
        path = f"/v1/runs/{one(frames, 'agent')['run_id']}/stream"
        again = sse_frames((await gateway.http.get(path)).text)
        begun = one(again, "spawn_child_started")["spawn_child"]
        assert (begun["tool_use_id"], begun["index"], begun["agent"]) == ("c1", 0, "echo")
        results = [f.data["spawn_child"] for f in again if f.event == "spawn_child_result"]
        assert {r["index"]: (r.get("ok", False), r["agent"]) for r in results} == {
            0: (True, "echo"),
            1: (False, "nobody"),
        }
        return known


@produces()
async def test_children_are_told_of_to_nobody_unless_the_deployment_says_so(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> list[str]:
    vendor.script(
        reply("openai", calls=[Call("c1", "Agent", FAN_OUT)]), reply("openai", "One of two.")
    )
    frames = await gateway.run("boss")
    assert names(frames) == [*START, "tool_call", "usage", "tool_result", *END]
    return await told_thrice(gateway, frames)


# --- nothing is left out ----------------------------------------------------------------------


async def test_every_row_of_the_catalogue_has_a_scenario() -> None:
    """Channels have events of their own as soon as there are channels."""
    frames = {"session", "agent", "steer"}
    rows = {event for event in TYPES if is_public(event)} - {"user_input", "system_prompt"}
    assert set(PRODUCED) == rows | frames
