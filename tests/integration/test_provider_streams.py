"""Streams that stall, are cut, are malformed or are aborted, for every HTTP driver."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from loomcycle.providers.base import Done, TextDelta
from loomcycle.providers.errors import ErrorClass, classify
from loomcycle.providers.registry import build_providers
from tests.wire.calls import (
    ANSWERS,
    PROVIDERS,
    SHORT,
    beginning,
    collect,
    collect_failure,
    provider_of,
    request,
    texts,
    whole,
)
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Hold,
    Part,
    Reply,
    Stall,
    anthropic_text,
    byte_by_byte,
    openai_chunk,
    openai_usage,
    sse,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_a_vendor_that_sends_no_headers_is_a_retryable_error(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply(stall_headers=True))
    async with provider_of(vendor, provider_id, SHORT) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == []
    assert str(error) == "http: timeout awaiting response headers (0.08s)"
    assert classify(error) is classify(str(error)) is ErrorClass.RETRYABLE
    assert not error.partial


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_an_idle_stream_is_a_retryable_error_after_its_text(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply([beginning(provider_id, "half"), Stall()]))
    async with provider_of(vendor, provider_id, SHORT) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == [TextDelta("half")]
    assert str(error) == "stream read: context deadline exceeded (no data for 0.08s)"
    assert classify(error) is classify(str(error)) is ErrorClass.RETRYABLE
    assert error.partial


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_a_cut_stream_is_a_retryable_error_after_its_text(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply([beginning(provider_id, "half"), Cut()]))
    async with provider_of(vendor, provider_id) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == [TextDelta("half")]
    assert str(error).startswith("stream read: ")
    assert classify(error) is ErrorClass.RETRYABLE
    assert error.partial


@pytest.mark.parametrize("provider_id", PROVIDERS)
@pytest.mark.parametrize("close_delimited", [False, True])
async def test_a_stream_that_ends_without_its_last_frame_is_an_error_not_half_an_answer(
    vendor: FakeVendor, provider_id: str, close_delimited: bool
) -> None:
    reply = Reply([beginning(provider_id, "half")], close_delimited=close_delimited)
    vendor.script(reply)
    async with provider_of(vendor, provider_id) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == [TextDelta("half")]
    assert str(error) == "stream read: unexpected end of stream"
    assert error.partial


@pytest.mark.parametrize("provider_id", ["openai", "ollama"])
async def test_each_byte_resets_the_idle_timer(vendor: FakeVendor, provider_id: str) -> None:
    """Pieces at intervals below the idle timeout that take longer than it in all."""
    gates = [asyncio.Event() for _ in range(10)]
    parts: list[Part] = []
    for gate in gates:
        parts += [b"\n", Hold(gate)]
    vendor.script(Reply([*parts, whole(provider_id, "hi")]))

    async def open_gates() -> None:
        for gate in gates:
            await asyncio.sleep(0.04)
            gate.set()

    async with provider_of(vendor, provider_id, dict.fromkeys(SHORT, "300")) as provider:
        started = time.monotonic()
        deltas, _ = await asyncio.gather(collect(provider), open_gates())
    assert texts(deltas) == ["hi"]
    assert time.monotonic() - started > 0.3


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_bytes_may_come_one_by_one(vendor: FakeVendor, provider_id: str) -> None:
    answer = whole(provider_id, "grüße, 世界")
    vendor.script(Reply([answer]), Reply(byte_by_byte(answer)))
    async with provider_of(vendor, provider_id) as provider:
        assert await collect(provider) == await collect(provider)
    assert vendor.connections == 1


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_frames_that_cannot_be_parsed_are_skipped(
    vendor: FakeVendor, provider_id: str
) -> None:
    junk = b'{"torn":\n\n' if provider_id.startswith("ollama") else b"data: {torn\n\n: note\n\n"
    wrong = b"[1]\n" if provider_id.startswith("ollama") else b"data: [1]\n\ndata: 7\n\n"
    half, deep = beginning(provider_id, "lost"), b"[" * 5000 + b"]" * 5000
    no_text = half.replace(b'"lost"', b'"caf\xff"')
    too_deep = half.replace(b'"lost"', b'"lost", "more": ' + deep)
    good = whole(provider_id, "hi").rstrip() + b"\n\n"
    vendor.script(Reply([junk, no_text, too_deep, good, wrong]))
    async with provider_of(vendor, provider_id) as provider:
        deltas = await collect(provider)
    assert texts(deltas) == ["hi"]
    assert isinstance(deltas[-1], Done)


@pytest.mark.parametrize(
    ("provider_id", "limit"),
    [("anthropic", 1 << 20), ("openai", 1 << 20), ("gemini", 1 << 20), ("ollama", 4 << 20)],
)
async def test_a_line_that_is_too_long_ends_the_call_after_its_text(
    vendor: FakeVendor, provider_id: str, limit: int
) -> None:
    line = b"data: " + b"x" * limit
    vendor.script(Reply([beginning(provider_id, "half"), line[: limit // 2], line[limit // 2 :]]))
    async with provider_of(vendor, provider_id) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == [TextDelta("half")]
    assert str(error) == f"stream read: line longer than {limit} bytes"
    assert error.partial


async def test_a_long_line_within_the_limit_is_read(vendor: FakeVendor) -> None:
    text = "x" * 1_000_000
    vendor.script(anthropic_text(text))
    async with provider_of(vendor, "anthropic") as provider:
        assert texts(await collect(provider)) == [text]


async def test_a_refused_connection_is_a_retryable_error_with_its_cause() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    registry = build_providers({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url})
    _, error = await collect_failure(registry.get("openai"))
    await registry.close()
    assert str(error).startswith("http: ")
    assert "Connect call failed" in str(error)
    assert classify(error) is ErrorClass.RETRYABLE


async def test_a_tls_handshake_that_never_ends_is_a_retryable_error(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor takes the client's hello for the beginning of a request and waits for more."""
    monkeypatch.setattr("loomcycle.providers.transport.TLS_TIMEOUT", 0.08)
    url = vendor.url.replace("http:", "https:")
    async with provider_of(vendor, "openai", {"OPENAI_BASE_URL": url}) as provider:
        _, error = await collect_failure(provider)
    assert str(error) == "http: TLS handshake timeout (0.08s)"
    assert classify(error) is ErrorClass.RETRYABLE


