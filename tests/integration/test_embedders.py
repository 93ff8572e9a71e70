"""Embedders at the wire: what they ask, what they take for an answer, when they give up."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from loomcycle.config.schema import EmbedderConfig
from loomcycle.config.variable_row import Secret
from loomcycle.config.variables import Environment
from loomcycle.embedders.base import Embedder, EmbedderError, EmbedderNotConfigured
from loomcycle.embedders.registry import build_embedder
from loomcycle.providers.transport import Endpoint
from tests.wire.vendors import FakeVendor, Json, Reply, json_reply

pytestmark = pytest.mark.integration

PROVIDERS = ("openai", "gemini", "anthropic")
KEYS = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY", "anthropic": "VOYAGE_API_KEY"}
KNOWN = {
    "openai": ("text-embedding-3-small", 1536),
    "gemini": ("text-embedding-004", 768),
    "anthropic": ("voyage-3-large", 1024),
}


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with FakeVendor() as running:
        yield running


def settings(vendor: FakeVendor | None = None) -> Environment:
    keyed = Environment(
        openai_api_key=Secret("key-openai"),
        gemini_api_key=Secret("key-gemini"),
        voyage_api_key=Secret("key-voyage"),
    )
    if vendor is None:
        return keyed
    return replace(
        keyed,
        openai_base_url=f"{vendor.url}/v1",
        voyage_base_url=f"{vendor.url}/v1",
        gemini_base_url=f"{vendor.url}/v1beta",
    )


@asynccontextmanager
async def embedder(
    vendor: FakeVendor,
    provider: str,
    model: str = "m-1",
    pauses: list[float] | None = None,
    **config: int,
) -> AsyncIterator[Embedder]:
    async def sleep(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)

    made = build_embedder(
        EmbedderConfig(provider=provider, model=model, **config), settings(vendor), sleep=sleep
    )
    assert made is not None
    try:
        yield made
    finally:
        await made.close()


def answer(provider: str, *vectors: Sequence[float]) -> Reply:
    if provider == "gemini":
        return json_reply({"embeddings": [{"values": vector} for vector in vectors]})
    data: list[Json] = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)
    ]
    return json_reply({"object": "list", "data": data[::-1], "model": "m-1"})


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_vectors_are_float32_in_the_order_of_the_texts(
    vendor: FakeVendor, provider: str
) -> None:
    vendor.script(answer(provider, [0.5, 1], [2, 0.1]))
    async with embedder(vendor, provider) as made:
        assert (made.provider, made.model, made.dimensions) == (provider, "m-1", 0)
        assert await made.embed(["a", "b"]) == [array("f", [0.5, 1]), array("f", [2, 0.1])]


async def test_openai_and_voyage_are_asked_alike(vendor: FakeVendor) -> None:
    for provider, key in (("openai", "key-openai"), ("anthropic", "key-voyage")):
        vendor.script(answer(provider, [1.0]))
        async with embedder(vendor, provider) as made:
            await made.embed(["tea"])
        assert (vendor.last.method, vendor.last.target) == ("POST", "/v1/embeddings")
        assert vendor.last.headers["authorization"] == f"Bearer {key}"
        assert vendor.last.json == {"input": ["tea"], "model": "m-1"}


async def test_gemini_is_asked_in_a_batch(vendor: FakeVendor) -> None:
    vendor.script(answer("gemini", [1.0]))
    async with embedder(vendor, "gemini") as made:
        await made.embed(["tea"])
    assert vendor.last.target == "/v1beta/models/m-1:batchEmbedContents"
    assert vendor.last.headers["x-goog-api-key"] == "key-gemini"
    content = {"parts": [{"text": "tea"}]}
    assert vendor.last.json == {"requests": [{"model": "models/m-1", "content": content}]}


async def test_a_gemini_model_may_be_named_with_its_prefix(vendor: FakeVendor) -> None:
    vendor.script(answer("gemini", [0.0] * 768))
    async with embedder(vendor, "gemini", "models/text-embedding-004") as made:
        assert (made.model, made.dimensions) == ("text-embedding-004", 768)
        await made.embed(["tea"])
    assert vendor.last.target == "/v1beta/models/text-embedding-004:batchEmbedContents"
    assert vendor.last.json["requests"][0]["model"] == "models/text-embedding-004"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_texts_ask_nobody(vendor: FakeVendor, provider: str) -> None:
    async with embedder(vendor, provider) as made:
        assert await made.embed([]) == []
    assert vendor.requests == []


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_texts_are_sent_in_batches(vendor: FakeVendor, provider: str) -> None:
    vendor.script(answer(provider, [1.0], [2.0]), answer(provider, [3.0]))
    async with embedder(vendor, provider, batch_size=2) as made:
        assert [v[0] for v in await made.embed(["a", "b", "c"])] == [1, 2, 3]
    assert len(vendor.requests) == 2


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("vectors", "text"),
    [
        ([[1.0]], "2 texts were sent, 1 embeddings came back"),
        ([[1.0], [1.0], [1.0]], "3 embeddings came back|index 2 for 2 texts"),
        ([[1.0, 2.0], [1.0]], "an embedding has 1 dimensions, expected 2"),
        ([[], []], "an embedding has 0 dimensions"),
    ],
)
async def test_answers_that_do_not_fit_are_errors(
    vendor: FakeVendor, provider: str, vectors: list[list[float]], text: str
) -> None:
    vendor.script(answer(provider, *vectors))
    async with embedder(vendor, provider) as made:
        with pytest.raises(EmbedderError, match=text):
            await made.embed(["a", "b"])


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_known_model_must_keep_its_dimension(vendor: FakeVendor, provider: str) -> None:
    model, dimensions = KNOWN[provider]
    vendor.script(answer(provider, [0.0] * dimensions), answer(provider, [0.0] * 7))
    async with embedder(vendor, provider, model) as made:
        assert made.dimensions == dimensions
        assert len((await made.embed(["a"]))[0]) == dimensions
        with pytest.raises(EmbedderError, match=f"has 7 dimensions, expected {dimensions}"):
            await made.embed(["a"])


UNREADABLE = [
    b"nonsense",
    b"[]",
    b'{"data":[{"index":0}],"embeddings":[{}]}',
    b'{"data":[],"embeddings":[],"more":"caf\xff"}',
    b'{"data":[],"embeddings":[],"more":' + b"[" * 5000 + b"]" * 5000 + b"}",
]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("body", UNREADABLE, ids=[repr(body[:24]) for body in UNREADABLE])
async def test_an_unreadable_answer_is_an_error(
    vendor: FakeVendor, provider: str, body: bytes
) -> None:
    vendor.script(Reply([body]))
    async with embedder(vendor, provider) as made:
        with pytest.raises(EmbedderError, match=f"{provider} embeddings: unreadable answer"):
            await made.embed(["a"])


async def test_an_answer_without_vectors_is_an_error(vendor: FakeVendor) -> None:
    vendor.script(Reply([b"{}"]))
    async with embedder(vendor, "openai") as made:
        with pytest.raises(EmbedderError, match="openai embeddings: unreadable answer"):
            await made.embed(["a"])


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        ([0, 1, 1], "2 texts were sent, 3 embeddings came back"),
        ([0, 0, 1], "index 0 for 2 texts, 1 was due"),
        ([1, 1], "index 1 for 2 texts, 0 was due"),
        ([0, 0], "index 0 for 2 texts, 1 was due"),
        ([-1, 0], "index -1 for 2 texts, 0 was due"),
    ],
)
async def test_each_text_has_one_vector(vendor: FakeVendor, indexes: list[int], text: str) -> None:
    vendor.script(json_reply({"data": [{"index": i, "embedding": [1.0]} for i in indexes]}))
    async with embedder(vendor, "openai") as made:
        with pytest.raises(EmbedderError, match=text):
            await made.embed(["a", "b"])


async def test_an_index_out_of_range_is_an_error(vendor: FakeVendor) -> None:
    vendor.script(json_reply({"data": [{"index": 4, "embedding": [1.0]}]}))
    async with embedder(vendor, "openai") as made:
        with pytest.raises(EmbedderError, match="index 4 for 1 texts"):
            await made.embed(["a"])


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_refusal_shows_the_status_and_the_beginning_of_the_body(
    vendor: FakeVendor, provider: str
) -> None:
    key = {"openai": "key-openai", "gemini": "key-gemini", "anthropic": "key-voyage"}[provider]
    vendor.script(Reply([f"bad key {key} ".encode() + b"x" * 5000], status=401))
    async with embedder(vendor, provider) as made:
        with pytest.raises(EmbedderError) as caught:
            await made.embed(["a"])
    text = str(caught.value)
    assert "status 401: bad key [redacted] xxx" in text
    assert key not in text
    assert 900 < len(text) < 1100


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_rate_limit_is_waited_for(vendor: FakeVendor, provider: str) -> None:
    limited = json_reply({}, status=429, headers={"Retry-After": "7"})
    vendor.script(limited, json_reply({}, status=429), answer(provider, [1.0]))
    pauses: list[float] = []
    async with embedder(vendor, provider, pauses=pauses) as made:
        assert len(await made.embed(["a"])) == 1
    assert pauses == [7.0, 20.0]


async def test_gemini_does_not_wait_for_a_rate_limit(vendor: FakeVendor) -> None:
    vendor.script(json_reply({}, status=429, headers={"Retry-After": "0"}))
    async with embedder(vendor, "gemini") as made:
        with pytest.raises(EmbedderError, match="status 429"):
            await made.embed(["a"])


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_silent_endpoint_is_given_up(vendor: FakeVendor, provider: str) -> None:
    vendor.script(Reply(stall_headers=True))
    async with embedder(vendor, provider, timeout_ms=50) as made:
        with pytest.raises(EmbedderError, match="no answer in time"):
            await made.embed(["a"])


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_nothing_but_its_own_limit_bounds_a_slow_endpoint(
    vendor: FakeVendor, provider: str
) -> None:
    vendor.script(answer(provider, [1.0]))
    async with embedder(vendor, provider, timeout_ms=600_000) as made:
        await made.embed(["a"])
        endpoint: Endpoint = vars(vars(made)["_embedder"])["_transport"].endpoint
    assert (endpoint.header_timeout, endpoint.idle_timeout) == (None, None)


async def test_a_cut_connection_is_an_error(vendor: FakeVendor) -> None:
    vendor.script(Reply(cut_headers=True))
    async with embedder(vendor, "openai") as made:
        with pytest.raises(EmbedderError, match="openai embeddings: http: "):
            await made.embed(["a"])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_missing_key_is_named(provider: str) -> None:
    with pytest.raises(EmbedderNotConfigured, match=rf"\(set {KEYS[provider]}\)"):
        build_embedder(EmbedderConfig(provider=provider, model="m"), Environment())


@pytest.mark.parametrize("switched", [False, True])
def test_the_stub_needs_its_switch(switched: bool) -> None:
    config: Any = EmbedderConfig(provider="stub", model="m")
    environment = Environment(embedder_stub=switched)
    if switched:
        made = build_embedder(config, environment)
        assert made is not None
        assert made.model == "m"
    else:
        with pytest.raises(EmbedderNotConfigured, match="LOOMCYCLE_EMBEDDER_STUB=1"):
            build_embedder(config, environment)


def test_without_configuration_there_is_no_embedder() -> None:
    assert build_embedder(None, settings()) is None
