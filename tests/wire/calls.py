"""Calls to real providers against a :class:`FakeVendor`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw

from events.plan import ToolSpec
from loomcycle.providers.base import (
    Delta,
    Done,
    Provider,
    ProviderError,
    TextDelta,
    ToolCallDelta,
)
from loomcycle.providers.registry import build_providers
from replay.conversation import Message, ModelRequest, Text
from tests.wire.vendors import (
    FakeVendor,
    Reply,
    anthropic_events,
    anthropic_text,
    environment,
    gemini_chunk,
    gemini_text,
    ndjson,
    ollama_line,
    ollama_text,
    openai_chunk,
    openai_text,
    sse,
)

HELLO = Message("user", (Text("hello"),))
READ = (ToolSpec("Read", "Reads.", Raw(b'{"type":"object"}')),)


ERROR_NAMES = {
    "anthropic": "anthropic",
    "openai": "openai",
    "deepseek": "openai",
    "gemini": "gemini",
    "ollama": "ollama",
    "ollama-local": "ollama-local",
}
PROVIDERS = list(ERROR_NAMES)
ANSWERS: dict[str, Callable[[str], Reply]] = {
    "anthropic": anthropic_text,
    "openai": openai_text,
    "deepseek": openai_text,
    "gemini": gemini_text,
    "ollama": ollama_text,
    "ollama-local": ollama_text,
}
SHORT = {
    f"LOOMCYCLE_{name}_TIMEOUT_MS": "80"
    for name in ("PROVIDER_HEADER", "PROVIDER_IDLE", "OLLAMA_LOCAL_HEADER", "OLLAMA_LOCAL_IDLE")
}


class Sleeps:
    """A ``sleep`` that takes no time and remembers what it was asked for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@asynccontextmanager
async def provider_of(
    vendor: FakeVendor,
    provider_id: str,
    settings: Mapping[str, str] | None = None,
    *,
    sleep: Sleeps | None = None,
) -> AsyncIterator[Provider]:
    """The provider, calling ``vendor``; its pool is closed at the end."""
    environ = environment(vendor, **(settings or {}))
    vendor.listings.clear()  # nobody probes a provider on its own
    registry = build_providers(environ, sleep=sleep or Sleeps())
    try:
        yield registry.get(provider_id)
    finally:
        await registry.close()


def request(model: str = "m-1", **fields: Any) -> ModelRequest:
    return ModelRequest(provider="p", model=model, **{"messages": (HELLO,), **fields})


async def collect(provider: Provider, call: ModelRequest | None = None) -> list[Delta]:
    return [delta async for delta in provider.stream(call or request())]


async def collect_failure(
    provider: Provider, call: ModelRequest | None = None
) -> tuple[list[Delta], ProviderError]:
    """The deltas before the error, and the error."""
    deltas: list[Delta] = []
    try:
        async for delta in provider.stream(call or request()):
            deltas.append(delta)
    except ProviderError as error:
        return deltas, error
    raise AssertionError(f"the call did not fail: {deltas}")


def texts(deltas: list[Delta]) -> list[str]:
    return [delta.text for delta in deltas if isinstance(delta, TextDelta)]


def call(name: str, value: Any, call_id: str = "") -> tuple[str, str, Any]:
    """What :func:`calls` shows of a tool call."""
    return (call_id, name, value)


def calls(deltas: list[Delta]) -> list[tuple[str, str, Any]]:
    return [
        (delta.id, delta.name, json.loads(bytes(delta.input)))
        for delta in deltas
        if isinstance(delta, ToolCallDelta)
    ]


def done(deltas: list[Delta]) -> Done:
    last = deltas[-1]
    assert isinstance(last, Done)
    assert sum(isinstance(delta, Done) for delta in deltas) == 1
    return last


def kinds(deltas: list[Delta]) -> list[str]:
    return [type(delta).__name__ for delta in deltas]


def beginning(provider_id: str, text: str) -> bytes:
    """The first bytes of an answer, up to and including a piece of text."""
    match provider_id:
        case "anthropic":
            return sse(*anthropic_events([{"type": "text", "text": text}])[:3])
        case "openai" | "deepseek":
            return sse(openai_chunk({"content": text}))
        case "gemini":
            return sse(gemini_chunk({"text": text}))
        case _:
            return ndjson(ollama_line({"content": text}))


def whole(provider_id: str, text: str) -> bytes:
    part = ANSWERS[provider_id](text).parts[0]
    assert isinstance(part, bytes)
    return part
