"""What each vendor can do wrong at the wire, and whether a run tries again (providers.md 3, 9).

Every agent here retries a call once when its failure is of the retryable class, so the class of
a failure shows in the run: a second call, or the failure. Every journal is verified at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.proofs import prove_everything, rows, text_of, whole_texts
from tests.e2e.turns import ERROR_NAMES, Call, asked, piece, reply
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, open_stream, serving, sse_frames
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Hold,
    Part,
    Reply,
    Stall,
    environment,
    json_reply,
    ndjson,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

VENDORS = ("anthropic", "openai", "gemini", "ollama")
PATIENCE_MS = 400
LONG_WAIT_MS = 2700

CONFIG = "agents:\n" + "".join(
    f"  {name}: {{provider: {name}, model: m-1, retry_attempts: 1, allowed_tools: [Context]}}\n"
    for name in VENDORS
)
CONFIG += "  patient: {provider: openai, model: m-1, retry_attempts: 5}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    settings = environment(
        vendor,
        LOOMCYCLE_PROVIDER_IDLE_TIMEOUT_MS=str(PATIENCE_MS),
        LOOMCYCLE_PROVIDER_HEADER_TIMEOUT_MS=str(PATIENCE_MS),
    )
    async with serving(tmp_path_factory.mktemp("faults"), CONFIG, settings) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def fresh_script(vendor: FakeVendor) -> AsyncIterator[None]:
    vendor.requests.clear()
    yield
    assert not vendor.replies


def kept(frames: list[SseFrame]) -> list[tuple[str, Any]]:
    """(event, data) as a transcript has them: text that was taken back is gone."""
    standing: list[SseFrame] = []
    for frame in frames:
        if frame.event == "text_reset":
            while standing and standing[-1].event == "text":
                standing.pop()
        standing.append(frame)
    return whole_texts(standing)


async def told_thrice(gateway: GatewayUnderTest, frames: list[SseFrame]) -> None:
    """The stream, the transcript and a re-read stream say the same."""
    agent = frames[1].data
    transcript: Json = (
        await gateway.http.get(f"/v1/sessions/{agent['session_id']}/transcript")
    ).json()
    assert rows(transcript) == kept(frames)
    again = await gateway.http.get(f"/v1/runs/{agent['run_id']}/stream")
    reread = [f for f in sse_frames(again.text) if f.event != "steer"]
    assert kept(reread) == kept(frames)


def backoff(name: str) -> tuple[str, Json]:
    retry = {"provider": name, "attempt": 1, "wait_ms": 100, "reason": "exponential backoff"}
    return "retry", {"type": "retry", "retry": retry}


def early_end(name: str) -> Reply:
    return Reply(reply(name, "half").parts[:-1])


RETRYABLE: dict[str, Callable[[str], Reply]] = {
    "500": lambda name: Reply([b"broken"], status=500),
    "503": lambda name: Reply([b"busy"], status=503),
    "529": lambda name: Reply([b"overloaded"], status=529),
    "no headers": lambda name: Reply(stall_headers=True),
    "cut before headers": lambda name: Reply(cut_headers=True),
    "silence": lambda name: reply(name, Stall()),
    "silence after text": lambda name: reply(name, "half a sen", Stall()),
    "cut after text": lambda name: reply(name, "half a sen", Cut()),
    "end before its last frame": early_end,
}


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("fault", RETRYABLE)
async def test_a_passing_fault_is_tried_again(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str, fault: str
) -> None:
    vendor.script(RETRYABLE[fault](name), reply(name, "whole"))
    frames = await gateway.run(name)
    events = kept(frames)
    assert [kind for kind, _ in events] == ["started", "retry", "text", "usage", "done"]
    assert events[1] == backoff(name)
    assert text_of(frames) == "whole"
    first, second = asked(vendor)
    assert first.body == second.body
    await told_thrice(gateway, frames)


BEFORE_AN_ANSWER = ("500", "503", "529", "no headers", "cut before headers")


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("fault", BEFORE_AN_ANSWER)
async def test_a_lasting_fault_fails_the_run_with_its_cause(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str, fault: str
) -> None:
    vendor.script(RETRYABLE[fault](name), RETRYABLE[fault](name))
    frames = await gateway.run(name)
    events = kept(frames)
    assert [kind for kind, _ in events] == ["started", "retry", "error"]
    error = events[-1][1]["error"]
    begins = f"{ERROR_NAMES.get(name, name)} {fault}: " if fault.isdigit() else "http: "
    assert error.startswith(begins)
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["error"]) == ("failed", error)
    await told_thrice(gateway, frames)


PERMANENT: dict[str, Callable[[str], Reply]] = {
    "400": lambda name: json_reply({"error": "bad"}, status=400),
    "401": lambda name: json_reply({"error": "who"}, status=401),
    "403": lambda name: json_reply({"error": "no"}, status=403),
    "404": lambda name: json_reply({"error": "no such model"}, status=404),
    "404 of a retired model": lambda name: Reply([b"m-1 has been deprecated"], status=404),
    "413": lambda name: json_reply({"error": "long"}, status=413),
    "422": lambda name: json_reply({"error": "odd"}, status=422),
}


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("fault", PERMANENT)
async def test_a_refusal_is_not_tried_again(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str, fault: str
) -> None:
    vendor.script(PERMANENT[fault](name))
    frames = await gateway.run(name)
    assert [kind for kind, _ in kept(frames)] == ["started", "error"]
    assert frames[-1].data["error"].startswith(f"{name} {fault[:3]}: ")
    await told_thrice(gateway, frames)


def error_frame(name: str) -> bytes:
    match name:
        case "anthropic":
            error = {"type": "overloaded_error", "message": "Busy"}
            return sse({"type": "error", "error": error})
        case "ollama":
            return ndjson({"error": "out of memory"})
        case _:
            return sse({"error": {"message": "Busy", "code": "server_busy"}})


@pytest.mark.parametrize("name", ["anthropic", "openai", "ollama"])
async def test_an_error_that_the_stream_tells_of_is_not_tried_again(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    vendor.script(Reply([*reply(name, "so far\n").parts[:-1], error_frame(name)]))
    frames = await gateway.run(name)
    assert [kind for kind, _ in kept(frames)] == ["started", "text", "error"]
    assert text_of(frames) == "so far\n"
    row = await gateway.ended(frames[1].data["agent_id"])
    assert row["error"] == f"provider error: {frames[-1].data['error']}"
    await told_thrice(gateway, frames)


@pytest.mark.parametrize("name", ["openai", "gemini"])
async def test_an_error_that_the_stream_tells_of_counts_by_its_status(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    error = sse({"error": {"code": 503, "message": "Busy"}})
    vendor.script(Reply([*reply(name, "half\n").parts[:-1], error]), reply(name, "whole"))
    frames = await gateway.run(name)
    assert kept(frames)[1] == backoff(name)
    assert text_of(frames) == "whole"


@pytest.mark.parametrize("name", VENDORS)
async def test_a_slow_stream_is_no_stall(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    beats = [asyncio.Event() for _ in range(4)]
    spoken: list[Any] = []
    for number, beat in enumerate(beats):
        spoken += [f"{number}\n", beat]
    vendor.script(reply(name, *spoken))

    async def beat_slowly() -> None:
        for beat in beats:
            await asyncio.sleep(PATIENCE_MS / 1000 * 0.6)  # together longer than the patience
            beat.set()

    beating = asyncio.create_task(beat_slowly())
    frames = await gateway.run(name)
    await beating
    assert [kind for kind, _ in kept(frames)] == ["started", "text", "usage", "done"]
    assert text_of(frames) == "0\n1\n2\n3\n"


@pytest.mark.parametrize("name", VENDORS)
async def test_malformed_frames_are_passed_over(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    junk = b'{"half": \n[1,2]\n' if name == "ollama" else b"data: {nope\n\ndata: [1]\n\n: hm\n\n"
    lost = piece(name, "lost")
    junk += lost.replace(b'"lost"', b'"caf\xff"')
    junk += lost.replace(b'"lost"', b'"lost", "more": ' + b"[" * 5000 + b"]" * 5000)
    parts: list[Part] = []
    for part in reply(name, "one ", "two").parts:
        parts += [part, junk]
    vendor.script(Reply(parts))
    frames = await gateway.run(name)
    assert [kind for kind, _ in kept(frames)] == ["started", "text", "usage", "done"]
    assert text_of(frames) == "one two"


@pytest.mark.parametrize("name", VENDORS)
async def test_a_listing_that_cannot_be_read_is_the_vendors_fault(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    paths = {"anthropic": "/v1/models", "gemini": "/v1beta/models", "ollama": "/cloud/api/tags"}
    path = paths.get(name, "/v1/models")
    listing = vendor.listings[path]
    vendor.listings[path] = Reply([b'{"data":[{"id":"caf\xff"}],"models":[]}'])
    try:
        answer = await gateway.http.get(f"/v1/_providers/{name}/models")
        providers = (await gateway.http.post("/v1/_resolve/probe")).json()["providers"]
    finally:
        vendor.listings[path] = listing
    assert (answer.status_code, answer.json()["code"]) == (502, "provider_list_failed")
    assert answer.json()["error"].startswith(f"{name}: unreadable answer to GET ")
    assert providers[name]["last_error"] == answer.json()["error"]
    await gateway.http.post("/v1/_resolve/probe")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_defect_of_a_driver_is_one_failed_call(
    gateway: GatewayUnderTest,
    vendor: FakeVendor,
    begun: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = environment(vendor)["OPENAI_API_KEY"]

    def broken(*_: Any) -> Any:
        raise ValueError(key)

    place = "_Answer.done" if begun else "encode_request"
    monkeypatch.setattr(f"loomcycle.providers.openai.{place}", broken)
    if begun:
        vendor.script(reply("openai", "whole"))
    frames = await gateway.run("openai")
    error = "openai: the driver failed (ValueError)"
    kinds = ["started", "text", "error"] if begun else ["started", "error"]
    assert [kind for kind, _ in kept(frames)] == kinds
    assert frames[-1].data["error"] == error
    assert len(asked(vendor)) == begun
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["error"]) == ("failed", f"{'provider error: ' * begun}{error}")
    assert "the driver failed: ValueError" in caplog.text
    assert key not in caplog.text
    await told_thrice(gateway, frames)


@pytest.mark.parametrize("name", VENDORS)
async def test_a_rate_limit_is_waited_for_inside_the_call_and_then_tried_again(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    limited = json_reply({}, status=429, headers={"Retry-After": "0"})
    vendor.script(*[limited] * 5, reply(name, "at last"))
    frames = await gateway.run(name)
    retries = [data["retry"] for kind, data in kept(frames) if kind == "retry"]
    assert [(r["attempt"], r["wait_ms"], r["reason"]) for r in retries] == [
        *((n, 0, "retry-after header") for n in range(1, 5)),
        (1, 100, "exponential backoff"),
    ]
    assert text_of(frames) == "at last"
    await told_thrice(gateway, frames)


@pytest.mark.parametrize("name", VENDORS)
async def test_without_a_hint_a_rate_limit_is_waited_for_on_schedule(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    vendor.script(json_reply({}, status=429))
    body = {"agent": name, "prompt": "hi", "agent_id": f"a_limited_{name}"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        retry = (await stream.until("retry")).data["retry"]
        assert retry == {
            "provider": name, "attempt": 1, "wait_ms": 10_000, "reason": "exponential backoff",
        }  # fmt: skip
        await gateway.http.post(f"/v1/agents/a_limited_{name}/cancel")
        assert [f.event for f in await stream.rest()] == ["error"]
    assert (await gateway.ended(f"a_limited_{name}"))["status"] == "cancelled"


@pytest.mark.parametrize("name", VENDORS)
async def test_calls_that_a_broken_answer_had_made_are_void(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    call = Call("call_a", "Context", {"op": "time"})
    whole = reply(name, calls=[call])
    broken = Reply([*whole.parts[:-1], piece(name, "I shall look"), Cut()])
    vendor.script(broken, whole, reply(name, "noon"))
    frames = await gateway.run(name)
    kinds = [kind for kind, _ in kept(frames)]
    assert kinds == [
        "started", "retry", "tool_call", "usage", "tool_result", "text", "usage", "done",
    ]  # fmt: skip
    await told_thrice(gateway, frames)


async def test_text_that_was_taken_back_is_reset_before_the_wait_is_told(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    shown = asyncio.Event()
    broken = Reply([*reply("openai", "half a sen\n").parts[:-1], Hold(shown), Cut()])
    vendor.script(broken, reply("openai", "whole"))
    body = {"agent": "openai", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        assert (await stream.until("text")).data["text"] == "half a sen\n"
        shown.set()
        rest = await stream.rest()
    assert [frame.event for frame in rest] == ["text_reset", "retry", "text", "usage", "done"]
    assert rest[0].data == {"type": "text_reset", "attempt": 2}


async def test_a_cancel_ends_the_wait_before_a_retry(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(*[Reply([b"busy"], status=503)] * 4)
    body = {"agent": "patient", "prompt": "hi", "agent_id": "a_waits"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        while (await stream.until("retry")).data["retry"]["wait_ms"] < LONG_WAIT_MS:
            pass
        began = asyncio.get_running_loop().time()
        await gateway.http.post("/v1/agents/a_waits/cancel", json={"reason": "enough"})
        assert [frame.event for frame in await stream.rest()] == ["error"]
        assert asyncio.get_running_loop().time() - began < LONG_WAIT_MS / 2000
    row = await gateway.ended("a_waits")
    assert (row["status"], row["stop_reason"]) == ("cancelled", "enough")


async def test_a_server_that_stops_does_not_wait_and_the_next_one_calls_again(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(*[Reply([b"busy"], status=503)] * 4)
    body = {"agent": "patient", "prompt": "hi", "agent_id": "a_passed_on"}
    settings = environment(vendor)
    async with (
        serving(tmp_path, CONFIG, settings) as first,
        open_stream(first, "POST", "/v1/runs", json=body) as stream,
    ):
        while (await stream.until("retry")).data["retry"]["wait_ms"] < LONG_WAIT_MS:
            pass
        vendor.script(reply("openai", "whole"))
    async with serving(tmp_path, CONFIG, settings) as second:
        row = await second.ended("a_passed_on")
        assert row["status"] == "completed"
        await prove_everything(second.runtime.store)
    assert len(asked(vendor)) == 5
