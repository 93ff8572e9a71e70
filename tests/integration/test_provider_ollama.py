"""Ollama's stream (providers.md 6.5), against a real server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from loomcycle.providers.base import (
    Done,
    Usage,
)
from loomcycle.providers.framing import NdjsonFraming
from loomcycle.providers.ollama import OllamaProvider
from loomcycle.providers.transport import Endpoint, Transport
from tests.wire.calls import (
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
    Reply,
    json_reply,
    ndjson,
    ollama_end,
    ollama_line,
    ollama_text,
    ollama_tool_call,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


@pytest.mark.parametrize("provider_id", ["ollama", "ollama-local"])
async def test_ollama_calls_come_at_once_after_the_text_before_them(
    vendor: FakeVendor, provider_id: str
) -> None:
    function = {"function": {"name": "Read", "arguments": {"path": "a"}}}
    lines = [
        ollama_line({"thinking": "mulling"}),
        ollama_line({"content": "let me"}),
        ollama_line({"tool_calls": [function]}),
        ollama_line({"content": " look"}),
        ollama_end("stop", prompt=7, made=8, model="later"),
    ]
    vendor.script(Reply([ndjson(*lines)]))
    async with provider_of(vendor, provider_id) as provider:
        deltas = await collect(provider, request(tools=READ))
    assert [kind.removesuffix("Delta") for kind in kinds(deltas)] == [
        "Thinking", "Text", "ToolCall", "Text", "Done",
    ]  # fmt: skip
    assert texts(deltas) == ["let me", " look"]
    assert calls(deltas) == [call("Read", {"path": "a"})]
    usage = Usage(input_tokens=7, output_tokens=8, model="llama-fake")
    assert done(deltas) == Done(stop_reason="tool_use", usage=usage)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "end_turn"), ("", "end_turn"), ("length", "max_tokens"), ("load", "load")],
)
async def test_ollama_stop_reasons(vendor: FakeVendor, reason: str, expected: str) -> None:
    vendor.script(ollama_text("hi", reason=reason))
    async with provider_of(vendor, "ollama-local") as provider:
        assert done(await collect(provider)).stop_reason == expected


async def test_ollama_without_counts_reports_no_usage(vendor: FakeVendor) -> None:
    vendor.script(Reply([ndjson(ollama_line({"content": "hi"}), ollama_end(prompt=0, made=0))]))
    async with provider_of(vendor, "ollama-local") as provider:
        assert done(await collect(provider)).usage is None
    assert [sent.target for sent in vendor.requests] == ["/api/chat"]


async def test_ollama_error_line_ends_the_call_after_its_text(vendor: FakeVendor) -> None:
    lines = [ollama_line({"content": "half"}), {"error": "out of memory"}]
    vendor.script(Reply([ndjson(*lines)]))
    async with provider_of(vendor, "ollama-local") as provider:
        deltas, error = await collect_failure(provider)
    assert (texts(deltas), str(error)) == (["half"], "ollama-local: out of memory")
    assert error.partial


async def test_ollama_recovers_a_call_that_is_the_whole_text(vendor: FakeVendor) -> None:
    text = '{"name":"Read","arguments":{"path":"a"}}'
    vendor.script(ollama_text(text, reason="stop"))
    async with provider_of(vendor, "ollama-local") as provider:
        deltas = await collect(provider, request(tools=READ))
    assert texts(deltas) == [text]
    assert calls(deltas) == [call("Read", {"path": "a"})]
    assert done(deltas).stop_reason == "tool_use"


async def test_ollama_recovers_nothing_when_no_tool_is_offered_or_one_was_called(
    vendor: FakeVendor,
) -> None:
    text = '{"name":"Read","arguments":{"path":"a"}}'
    vendor.script(ollama_text(text), ollama_tool_call("Stat", {}, text=text))
    async with provider_of(vendor, "ollama-local") as provider:
        deltas = await collect(provider)
        assert (calls(deltas), done(deltas).stop_reason) == ([], "end_turn")
        deltas = await collect(provider, request(tools=READ))
        assert calls(deltas) == [call("Stat", {})]


async def test_ollama_arguments_may_be_a_string_holding_json(vendor: FakeVendor) -> None:
    function = {"function": {"name": "Read", "arguments": '{"path":"a"}'}}
    vendor.script(Reply([ndjson(ollama_line({"tool_calls": [function]}), ollama_end())]))
    async with provider_of(vendor, "ollama-local") as provider:
        assert calls(await collect(provider)) == [call("Read", {"path": "a"})]


async def test_ollama_pinned_window_is_sent_and_reported(vendor: FakeVendor) -> None:
    vendor.script(ollama_text("hi"))
    async with provider_of(vendor, "ollama", {"LOOMCYCLE_OLLAMA_NUM_CTX": "4096"}) as provider:
        usage = done(await collect(provider)).usage
    assert usage is not None
    assert usage.max_context_tokens == 4096
    assert [sent.target for sent in vendor.requests] == ["/cloud/api/chat"]
    assert vendor.last.json["options"] == {"num_ctx": 4096}


@pytest.mark.parametrize(
    ("reply", "window"),
    [
        (json_reply({"models": [{"name": "x"}, {"name": "m-1", "context_length": 8192}]}), 8192),
        (json_reply({"models": [{"model": "m-1", "context_length": 16384}]}), 16384),
        (json_reply({"models": [{"name": "other", "context_length": 1}]}), 0),
        (json_reply({"models": [{"name": "m-1"}]}), 0),
        (json_reply([]), 0),
        (Reply([b"nonsense"]), 0),
        (Reply([b'{"models":[{"name":"caf\xff"}]}']), 0),
        (Reply([b"[" * 5000]), 0),
        (Reply([b"no"], status=404), 0),
    ],
)
async def test_ollama_asks_for_the_window_of_the_loaded_model(
    vendor: FakeVendor, reply: Reply, window: int
) -> None:
    vendor.route("GET", "/api/ps", reply)
    vendor.script(ollama_text("hi"), ollama_text("again"))
    async with provider_of(vendor, "ollama-local") as provider:
        for _ in range(2):
            usage = done(await collect(provider)).usage
            assert usage is not None
            assert usage.max_context_tokens == window
    targets = [sent.target for sent in vendor.requests]
    assert targets == ["/api/chat", "/api/ps", "/api/chat"]


async def test_ollama_asks_for_the_window_again_after_five_minutes(vendor: FakeVendor) -> None:
    now = [0.0]
    loaded = {"models": [{"name": "m-1", "context_length": 8192}]}
    vendor.route("GET", "/api/ps", json_reply(loaded))
    vendor.script(*(ollama_text("hi") for _ in range(3)))
    endpoint = Endpoint(name="ollama-local", base_url=vendor.url, framing=NdjsonFraming)
    provider = OllamaProvider("ollama-local", Transport(endpoint), clock=lambda: now[0])
    for now[0] in (0.0, 299.0, 301.0):
        await collect(provider)
    await provider.close()
    assert [sent.target for sent in vendor.requests].count("/api/ps") == 2


async def test_ollama_does_not_wait_long_for_the_window(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomcycle.providers.ollama.WINDOW_TIMEOUT", 0.05)
    vendor.route("GET", "/api/ps", Reply(stall_headers=True))
    vendor.script(ollama_text("hi"))
    async with provider_of(vendor, "ollama-local") as provider:
        usage = done(await asyncio.wait_for(collect(provider), 2)).usage
    assert usage is not None
    assert usage.max_context_tokens == 0
