"""Anthropic's stream (providers.md 6.1), against a real server."""

from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from loomcycle.providers.base import (
    Done,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from replay.conversation import Message, ToolResult, ToolUse
from tests.wire.calls import (
    HELLO,
    READ,
    call,
    calls,
    collect,
    collect_failure,
    done,
    kinds,
    provider_of,
    request,
    texts,
)
from tests.wire.vendors import (
    FakeVendor,
    Json,
    Reply,
    Stall,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    sse,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


async def test_anthropic_text_comes_delta_by_delta(vendor: FakeVendor) -> None:
    events = anthropic_events(
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}],
        input_tokens=11,
        output_tokens=22,
        cache_creation=33,
        cache_read=44,
        model="claude-resolved",
    )
    vendor.script(Reply([sse({"type": "ping"}, *events)]))
    async with provider_of(vendor, "anthropic") as provider:
        deltas = await collect(provider)
    assert deltas == [
        TextDelta("a"),
        TextDelta("b\n"),
        Done(
            stop_reason="end_turn",
            usage=Usage(
                input_tokens=11,
                output_tokens=22,
                cache_creation_input_tokens=33,
                cache_read_input_tokens=44,
                model="claude-resolved",
                max_context_tokens=200_000,
            ),
        ),
    ]


async def test_anthropic_tool_calls_come_when_their_block_ends(vendor: FakeVendor) -> None:
    blocks: list[Json] = [
        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "ä", "n": [1, 2]}},
        {"type": "text", "text": "and"},
        {"type": "tool_use", "id": "t2", "name": "Stat", "input": {}},
    ]
    vendor.script(Reply([sse(*anthropic_events(blocks, stop_reason="tool_use"))]))
    async with provider_of(vendor, "anthropic") as provider:
        deltas = await collect(provider)
    assert kinds(deltas) == ["ToolCallDelta", "TextDelta", "ToolCallDelta", "Done"]
    assert calls(deltas) == [call("Read", {"path": "ä", "n": [1, 2]}, "t1"), call("Stat", {}, "t2")]
    assert done(deltas).stop_reason == "tool_use"


async def test_anthropic_arguments_are_kept_byte_for_byte_and_may_be_missing(
    vendor: FakeVendor,
) -> None:
    def block(index: int, *parts: str) -> list[Json]:
        opening = {"type": "tool_use", "id": f"t{index}", "name": "Read", "input": {}}
        return [
            {"type": "content_block_start", "index": index, "content_block": opening},
            *(
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": part},
                }
                for part in parts
            ),
            {"type": "content_block_stop", "index": index},
        ]

    events = [
        {"type": "message_start", "message": {"model": "m"}},
        *block(0),
        *block(1, '{"a" : ', "1.50}"),
        *block(2, '{"cut'),
        {"type": "message_stop"},
    ]
    vendor.script(Reply([sse(*events)]))
    async with provider_of(vendor, "anthropic") as provider:
        deltas = await collect(provider)
    inputs = [bytes(delta.input) for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert inputs == [b"{}", b'{"a" : 1.50}', b'"{\\"cut"']


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "stop_sequence", "refusal", "new"])
async def test_anthropic_stop_reasons_pass_unchanged(vendor: FakeVendor, reason: str) -> None:
    vendor.script(anthropic_text("hi", stop_reason=reason))
    async with provider_of(vendor, "anthropic") as provider:
        assert done(await collect(provider)).stop_reason == reason


async def test_anthropic_without_message_delta_reports_no_usage(vendor: FakeVendor) -> None:
    events = [e for e in anthropic_events([]) if e["type"] != "message_delta"]
    vendor.script(Reply([sse(*events)]))
    async with provider_of(vendor, "anthropic") as provider:
        assert await collect(provider) == [Done()]


async def test_anthropic_counts_the_last_delta_and_fills_gaps_from_the_start(
    vendor: FakeVendor,
) -> None:
    start = {"input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 7}
    events: list[Json] = [
        {"type": "message_start", "message": {"model": "m", "usage": start}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]
    vendor.script(Reply([sse(*events)]))
    async with provider_of(vendor, "anthropic") as provider:
        usage = done(await collect(provider)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (25, 9)
    assert usage.cache_read_input_tokens == 7


async def test_anthropic_error_frame_ends_the_call(vendor: FakeVendor) -> None:
    start = anthropic_events([{"type": "text", "text": "half"}])[:3]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    vendor.script(Reply([sse(*start, error), Stall()]))
    async with provider_of(vendor, "anthropic") as provider:
        deltas, failure = await collect_failure(provider)
    assert deltas == [TextDelta("half")]
    assert str(failure) == "overloaded_error: Overloaded"
    assert failure.partial


async def test_anthropic_thinking_survives_the_turn_of_a_tool_call(vendor: FakeVendor) -> None:
    thinking = [
        {"type": "thinking", "thinking": "let me see", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
    ]
    use = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a"}}
    vendor.script(
        Reply([sse(*anthropic_events([*thinking, use], stop_reason="tool_use"))]),
        anthropic_text("done"),
    )
    async with provider_of(vendor, "anthropic") as provider:
        first = await collect(provider, request(tools=READ, effort="high"))
        assert first[0] == ThinkingDelta("let me see")
        messages = (
            HELLO,
            Message(
                "assistant",
                (ToolUse("t1", "Read", Raw(b'{"path":"a"}')),),
                reasoning=done(first).reasoning,
            ),
            Message("user", (ToolResult("t1", "Read", "content"),)),
        )
        await collect(provider, request(messages=messages, tools=READ, effort="high"))
    assert vendor.last.json["thinking"] == {"type": "enabled", "budget_tokens": 7168}
    assert vendor.last.json["messages"][1] == {"role": "assistant", "content": [*thinking, use]}


async def test_anthropic_helper_scripts_a_tool_call(vendor: FakeVendor) -> None:
    vendor.script(anthropic_tool_call("Read", {"path": "a"}, text="looking"))
    async with provider_of(vendor, "anthropic") as provider:
        deltas = await collect(provider)
    assert texts(deltas) == ["looking"]
    assert calls(deltas) == [call("Read", {"path": "a"}, "toolu_1")]
