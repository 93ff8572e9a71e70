"""Continuing sessions, transcripts, and reading a run again (http-runs.md 7, 8, 11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from loomcycle.runtime import Runtime
from tests.wire.gateway import GatewayUnderTest, open_stream, serving, sse_frames, until
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
runtime: {reader_grace_ms: 50}
agents:
  writer: {provider: mock, model: mock-generic, system_prompt: Be brief.}
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
    directory = tmp_path_factory.mktemp("sessions")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        yield gateway


def says(*parts: str | asyncio.Event) -> Reply:
    """A streamed answer; an event holds it there."""
    pieces: list[bytes | Hold] = [
        Hold(part) if isinstance(part, asyncio.Event) else sse(openai_chunk({"content": part}))
        for part in parts
    ]
    return Reply([*pieces, sse(openai_chunk(finish="stop"), done=True)])


def user(text: str) -> dict[str, object]:
    content = [{"type": "trusted-text", "text": text}]
    return {"segments": [{"role": "user", "content": content}]}


async def test_a_continuation_remembers_and_streams_only_what_is_new(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("first answer"), says("second answer"))
    first = await gateway.run("speaker", "first question")
    session = first[0].data["text"]
    response = await gateway.http.post(
        f"/v1/sessions/{session}/messages",
        json={**user("second question"), "agent": "ghost", "prompt": "ignored", "user_id": "é é"},
    )
    frames = sse_frames(response.text)
    assert [f.event for f in frames] == ["session", "agent", "started", "text", "done"]
    assert frames[0].data["text"] == session
    assert frames[1].data["run_id"] != first[1].data["run_id"]
    assert [m["content"] for m in json.loads(vendor.last.body)["messages"]] == [
        "first question",
        "first answer",
        "second question",
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"user_bearer": "short"}, "user_bearer"),
        ({"user_credentials": {"a b": "x"}}, "user_credentials"),
        ({"parent_context": {"tier_at_run": "x" * 257}}, "parent_context.tier_at_run exceeds"),
        ({"agent_id": "a b"}, "agent_id must match"),
    ],
)
async def test_wrong_continuations_are_refused(
    gateway: GatewayUnderTest, fields: dict[str, object], text: str
) -> None:
    session = (await gateway.run())[0].data["text"]
    response = await gateway.http.post(
        f"/v1/sessions/{session}/messages", json={**user("x"), **fields}
    )
    assert response.status_code == 400
    assert text in response.text


async def test_unknown_sessions_are_looked_up_after_the_body(gateway: GatewayUnderTest) -> None:
    path = "/v1/sessions/s_0000000000000000/messages"
    wrong_type = await gateway.http.post(path, content=b"{", headers={"Content-Type": "text/xml"})
    bad_json = await gateway.http.post(path, content=b"{")
    unknown = await gateway.http.post(path, json={"user_bearer": "short"})
    assert [r.status_code for r in (wrong_type, bad_json, unknown)] == [415, 400, 404]
    assert unknown.text == "session not found: s_0000000000000000\n"


async def test_the_transcript_has_all_runs_of_the_session(gateway: GatewayUnderTest) -> None:
    first = await gateway.run(user_id="u7")
    session = first[0].data["text"]
    await gateway.http.post(f"/v1/sessions/{session}/messages", json=user("more"))
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    head, events = transcript["session"], transcript["events"]
    assert head["created_at"].endswith("Z")
    assert {k: head[k] for k in ("id", "tenant_id", "agent", "user_id")} == {
        "id": session,
        "tenant_id": "",
        "agent": "writer",
        "user_id": "u7",
    }
    one_run = ["user_input", "system_prompt", "started", "text", "usage", "done"]
    assert [e["type"] for e in events] == one_run * 2
    assert len({e["run_id"] for e in events}) == 2
    seqs = [e["seq"] for e in events]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] < 2**53
    assert events[0]["event"] == {"type": "user_input"}
    assert events[0]["payload"][0]["content"][0]["text"] == "hi"
    assert events[1]["payload"]["system_prompt"] == "Be brief."
    assert events[3]["event"] == {"type": "text", "text": "ok"}
    assert "payload" not in events[3]
    assert isinstance(events[0]["ts_ns"], int)


async def test_no_transcript_of_unknown_sessions(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.get("/v1/sessions/s_no/transcript")
    assert (response.status_code, response.text) == (404, "session not found: s_no\n")


async def test_a_finished_run_is_replayed_from_its_beginning(gateway: GatewayUnderTest) -> None:
    live = await gateway.run(prompt="hello")
    run = live[1].data
    frames = sse_frames((await gateway.http.get(f"/v1/runs/{run['run_id']}/stream")).text)
    assert frames[0].event == "agent"
    assert frames[0].data == {k: run[k] for k in ("agent_id", "run_id", "session_id")}
    assert frames[1].data == {
        "type": "steer",
        "user_input": {"text": "hello", "source": "replay"},
    }
    assert frames[2:] == live[2:]


@pytest.mark.parametrize("how", ["from_seq", "after", "Last-Event-ID"])
async def test_reading_continues_after_what_was_read(gateway: GatewayUnderTest, how: str) -> None:
    live = await gateway.run()
    path = f"/v1/runs/{live[1].data['run_id']}/stream"
    for n in range(2, len(live)):
        place = {how: live[n].id}
        if how == "Last-Event-ID":
            response = await gateway.http.get(path, params={"after": "0"}, headers=place)
        else:
            response = await gateway.http.get(path, params=place)
        frames = sse_frames(response.text)
        assert frames[0].event == "agent"
        assert frames[1:] == live[n + 1 :]
        assert [int(f.id) for f in frames] == sorted(int(f.id) for f in frames)
        assert int(frames[0].id) >= int(live[n].id)


@pytest.mark.parametrize("value", ["", "-1", "x", "1.5", "9" * 30, "²"])
async def test_a_meaningless_from_seq_reads_everything(
    gateway: GatewayUnderTest, value: str
) -> None:
    run_id = (await gateway.run())[1].data["run_id"]
    response = await gateway.http.get(f"/v1/runs/{run_id}/stream", params={"from_seq": value})
    assert [f.event for f in sse_frames(response.text)][:3] == ["agent", "steer", "started"]


async def test_a_meaningless_event_id_is_refused(gateway: GatewayUnderTest) -> None:
    run_id = (await gateway.run())[1].data["run_id"]
    for value in ("x", "1.2", "-1", "1.2.3.4", "9" * 5000):
        response = await gateway.http.get(f"/v1/runs/{run_id}/stream", params={"after": value})
        assert response.status_code == 400
        assert response.text.startswith("after: ")


async def test_an_event_id_is_echoed_in_its_plain_form(gateway: GatewayUnderTest) -> None:
    run_id = (await gateway.run())[1].data["run_id"]
    for value, plain in ((" 10\n", "10"), ("007.1.2", "7.1.2")):
        response = await gateway.http.get(f"/v1/runs/{run_id}/stream", params={"after": value})
        assert response.text.startswith(f"id: {plain}\nevent: agent\n")


async def test_unknown_and_impossible_runs(gateway: GatewayUnderTest) -> None:
    unknown = await gateway.http.get("/v1/runs/r_0000000000000000/stream")
    assert (unknown.status_code, unknown.text) == (404, "no such run\n")
    impossible = await gateway.http.get("/v1/runs/r.1/stream")
    assert impossible.status_code == 400
    assert impossible.text == "run_id must match [A-Za-z0-9_-]{1,128}\n"


async def test_head_of_a_stream_does_not_stream(gateway: GatewayUnderTest) -> None:
    run_id = (await gateway.run())[1].data["run_id"]
    response = await gateway.http.head(f"/v1/runs/{run_id}/stream")
    assert (response.status_code, response.text) == (200, "")
    assert response.headers["content-type"] == "text/event-stream"


async def test_a_delta_id_continues_in_the_middle_of_a_text(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold, end = asyncio.Event(), asyncio.Event()
    vendor.script(says("one\n", hold, "two\n", end, "three\n"))
    body = {"agent": "speaker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        path = f"/v1/runs/{(await stream.until('agent')).data['run_id']}/stream"
        first = await stream.until("text")
        assert len(first.id.split(".")) == 3
        hold.set()
        await stream.until("text")
        place = {"Last-Event-ID": first.id}
        async with open_stream(gateway, "GET", path, headers=place) as again:
            assert (await again.next()).id == first.id
            assert (await again.next()).data["text"] == "two\n"
            end.set()
            assert [f.data.get("text") for f in await again.rest()] == ["three\n", None]
        assert [f.data.get("text") for f in await stream.rest()] == ["three\n", None]
    late = await gateway.http.get(path, headers=place)
    assert [f.data.get("text") for f in sse_frames(late.text)[1:]] == ["two\nthree\n", None]


async def test_an_observer_may_come_and_go(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    hold = asyncio.Event()
    vendor.script(says("one\n", hold, "two\n"))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_seen"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        path = f"/v1/runs/{(await stream.until('agent')).data['run_id']}/stream"
        await stream.until("text")
        async with open_stream(gateway, "GET", path) as other:
            assert (await other.until("text")).data["text"] == "one\n"
        hold.set()
        assert [f.event for f in await stream.rest()] == ["text", "done"]
    assert (await gateway.ended("a_seen"))["status"] == "completed"


async def judged(runtime: Runtime, run_id: str) -> bool | None:
    """Whether the first reader is gone, its grace is over, and the second was seen."""
    return run_id in runtime.readers.kept or None


async def test_a_reader_who_comes_back_in_time_keeps_the_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(says("one\n", hold, "two\n"))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_kept"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run_id = (await stream.until("agent")).data["run_id"]
        await stream.until("text")
        other = open_stream(gateway, "GET", f"/v1/runs/{run_id}/stream")
        again = await other.__aenter__()
    await again.until("text")
    await until(partial(judged, gateway.runtime, run_id))
    hold.set()
    assert [f.event for f in await again.rest()] == ["text", "done"]
    await other.__aexit__(None, None, None)
    assert (await gateway.ended("a_kept"))["status"] == "completed"
