"""Compaction through HTTP: on its own, asked for by the model, and asked for by a person."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from events.log import LogUnavailable
from events.streams import RUN_STREAM_NAMES
from loomcycle.commands import compact as compact_command
from loomcycle.journal import amend
from tests.e2e.proofs import prove_everything
from tests.wire.gateway import (
    GatewayUnderTest,
    Json,
    SseFrame,
    open_stream,
    serving,
    sse_frames,
    until,
)
from tests.wire.vendors import (
    FakeVendor,
    Hold,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    environment,
    json_reply,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECRET = "sk-very-secret-value-0123456789"

CONFIG = """
concurrency: {max_concurrent_runs: 8}
runtime: {reader_grace_ms: 50}
agents:
  worker:
    provider: anthropic
    model: claude-fake-1
    allowed_tools: [Context]
    compaction: {enabled: true, keep_last_n: 2, autocompact_at_pct: 80, model: claude-small-1}
  asker:
    provider: anthropic
    model: claude-fake-1
    allowed_tools: [Context]
    compaction: {keep_last_n: 0}
  talker:
    provider: anthropic
    model: claude-fake-1
    compaction: {keep_last_n: 2}
"""

FULL = 190_000
"""Tokens of a turn that fills a window of 200 000 beyond 80 %."""

TALK = {"agent": "talker", "prompt": "u0", "interactive": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("compaction")
    settings = environment(vendor, DEPLOYMENT_API_KEY=SECRET)
    async with serving(directory, CONFIG, settings) as gateway:
        yield gateway
        await cancel_all(gateway)
        await prove_everything(gateway.runtime.store)


async def cancel_all(gateway: GatewayUnderTest) -> None:
    """No run goes on, and its journal is whole."""
    runtime = gateway.runtime
    await runtime.views.barrier(await runtime.store.log.ends(RUN_STREAM_NAMES))
    runs = await runtime.views.queries.running_runs()
    for run in runs:
        await gateway.http.post(f"/v1/agents/{run.agent_id}/cancel")
    for run in runs:
        await gateway.ended(run.agent_id)


@pytest.fixture(autouse=True)
def nothing_scripted(vendor: FakeVendor) -> None:
    vendor.replies.clear()
    vendor.requests.clear()


def time_call(call_id: str, tokens: int = 10) -> Reply:
    return anthropic_tool_call("Context", {"op": "time"}, call_id=call_id, input_tokens=tokens)


def asked(vendor: FakeVendor, index: int) -> Json:
    body: Json = [r for r in vendor.requests if r.target == "/v1/messages"][index].json
    return body


def texts(messages: list[Json]) -> list[str]:
    return [
        block["text"]
        for message in messages
        for block in (
            [{"type": "text", "text": message["content"]}]
            if isinstance(message["content"], str)
            else message["content"]
        )
        if block["type"] == "text"
    ]


def kinds(frames: list[SseFrame]) -> list[str]:
    return [frame.event for frame in frames if frame.event not in ("session", "agent")]


async def replayed(gateway: GatewayUnderTest, run_id: str) -> list[SseFrame]:
    return sse_frames((await gateway.http.get(f"/v1/runs/{run_id}/stream")).text)


async def compact(gateway: GatewayUnderTest, run_id: str) -> Any:
    return await gateway.http.post(f"/v1/runs/{run_id}/compact")


async def say(gateway: GatewayUnderTest, run_id: str, text: str) -> None:
    response = await gateway.http.post(f"/v1/runs/{run_id}/input", json={"text": text})
    assert response.status_code == 200, response.text


# --- by itself ----------------------------------------------------------------------------


async def test_a_full_window_is_compacted_and_the_run_goes_on(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        time_call("t1"),
        time_call("t2", FULL),
        anthropic_text("  the task is half done \n", input_tokens=77, output_tokens=9),
        anthropic_text("done"),
    )
    frames = await gateway.run("worker", "the task")
    assert kinds(frames) == [
        "started",
        *["tool_call", "usage", "tool_result"] * 2,
        "context_compaction",
        "text",
        "usage",
        "done",
    ]
    shown = next(f.data for f in frames if f.event == "context_compaction")["context_compaction"]
    assert shown["summary"] == "the task is half done"
    assert (shown["keep_n"], shown["keep_first"], shown["trigger"]) == (2, True, "auto")
    assert shown["before_tokens"] > 0
    assert shown["after_tokens"] > 0

    summary = asked(vendor, 2)
    assert summary["model"] == "claude-small-1"
    assert "tools" not in summary
    assert len(summary["messages"]) == 1
    assert "[result of Context]" in texts(summary["messages"])[0]
    assert "the task" not in texts(summary["messages"])[0]
    last = asked(vendor, 3)
    assert last["model"] == "claude-fake-1"
    assert [m["role"] for m in last["messages"]] == ["user", "assistant", "user"]
    assert texts(last["messages"])[:2] == [
        "The task:\nthe task",
        "Summary of the conversation so far:\nthe task is half done\n\nGo on from here.",
    ]

    done = frames[-1].data["usage"]
    assert done["input_tokens"] == 10 + FULL + 77 + 10
    assert done["model"] == "claude-fake-1"
    run_id = frames[1].data["run_id"]
    again = [f for f in await replayed(gateway, run_id) if f.event == "context_compaction"]
    assert [f.data["context_compaction"] for f in again] == [shown]
    session = frames[0].data["text"]
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    rows = [e for e in transcript["events"] if e["type"] == "context_compaction"]
    assert [row["event"]["context_compaction"] for row in rows] == [shown]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (json_reply({"error": {"type": "api_error", "message": "boom"}}, status=500), "500"),
        (anthropic_text("  \n "), ""),
    ],
)
async def test_without_a_summary_the_run_goes_on_with_its_whole_conversation(
    gateway: GatewayUnderTest, vendor: FakeVendor, answer: Reply, error: str
) -> None:
    vendor.script(time_call("t1"), time_call("t2", FULL), answer, anthropic_text("done"))
    frames = await gateway.run("worker", "the task")
    said = [f.data["error"] for f in frames if f.event == "error"]
    assert len(said) == bool(error)
    assert all(text.startswith("compaction summary failed (auto): ") for text in said)
    assert all(error in text for text in said)
    assert "context_compaction" not in kinds(frames)
    assert frames[-1].event == "done"
    assert len(asked(vendor, 3)["messages"]) == 5


async def test_a_model_that_asks_for_it_goes_on_with_the_summary(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}, text="too much"),
        anthropic_text("all I know"),
        anthropic_text("done"),
    )
    frames = await gateway.run("asker", "the task")
    result = next(f.data for f in frames if f.event == "tool_result")
    assert result["text"] == '{"compaction":"scheduled","applies_at":"the next step"}'
    shown = next(f.data for f in frames if f.event == "context_compaction")["context_compaction"]
    assert shown["trigger"] == "self"
    assert "keep_n" not in shown
    assert [m["role"] for m in asked(vendor, 2)["messages"]] == ["user"]


async def test_a_secret_in_a_summary_is_masked_in_the_log_and_plain_for_the_model(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}, text=f"I take {SECRET}"),
        anthropic_text(f"the key is {SECRET}"),
        anthropic_text("done"),
    )
    frames = await gateway.run("asker", f"use {SECRET}")
    assert SECRET not in str(frames)
    assert texts(asked(vendor, 1)["messages"])[0].startswith(f"assistant: I take {SECRET}")
    head = texts(asked(vendor, 2)["messages"])
    assert head[0] == f"The task:\nuse {SECRET}"
    assert f"the key is {SECRET}\n\nGo on from here." in head[1]
    assert (
        SECRET not in (await gateway.http.get(f"/v1/runs/{frames[1].data['run_id']}/stream")).text
    )


# --- asked for by a person ----------------------------------------------------------------


@asynccontextmanager
async def waiting(
    gateway: GatewayUnderTest, vendor: FakeVendor, turns: int = 2
) -> AsyncIterator[tuple[str, Any]]:
    """(run id, its stream) of a run that was said u0 to u<turns> and waits again."""
    vendor.script(*(anthropic_text(f"a{i}") for i in range(turns + 1)))
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run_id = (await stream.until("agent")).data["run_id"]
        await stream.until("awaiting_input")
        for i in range(1, turns + 1):
            await say(gateway, run_id, f"u{i}")
            await stream.until("awaiting_input")
        yield run_id, stream


async def test_a_run_that_waits_is_compacted_and_waits_on(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with waiting(gateway, vendor) as (run_id, stream):
        vendor.script(anthropic_text("we talked"), anthropic_text("a3"))
        reply = await compact(gateway, run_id)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        assert (answer["run_id"], answer["compacted"], answer["applied"]) == (run_id, True, "live")
        shown = (await stream.until("context_compaction")).data["context_compaction"]
        assert shown["trigger"] == "manual"
        assert answer["before_tokens"] == shown["before_tokens"]
        assert answer["after_tokens"] == shown["after_tokens"]
        await say(gateway, run_id, "u3")
        assert (await stream.next()).event == "steer"
        await stream.until("awaiting_input")
        assert texts(asked(vendor, -1)["messages"]) == [
            "The task:\nu0",
            "Summary of the conversation so far:\nwe talked",
            "u2",
            "a2",
            "u3",
        ]


async def test_a_short_conversation_is_left_alone_without_a_model_call(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with waiting(gateway, vendor, turns=0) as (run_id, _):
        calls = len(vendor.requests)
        answer = (await compact(gateway, run_id)).json()
        assert answer["applied"] == "noop"
        assert answer["compacted"] is False
        assert answer["before_tokens"] == answer["after_tokens"] == 1
        assert len(vendor.requests) == calls


async def test_a_compaction_that_waited_for_another_tells_what_that_one_left(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with waiting(gateway, vendor) as (run_id, _):
        go_on = asyncio.Event()
        summary = sse(*anthropic_events([{"type": "text", "text": "we talked " * 50}]))
        vendor.script(Reply([Hold(go_on), summary]))
        asked_before = len(vendor.requests)
        first = asyncio.create_task(compact(gateway, run_id))
        await vendor.wait_for(lambda v: len(v.requests) > asked_before)
        second = asyncio.create_task(compact(gateway, run_id))
        await until(lambda: messages_for(gateway, run_id, "compact", 2))
        go_on.set()
        made, left = (await first).json(), (await second).json()
        assert (made["applied"], left["applied"]) == ("live", "noop")
        assert made["before_tokens"] < made["after_tokens"]
        assert left["before_tokens"] == left["after_tokens"] == made["after_tokens"]


async def messages_for(
    gateway: GatewayUnderTest, run_id: str, kind: str, count: int
) -> bool | None:
    """Whether the inbox of the run got ``count`` messages of a kind."""
    store = gateway.runtime.store
    messages = await store.log.read(store.subjects.inbox("default", run_id))
    messages += await store.log.read(store.subjects.inbox("", run_id))
    found = [m for m in messages if f'"type":"{kind}"'.encode() in m.data]
    return True if len(found) >= count else None


async def test_a_model_that_asks_who_it_is_learns_how_full_its_window_is(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    look = anthropic_tool_call(
        "Context", {"op": "self"}, input_tokens=100, output_tokens=700, cache_read=40_000,
        cache_creation=900,
    )  # fmt: skip
    vendor.script(look, anthropic_text("I see."))
    frames = await gateway.run("asker")
    (result,) = (f.data["text"] for f in frames if f.event == "tool_result")
    assert json.loads(result)["context"] == {
        "used_tokens": 41_000, "max_tokens": 200_000, "used_pct": 20,
    }  # fmt: skip


async def test_a_failed_summary_of_a_waiting_run_is_told_and_changes_nothing(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with waiting(gateway, vendor) as (run_id, stream):
        vendor.script(json_reply({"error": {"type": "api_error", "message": "x"}}, status=500))
        reply = await compact(gateway, run_id)
        assert reply.status_code == 502
        assert reply.text.startswith("summarize: ")
        assert (
            (await stream.until("error"))
            .data["error"]
            .startswith("compaction summary failed (manual): ")
        )
        vendor.script(anthropic_text(" "))
        reply = await compact(gateway, run_id)
        assert (reply.status_code, reply.text) == (502, "summarization produced no text\n")
        vendor.script(anthropic_text("at last"))
        assert (await compact(gateway, run_id)).json()["applied"] == "live"


async def test_a_run_in_a_turn_is_busy(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    go_on = asyncio.Event()
    vendor.script(Reply([Hold(go_on), sse(*anthropic_events([{"type": "text", "text": "a"}]))]))
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run_id = (await stream.until("agent")).data["run_id"]
        await stream.until("started")
        reply = await compact(gateway, run_id)
        assert reply.status_code == 409
        assert reply.json()["code"] == "run_busy"
        go_on.set()
        await stream.until("awaiting_input")


async def test_unknown_runs_and_broken_ids_are_refused(gateway: GatewayUnderTest) -> None:
    reply = await compact(gateway, "r_0000000000000000")
    assert (reply.status_code, reply.text) == (404, "no run for that run_id\n")
    assert (await compact(gateway, "r.0")).status_code == 400


# --- after the end ------------------------------------------------------------------------


async def ended_run(gateway: GatewayUnderTest, vendor: FakeVendor) -> tuple[str, str]:
    """(session, run) of a run with five messages."""
    vendor.script(time_call("t1"), time_call("t2"), anthropic_text("finished"))
    frames = await gateway.run("worker", "the task")
    assert frames[-1].event == "done"
    return frames[0].data["text"], frames[1].data["run_id"]


async def continue_(gateway: GatewayUnderTest, session: str, text: str) -> list[SseFrame]:
    response = await gateway.http.post(f"/v1/sessions/{session}/messages", json={"prompt": text})
    assert response.status_code == 200, response.text
    return sse_frames(response.text)


async def test_an_ended_run_is_compacted_for_those_who_continue_it(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    session, run_id = await ended_run(gateway, vendor)
    vendor.script(anthropic_text("it is finished"))
    answer = (await compact(gateway, run_id)).json()
    assert (answer["applied"], answer["compacted"]) == ("marker", True)
    status = await gateway.http.get(f"/v1/sessions/{session}/transcript")
    last = status.json()["events"][-1]
    assert last["type"] == "context_compaction"
    assert last["event"]["context_compaction"]["trigger"] == "manual"
    vendor.script(anthropic_text("indeed"))
    frames = await continue_(gateway, session, "and now?")
    assert frames[-1].event == "done"
    said = texts(asked(vendor, -1)["messages"])
    assert said[:2] == [
        "The task:\nthe task",
        f"Summary of the conversation so far:\n{'it is finished'}\n\nGo on from here.",
    ]
    assert said[-1] == "and now?"
    reply = await compact(gateway, run_id)
    assert reply.status_code == 409
    assert reply.json()["code"] == "later_runs"
    vendor.script(anthropic_text("both"), anthropic_text("yes"))
    later = frames[1].data["run_id"]
    assert (await compact(gateway, later)).json()["applied"] == "marker"
    assert (await continue_(gateway, session, "sure?"))[-1].event == "done"
    said = texts(asked(vendor, -1)["messages"])
    assert said[0] == "The task:\nthe task"
    assert "both" in said[1]
    assert "it is finished" not in "".join(said)


async def test_the_status_of_an_ended_run_survives_its_compaction(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    _, run_id = await ended_run(gateway, vendor)
    agent_id = run_id.replace("r_", "a_")
    before = await gateway.status(agent_id)
    vendor.script(anthropic_text("s"))
    assert (await compact(gateway, run_id)).json()["applied"] == "marker"
    after = await gateway.status(agent_id)
    assert (after["status"], after["completed_at"]) == ("completed", before["completed_at"])
    frames = await replayed(gateway, run_id)
    assert [f.event for f in frames[-2:]] == ["done", "context_compaction"]


async def test_an_ended_run_without_summary_stays_as_it_is(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    _, run_id = await ended_run(gateway, vendor)
    vendor.script(json_reply({"error": {"type": "api_error", "message": "x"}}, status=500))
    reply = await compact(gateway, run_id)
    assert reply.status_code == 502
    assert reply.text.startswith("summarize: ")
    vendor.script(anthropic_text(""))
    reply = await compact(gateway, run_id)
    assert (reply.status_code, reply.text) == (502, "summarization produced no text\n")


async def continued_during(
    gateway: GatewayUnderTest, vendor: FakeVendor, session: str, run_id: str, *, turns: int
) -> Any:
    """The answer to a compaction whose summary takes as long as ``turns`` continuations."""
    go_on = asyncio.Event()
    block = {"type": "text", "text": "too late"}
    vendor.script(Reply([Hold(go_on), sse(*anthropic_events([block]))]))
    calls = len(vendor.requests)
    compacting = asyncio.create_task(compact(gateway, run_id))
    await vendor.wait_for(lambda v: len(v.requests) > calls)
    for turn in range(turns):
        vendor.script(anthropic_text(f"a{turn}"))
        assert (await continue_(gateway, session, f"u{turn}"))[-1].event == "done"
    go_on.set()
    return await compacting


async def test_a_session_that_went_on_during_the_summary_is_not_compacted(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    session, run_id = await ended_run(gateway, vendor)
    reply = await continued_during(gateway, vendor, session, run_id, turns=2)
    assert (reply.status_code, reply.json()["code"]) == (409, "later_runs")
    assert "context_compaction" not in kinds(await replayed(gateway, run_id))
    vendor.script(anthropic_text("yes"))
    assert (await continue_(gateway, session, "sure?"))[-1].event == "done"
    assert "too late" not in "".join(texts(asked(vendor, -1)["messages"]))


async def test_a_session_that_goes_on_right_before_the_amendment_is_not_compacted(
    gateway: GatewayUnderTest, vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, run_id = await ended_run(gateway, vendor)

    async def late(*args: Any, **options: Any) -> int:
        monkeypatch.undo()
        vendor.script(anthropic_text("a0"))
        assert (await continue_(gateway, session, "u0"))[-1].event == "done"
        return await amend(*args, **options)

    monkeypatch.setattr(compact_command, "amend", late)
    vendor.script(anthropic_text("too late"))
    reply = await compact(gateway, run_id)
    assert (reply.status_code, reply.json()["code"]) == (409, "later_runs")
    assert "context_compaction" not in kinds(await replayed(gateway, run_id))


async def test_a_compaction_that_was_cut_off_before_the_amendment_holds_nobody_up(
    gateway: GatewayUnderTest, vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, run_id = await ended_run(gateway, vendor)

    async def dies(*_: Any, **__: Any) -> int:
        raise LogUnavailable("the process dies here")

    monkeypatch.setattr(compact_command, "amend", dies)
    vendor.script(anthropic_text("lost"))
    assert (await compact(gateway, run_id)).status_code == 503
    monkeypatch.undo()
    vendor.script(anthropic_text("found"))
    assert (await compact(gateway, run_id)).json()["applied"] == "marker"
    monkeypatch.setattr(compact_command, "amend", dies)
    vendor.script(anthropic_text("lost"))
    assert (await compact(gateway, run_id)).status_code == 503
    vendor.script(anthropic_text("indeed"))
    assert (await continue_(gateway, session, "and now?"))[-1].event == "done"
    assert "found" in texts(asked(vendor, -1)["messages"])[1]


async def test_two_compactions_at_once_make_one_marker_each_or_are_refused(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    session, run_id = await ended_run(gateway, vendor)
    vendor.script(*(anthropic_text(f"s{i}") for i in range(8)))
    replies = await asyncio.gather(compact(gateway, run_id), compact(gateway, run_id))
    made = [r.json() for r in replies if r.status_code == 200]
    markers = kinds(await replayed(gateway, run_id)).count("context_compaction")
    assert markers == sum(answer["applied"] == "marker" for answer in made) >= 1
    vendor.replies.clear()
    vendor.script(anthropic_text("indeed"))
    assert (await continue_(gateway, session, "and now?"))[-1].event == "done"


# --- on another replica -------------------------------------------------------------------


async def test_a_run_that_waits_is_compacted_through_any_replica_and_goes_on_elsewhere(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    settings = environment(vendor)
    async with serving(tmp_path, CONFIG, settings) as one:
        async with (
            serving(tmp_path, CONFIG, settings) as other,
            waiting(one, vendor) as (run_id, _),
        ):
            await parked(other, run_id)
            vendor.script(anthropic_text("we talked"), anthropic_text("a3"))
            assert (await compact(other, run_id)).json()["applied"] == "live"
            await say(other, run_id, "u3")
            await until(lambda: answered(vendor, 5))
            await parked(other, run_id)
        said = texts(asked(vendor, -1)["messages"])
        assert said[1] == "Summary of the conversation so far:\nwe talked"
        await cancel_all(one)
        await prove_everything(one.runtime.store)


async def answered(vendor: FakeVendor, count: int) -> bool | None:
    return True if len([r for r in vendor.requests if r.method == "POST"]) >= count else None


async def parked(gateway: GatewayUnderTest, run_id: str) -> None:
    async def is_parked() -> bool | None:
        run = await gateway.runtime.views.queries.run(run_id)
        return True if run is not None and run.parked else None

    await until(is_parked)
