"""What all HTTP drivers share, against a real server: error answers, pauses, listings."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from loomcycle.providers.base import ProviderError, RetryDelta
from loomcycle.providers.errors import ErrorClass, classify, is_rate_limit
from loomcycle.providers.registry import build_providers
from loomcycle.providers.transport import Endpoint, Transport
from tests.wire.calls import (
    ANSWERS,
    ERROR_NAMES,
    PROVIDERS,
    SHORT,
    Sleeps,
    collect,
    collect_failure,
    provider_of,
    request,
    texts,
)
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Json,
    Part,
    Reply,
    Stall,
    anthropic_text,
    environment,
    json_reply,
    openai_text,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


# Non-200 answers


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_an_error_answer_is_its_status_and_its_trimmed_body(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(Reply([b"  it is\n", b"broken \n"], status=503))
    async with provider_of(vendor, provider_id) as provider:
        deltas, error = await collect_failure(provider)
    assert deltas == []
    assert str(error) == f"{ERROR_NAMES[provider_id]} 503: it is\nbroken"
    assert not error.partial
    assert classify(error) is ErrorClass.RETRYABLE
    assert len(vendor.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 500, 502, 529, 301, 204])
async def test_only_200_is_an_answer_and_only_429_is_tried_again(
    vendor: FakeVendor, status: int
) -> None:
    vendor.script(Reply([] if status == 204 else [b"no"], status=status, close_delimited=True))
    async with provider_of(vendor, "openai") as provider:
        _, error = await collect_failure(provider)
    assert str(error) == f"openai {status}: {'' if status == 204 else 'no'}"
    assert len(vendor.requests) == 1


async def test_a_huge_error_body_is_cut_at_4096_bytes_between_characters(
    vendor: FakeVendor,
) -> None:
    vendor.script(Reply([b"x" + "é".encode() * 100_000], status=500))
    async with provider_of(vendor, "gemini") as provider:
        _, error = await collect_failure(provider)
    assert str(error) == "gemini 500: x" + "é" * 2047


@pytest.mark.parametrize("last", [Stall(), Cut()])
async def test_an_error_body_that_never_ends_is_shown_as_far_as_it_came(
    vendor: FakeVendor, last: Part
) -> None:
    vendor.script(Reply([b"half a cau", last], status=500))
    async with provider_of(vendor, "anthropic", SHORT) as provider:
        _, error = await collect_failure(provider)
    assert str(error) == "anthropic 500: half a cau"


async def test_a_deprecated_model_is_recognised_by_the_body(vendor: FakeVendor) -> None:
    vendor.script(Reply([b"this model is No Longer Available"], status=404))
    async with provider_of(vendor, "anthropic") as provider:
        _, error = await collect_failure(provider)
    assert classify(error) is ErrorClass.DEPRECATED


@pytest.mark.parametrize("provider_id", PROVIDERS[:-1])
async def test_a_key_that_the_vendor_repeats_is_masked(
    vendor: FakeVendor, provider_id: str
) -> None:
    key = environment(vendor)[f"{provider_id.upper()}_API_KEY"]
    vendor.script(Reply([f"bad key {key}!".encode()], status=401))
    async with provider_of(vendor, provider_id) as provider:
        _, error = await collect_failure(provider)
    assert str(error).endswith(" 401: bad key [redacted]!")


# 429


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_429_is_tried_again_with_the_same_bytes_after_the_schedules_pauses(
    vendor: FakeVendor, provider_id: str
) -> None:
    vendor.script(*(Reply([b"slow down"], status=429) for _ in range(4)))
    vendor.script(ANSWERS[provider_id]("hi"))
    sleeps = Sleeps()
    async with provider_of(vendor, provider_id, sleep=sleeps) as provider:
        deltas = await collect(provider)
    name = ERROR_NAMES[provider_id]
    assert deltas[:4] == [
        RetryDelta(name, n, wait, "exponential backoff")
        for n, wait in enumerate((10_000, 20_000, 40_000, 60_000), 1)
    ]
    assert texts(deltas) == ["hi"]
    assert sleeps.seconds == [10, 20, 40, 60]
    posts = [received for received in vendor.requests if received.method == "POST"]
    assert len(posts) == 5
    assert len({received.body for received in posts}) == 1


async def test_after_five_429_the_error_surfaces(vendor: FakeVendor) -> None:
    vendor.script(*(Reply([b"slow down"], status=429) for _ in range(9)))
    async with provider_of(vendor, "openai") as provider:
        deltas, error = await collect_failure(provider)
    assert len(deltas) == 4
    assert len(vendor.requests) == 5
    assert str(error) == "openai 429: slow down"
    assert is_rate_limit(error)


async def test_a_retry_after_header_wins_over_the_schedule(vendor: FakeVendor) -> None:
    vendor.script(
        Reply([], status=429, headers={"Retry-After": "0"}),
        Reply([], status=429, headers={"Retry-After": "3"}),
        anthropic_text("hi"),
    )
    async with provider_of(vendor, "anthropic") as provider:
        deltas = await collect(provider)
    assert deltas[:2] == [
        RetryDelta("anthropic", 1, 0, "retry-after header"),
        RetryDelta("anthropic", 2, 3000, "retry-after header"),
    ]


@pytest.mark.parametrize(
    ("provider_id", "wait_ms"),
    [
        ("openai", 120),
        ("deepseek", 120),
        ("gemini", 120),
        ("anthropic", 10_000),
        ("ollama", 10_000),
    ],
)
async def test_reset_headers_count_for_openai_deepseek_and_gemini_only(
    vendor: FakeVendor, provider_id: str, wait_ms: int
) -> None:
    headers = {"X-RateLimit-Reset-Requests": "2s", "x-ratelimit-reset-tokens": "120ms"}
    vendor.script(Reply([], status=429, headers=headers), ANSWERS[provider_id]("hi"))
    async with provider_of(vendor, provider_id) as provider:
        deltas = await collect(provider)
    assert isinstance(deltas[0], RetryDelta)
    assert deltas[0].wait_ms == wait_ms


async def test_a_wait_that_is_too_long_surfaces_the_429_at_once(vendor: FakeVendor) -> None:
    vendor.script(Reply([b"tomorrow"], status=429, headers={"Retry-After": "86400"}))
    async with provider_of(vendor, "openai") as provider:
        deltas, error = await collect_failure(provider)
    assert (deltas, str(error)) == ([], "openai 429: tomorrow")


async def test_an_error_after_a_429_surfaces(vendor: FakeVendor) -> None:
    vendor.script(Reply([], status=429), Reply([b"down"], status=500))
    async with provider_of(vendor, "openai") as provider:
        deltas, error = await collect_failure(provider)
    assert len(deltas) == 1
    assert str(error) == "openai 500: down"


async def test_cancelling_interrupts_the_pause(vendor: FakeVendor) -> None:
    vendor.script(Reply([], status=429))
    registry = build_providers(environment(vendor))
    announced = asyncio.Event()

    async def call() -> None:
        async for _ in registry.get("openai").stream(request()):
            announced.set()

    task = asyncio.create_task(call())
    await asyncio.wait_for(announced.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    await registry.close()


async def test_a_proxy_of_the_environment_is_used(
    vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", vendor.url)
    monkeypatch.setenv("NO_PROXY", "")
    vendor.script(openai_text("hi"))
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://vendor.invalid/v1"}
    registry = build_providers(environ)
    assert texts(await collect(registry.get("openai"))) == ["hi"]
    await registry.close()
    assert vendor.last.target == "http://vendor.invalid/v1/chat/completions"


# Model listings

LISTINGS: dict[str, tuple[str, Json]] = {
    "anthropic": ("/v1/models", {"data": [{"id": "a"}, {"id": "b"}], "has_more": True}),
    "openai": ("/v1/models", {"data": [{"id": "a"}, {"id": "b"}]}),
    "deepseek": ("/deepseek/models", {"data": [{"id": "a"}, {"id": "b"}]}),
    "gemini": ("/v1beta/models", {"models": [{"name": "models/a"}, {"name": "b"}]}),
    "ollama": ("/cloud/api/tags", {"models": [{"name": "a"}, {"name": "b"}]}),
    "ollama-local": ("/api/tags", {"models": [{"name": "a"}, {"name": "b"}]}),
}


@pytest.mark.parametrize("provider_id", PROVIDERS)
async def test_models_are_listed(vendor: FakeVendor, provider_id: str) -> None:
    path, listing = LISTINGS[provider_id]
    vendor.script(json_reply(listing))
    async with provider_of(vendor, provider_id) as provider:
        assert await provider.models() == ["a", "b"]
    assert (vendor.last.method, vendor.last.target, vendor.last.body) == ("GET", path, b"")


async def test_an_empty_list_of_local_models_is_a_healthy_answer(vendor: FakeVendor) -> None:
    vendor.script(json_reply({"models": []}), json_reply({"models": None}))
    async with provider_of(vendor, "ollama-local") as provider:
        assert await provider.models() == []
        assert await provider.models() == []


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply([b"no"], status=401), "openai 401: no"),
        (Reply([b"busy"], status=429), "openai 429: busy"),
        (Reply([b"<html>"]), "openai: unreadable answer to GET /models: "),
        (Reply([b'{"data":[{"id":"caf\xff"}]}']), "openai: unreadable answer to GET /models: "),
        (Reply([b"[" * 5000]), "openai: unreadable answer to GET /models: "),
        (Reply([b"{}"]), "openai: unreadable model listing"),
        (Reply([json.dumps([1]).encode()]), "openai: unreadable model listing"),
        (Reply(stall_headers=True), "http: timeout awaiting response headers"),
        (Reply([b"{", Stall()]), "stream read: context deadline exceeded"),
        (Reply([b"{", Cut()]), "stream read: "),
    ],
)
async def test_a_failed_listing_is_an_error_and_never_tried_again(
    vendor: FakeVendor, reply: Reply, text: str
) -> None:
    vendor.script(reply)
    async with provider_of(vendor, "openai", SHORT) as provider:
        with pytest.raises(Exception, match=rf"^{text}") as caught:
            await provider.models()
    assert type(caught.value).__name__ in {"ProviderError", "TransportFailure"}
    assert len(vendor.requests) == 1


@pytest.mark.parametrize("url", ["http://localhost:abc", "http://localhost:99999", "http://[::1"])
async def test_a_listing_at_what_is_no_url_is_an_error(url: str) -> None:
    transport = Transport(Endpoint(name="openai", base_url=url))
    with pytest.raises(ProviderError, match=r"^openai: the base URL is not one$"):
        await transport.get_json("/models")
    await transport.close()
