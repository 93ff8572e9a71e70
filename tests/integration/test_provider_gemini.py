"""Gemini's stream (providers.md 6.4), against a real server."""

from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from loomcycle.providers import reasoning
from loomcycle.providers.base import (
    Done,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from loomcycle.providers.errors import ErrorClass, classify
from replay.conversation import Message, Text, ToolUse
from tests.wire.calls import (
    HELLO,
    call,
    calls,
    collect,
    collect_failure,
    done,
    provider_of,
    request,
    texts,
)
from tests.wire.vendors import (
    FakeVendor,
    Reply,
    gemini_chunk,
    gemini_text,
    gemini_tool_call,
    sse,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


async def test_gemini_text_is_not_coalesced_and_calls_come_last_without_ids(
    vendor: FakeVendor,
) -> None:
    chunks = [
        gemini_chunk({"text": "mulling", "thought": True}),
        gemini_chunk({"text": "a"}, {"functionCall": {"name": "Read", "args": {"path": "a"}}}),
        gemini_chunk({"text": "b"}, {"functionCall": {"name": "Stat"}}),
        gemini_chunk({"text": ""}, finish="STOP", usage=(7, 8, 3)),
    ]
    vendor.script(Reply([sse(*chunks)]))
    async with provider_of(vendor, "gemini") as provider:
        deltas = await collect(provider)
    assert deltas[:3] == [ThinkingDelta("mulling"), TextDelta("a"), TextDelta("b")]
    assert calls(deltas) == [call("Read", {"path": "a"}), call("Stat", {})]
    expected = Usage(
        input_tokens=7,
        output_tokens=8,
        cache_read_input_tokens=3,
        model="gemini-fake-1",
        max_context_tokens=2_000_000,
    )
    assert done(deltas) == Done(stop_reason="tool_use", usage=expected)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("STOP", "end_turn"),
        ("MAX_TOKENS", "max_tokens"),
        ("SAFETY", "end_turn"),
        ("NEW", "end_turn"),
    ],
)
async def test_gemini_stop_reasons(vendor: FakeVendor, finish: str, expected: str) -> None:
    vendor.script(gemini_text("hi", finish=finish))
    async with provider_of(vendor, "gemini") as provider:
        assert done(await collect(provider)).stop_reason == expected


async def test_gemini_call_cut_by_the_token_limit_stays_a_token_limit(vendor: FakeVendor) -> None:
    part = {"functionCall": {"name": "Read", "args": {}}}
    vendor.script(Reply([sse(gemini_chunk(part, finish="MAX_TOKENS"))]))
    async with provider_of(vendor, "gemini") as provider:
        assert done(await collect(provider)).stop_reason == "max_tokens"


async def test_gemini_always_reports_usage_and_at_least_the_requested_model(
    vendor: FakeVendor,
) -> None:
    vendor.script(Reply([sse({"candidates": [{"finishReason": "STOP"}]})]))
    async with provider_of(vendor, "gemini") as provider:
        usage = done(await collect(provider, request("models/gemini-x"))).usage
    assert usage == Usage(model="models/gemini-x", max_context_tokens=2_000_000)
    assert vendor.last.target.startswith("/v1beta/models/gemini-x:stream")


async def test_gemini_model_names_cannot_leave_their_path_segment(vendor: FakeVendor) -> None:
    vendor.script(gemini_text("hi"))
    async with provider_of(vendor, "gemini") as provider:
        await collect(provider, request("../x?y#z"))
    assert vendor.last.target == "/v1beta/models/..%2Fx%3Fy%23z:streamGenerateContent?alt=sse"


async def test_gemini_blocked_prompt_is_an_empty_answer(vendor: FakeVendor) -> None:
    vendor.script(Reply([sse({"promptFeedback": {"blockReason": "SAFETY"}})]))
    async with provider_of(vendor, "gemini") as provider:
        assert done(await collect(provider)).stop_reason == "end_turn"


async def test_gemini_error_in_the_stream_ends_the_call(vendor: FakeVendor) -> None:
    error = {"error": {"code": 503, "message": "overloaded"}}
    vendor.script(Reply([sse(gemini_chunk({"text": "half"}), error)]))
    async with provider_of(vendor, "gemini") as provider:
        deltas, failure = await collect_failure(provider)
    assert (texts(deltas), str(failure)) == (["half"], "gemini 503: overloaded")
    assert failure.partial
    assert classify(failure) is ErrorClass.RETRYABLE


async def test_gemini_signatures_survive_the_turn_of_a_tool_call(vendor: FakeVendor) -> None:
    vendor.script(gemini_tool_call("Read", {"path": "a"}, signature="c2ln"), gemini_text("done"))
    async with provider_of(vendor, "gemini") as provider:
        stored = done(await collect(provider)).reasoning
        assert reasoning.unseal("gemini", stored) == ["c2ln"]
        use = ToolUse("x", "Read", Raw(b'{"path":"a"}'))
        messages = (HELLO, Message("assistant", (Text("t"), use), reasoning=stored))
        await collect(provider, request(messages=messages))
    assert vendor.last.json["contents"][1]["parts"][1] == {
        "functionCall": {"name": "Read", "args": {"path": "a"}},
        "thoughtSignature": "c2ln",
    }
