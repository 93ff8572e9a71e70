"""The streams of OpenAI and DeepSeek (providers.md 6.2, 6.3), against a real server."""

from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from loomcycle.providers.base import (
    Done,
    ThinkingDelta,
    Usage,
)
from loomcycle.providers.errors import ErrorClass, classify
from replay.conversation import Message, ToolResult, ToolUse
from tests.wire.calls import (
    HELLO,
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
    ndjson,
    ollama_end,
    ollama_line,
    openai_chunk,
    openai_text,
    openai_tool_call,
    openai_usage,
    sse,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


async def coalesced(vendor: FakeVendor, *contents: str) -> list[str]:
    chunks = [openai_chunk({"content": content}) for content in contents]
    lines = [ollama_line({"content": content}) for content in contents]
    vendor.script(
        Reply([sse(*chunks, openai_chunk(finish="stop"), done=True)]),
        Reply([ndjson(*lines, ollama_end())]),
    )
    async with (
        provider_of(vendor, "openai") as openai,
        provider_of(vendor, "ollama-local") as ollama,
    ):
        from_openai, from_ollama = await collect(openai), await collect(ollama)
    assert texts(from_openai) == texts(from_ollama)
    return texts(from_openai)


async def test_text_is_coalesced_to_64_bytes_or_a_line_break(vendor: FakeVendor) -> None:
    assert await coalesced(vendor, *"ab") == ["ab"]
    assert await coalesced(vendor, "x" * 63, "y", "z") == ["x" * 63 + "y", "z"]
    assert await coalesced(vendor, "é" * 31, "é", "z") == ["é" * 32, "z"]
    assert await coalesced(vendor, "a", "b\nc", "d") == ["ab\nc", "d"]
    assert await coalesced(vendor, "x" * 500, "y") == ["x" * 500, "y"]
    assert await coalesced(vendor, "", "") == []


async def test_openai_tool_calls_are_gathered_by_index_and_come_last(vendor: FakeVendor) -> None:
    def part(index: int, arguments: str, name: str = "", call_id: str = "") -> Json:
        function: Json = {"arguments": arguments, **({"name": name} if name else {})}
        entry = {"index": index, "function": function, **({"id": call_id} if call_id else {})}
        return openai_chunk({"tool_calls": [entry]})

    chunks = [
        openai_chunk({"content": "let me"}),
        part(4, "", "Stat", "c4"),
        part(0, '{"pa', "Read", "c0"),
        part(0, 'th":"a"}'),
        openai_chunk({"content": " look"}),
        openai_chunk(finish="tool_calls"),
        openai_usage(7, 8, cached=3),
    ]
    vendor.script(Reply([sse(*chunks, done=True)]))
    async with provider_of(vendor, "openai") as provider:
        deltas = await collect(provider)
    assert kinds(deltas) == ["TextDelta", "ToolCallDelta", "ToolCallDelta", "Done"]
    assert texts(deltas) == ["let me look"]
    assert calls(deltas) == [call("Read", {"path": "a"}, "c0"), call("Stat", {}, "c4")]
    expected = Usage(
        input_tokens=7,
        output_tokens=8,
        cache_read_input_tokens=3,
        model="gpt-fake-1",
        max_context_tokens=128_000,
    )
    assert done(deltas) == Done(stop_reason="tool_use", usage=expected)


async def test_openai_tool_calls_without_an_index_are_told_apart_by_their_ids(
    vendor: FakeVendor,
) -> None:
    entries: list[Json] = [
        {"id": "a", "function": {"name": "A", "arguments": '{"x":'}},
        {"function": {"arguments": "1}"}},
        {"id": "b", "function": {"name": "B", "arguments": "{}"}},
    ]
    chunks = [openai_chunk({"tool_calls": [entry]}) for entry in entries]
    vendor.script(Reply([sse(*chunks, openai_chunk(finish="tool_calls"), done=True)]))
    async with provider_of(vendor, "openai") as provider:
        assert calls(await collect(provider)) == [call("A", {"x": 1}, "a"), call("B", {}, "b")]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", "end_turn"),
        ("tool_calls", "tool_use"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("odd", "odd"),
    ],
)
@pytest.mark.parametrize("provider_id", ["openai", "deepseek"])
async def test_openai_stop_reasons(
    vendor: FakeVendor, provider_id: str, finish: str, expected: str
) -> None:
    vendor.script(openai_text("hi", finish=finish))
    async with provider_of(vendor, provider_id) as provider:
        assert done(await collect(provider)).stop_reason == expected