async def test_a_vendor_that_hangs_up_before_its_headers_is_a_retryable_error(
    vendor: FakeVendor,
) -> None:
    vendor.script(Reply(cut_headers=True))
    async with provider_of(vendor, "openai") as provider:
        _, error = await collect_failure(provider)
    assert str(error).startswith("http: ")
    assert classify(error) is ErrorClass.RETRYABLE
    assert not error.partial


# Abort


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_closing_the_generator_aborts_the_exchange_at_once(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply([beginning(provider_id, "x" * 80), Stall()]))
    async with provider_of(vendor, provider_id) as provider:
        stream = provider.stream(request())
        assert await anext(stream) == TextDelta("x" * 80)
        await stream.aclose()
        await vendor.wait_for(lambda seen: seen.dropped == 1)


@pytest.mark.parametrize("provider_id", PROVIDERS)
@pytest.mark.parametrize("reply", [Reply(stall_headers=True), Reply([Stall()])])
async def test_cancelling_the_call_aborts_the_exchange_at_once(
    vendor: FakeVendor, provider_id: str, reply: Reply
) -> None:
    vendor.script(reply)
    async with provider_of(vendor, provider_id) as provider:
        task = asyncio.create_task(collect(provider))
        await vendor.wait_for(lambda seen: len(seen.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await vendor.wait_for(lambda seen: seen.dropped == 1)


@pytest.mark.parametrize("provider_id", ["anthropic", "openai", "ollama"])
async def test_a_vendor_that_does_not_hang_up_after_its_last_frame_delays_nothing(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply([whole(provider_id, "hi"), Stall()]))
    async with provider_of(vendor, provider_id) as provider:
        deltas = await asyncio.wait_for(collect(provider), 2)
    assert texts(deltas) == ["hi"]
    assert isinstance(deltas[-1], Done)


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_many_calls_share_the_connection(vendor: FakeVendor, provider_id: str) -> None:
    vendor.script(*(ANSWERS[provider_id](str(n)) for n in range(5)))
    async with provider_of(vendor, provider_id) as provider:
        for n in range(5):
            assert texts(await collect(provider)) == [str(n)]
    assert vendor.connections == 1


async def test_calls_do_not_wait_for_each_other(vendor: FakeVendor) -> None:
    """More calls at once than a default pool allows; none ends before all have begun."""
    gate, calls = asyncio.Event(), 120
    vendor.script(*(Reply([Hold(gate), whole("openai", "hi")]) for _ in range(calls)))
    async with provider_of(vendor, "openai") as provider:
        tasks = [asyncio.create_task(collect(provider)) for _ in range(calls)]
        await vendor.wait_for(lambda seen: len(seen.requests) == calls)
        gate.set()
        answers = await asyncio.gather(*tasks)
    assert [texts(deltas) for deltas in answers] == [["hi"]] * calls


async def test_a_closed_provider_refuses_calls(vendor: FakeVendor) -> None:
    async with provider_of(vendor, "openai") as provider:
        await provider.close()
        await provider.close()
        _, error = await collect_failure(provider)
    assert str(error) == "http: the provider is closed"


async def test_an_openai_stream_may_end_without_its_done_marker(vendor: FakeVendor) -> None:
    chunks = [openai_chunk({"content": "hi"}, finish="stop"), openai_usage()]
    vendor.script(Reply([sse(*chunks)]))
    async with provider_of(vendor, "openai") as provider:
        deltas = await collect(provider)
    assert texts(deltas) == ["hi"]