async def test_calls_that_a_compatible_server_ends_with_stop_are_still_calls(
    vendor: FakeVendor,
) -> None:
    vendor.script(openai_tool_call("Read", {"path": "a"}, finish="stop"))
    async with provider_of(vendor, "openai") as provider:
        deltas = await collect(provider)
    assert calls(deltas) == [call("Read", {"path": "a"}, "call_1")]
    assert done(deltas).stop_reason == "tool_use"


async def test_malformed_arguments_become_a_json_string(vendor: FakeVendor) -> None:
    function = {"name": "Read", "arguments": '{"path": '}
    chunk = openai_chunk({"tool_calls": [{"index": 0, "id": "c", "function": function}]})
    vendor.script(Reply([sse(chunk, openai_chunk(finish="tool_calls"), done=True)]))
    async with provider_of(vendor, "openai") as provider:
        assert calls(await collect(provider)) == [call("Read", '{"path":', "c")]


async def test_openai_without_usage_chunk_reports_none(vendor: FakeVendor) -> None:
    vendor.script(Reply([sse(openai_chunk({"content": "hi"}, finish="stop"), done=True)]))
    async with provider_of(vendor, "openai") as provider:
        assert done(await collect(provider)).usage is None


async def test_openai_reports_the_first_model_that_is_named(vendor: FakeVendor) -> None:
    names = ["", "gpt-a", "gpt-b"]
    chunks = [openai_chunk({"content": "x"}, model=name) for name in names]
    vendor.script(
        Reply([sse(*chunks, openai_chunk(finish="stop"), openai_usage(model="gpt-c"), done=True)])
    )
    async with provider_of(vendor, "openai") as provider:
        usage = done(await collect(provider)).usage
    assert usage is not None
    assert usage.model == "gpt-a"


async def test_openai_error_in_the_stream_ends_the_call_after_its_text(
    vendor: FakeVendor,
) -> None:
    vendor.script(
        Reply([sse(openai_chunk({"content": "half"}), {"error": {"message": "no", "code": 503}})]),
        Reply([sse({"error": {"message": "context too long", "code": "too_long"}})]),
        Reply([sse({"error": "boom"})]),
    )
    async with provider_of(vendor, "openai") as provider:
        deltas, error = await collect_failure(provider)
        assert (texts(deltas), str(error), error.partial) == (["half"], "openai 503: no", True)
        assert classify(error) is ErrorClass.RETRYABLE
        _, error = await collect_failure(provider)
        assert str(error) == "openai: context too long"
        _, error = await collect_failure(provider)
        assert str(error) == "openai: boom"


async def test_deepseek_reasoning_is_streamed_gathered_and_echoed(vendor: FakeVendor) -> None:
    chunks = [
        openai_chunk({"reasoning_content": "first "}),
        openai_chunk({"reasoning_content": "then"}),
        openai_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "Read"}}]}),
        openai_chunk(finish="tool_calls"),
    ]
    vendor.script(Reply([sse(*chunks, done=True)]), openai_text("done"))
    async with provider_of(vendor, "deepseek") as provider:
        deltas = await collect(provider)
        assert deltas[:2] == [ThinkingDelta("first "), ThinkingDelta("then")]
        stored = done(deltas).reasoning
        assert stored == "first then"
        use = ToolUse("c", "Read", Raw(b"{}"))
        messages = (
            HELLO,
            Message("assistant", (use,), reasoning=stored),
            Message("user", (ToolResult("c", "Read", "x"),)),
        )
        await collect(provider, request(messages=messages))
    assert vendor.last.json["messages"][1]["reasoning_content"] == "first then"
