"""Each provider sends exactly this request (providers.md 2, 4, 6), against a real server."""

from collections.abc import AsyncIterator

import pytest

from events.plan import Sampling, SystemBlock
from tests.wire.calls import (
    READ,
    collect,
    provider_of,
    request,
    texts,
)
from tests.wire.vendors import (
    FakeVendor,
    Json,
    Reply,
    anthropic_text,
    gemini_text,
    ollama_text,
    openai_text,
)


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVendor]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with FakeVendor() as running:
        yield running


FULL = request(
    "model-1",
    system=(SystemBlock("be brief", cacheable=True),),
    tools=READ,
    max_tokens=500,
    sampling=Sampling(temperature=0.5),
)
FUNCTION = {
    "type": "function",
    "function": {"name": "Read", "description": "Reads.", "parameters": {"type": "object"}},
}
CHAT = {
    "model": "model-1",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ],
    "tools": [FUNCTION],
    "stream": True,
}


@pytest.mark.parametrize(
    ("provider_id", "reply", "target", "headers", "body"),
    [
        (
            "anthropic",
            anthropic_text("hi"),
            "/v1/messages",
            {"x-api-key": "key-anthropic", "anthropic-version": "2023-06-01"},
            {
                "model": "model-1",
                "max_tokens": 500,
                "system": [
                    {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
                ],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
                "tools": [
                    {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
                ],
                "stream": True,
                "temperature": 0.5,
            },
        ),
        (
            "openai",
            openai_text("hi"),
            "/v1/chat/completions",
            {"authorization": "Bearer key-openai"},
            {
                **CHAT,
                "stream_options": {"include_usage": True},
                "max_tokens": 500,
                "temperature": 0.5,
            },
        ),
        (
            "deepseek",
            openai_text("hi"),
            "/deepseek/chat/completions",
            {"authorization": "Bearer key-deepseek"},
            {
                **CHAT,
                "stream_options": {"include_usage": True},
                "max_tokens": 500,
                "temperature": 0.5,
            },
        ),
        (
            "gemini",
            gemini_text("hi"),
            "/v1beta/models/model-1:streamGenerateContent?alt=sse",
            {"x-goog-api-key": "key-gemini"},
            {
                "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
                "systemInstruction": {"parts": [{"text": "be brief"}]},
                "tools": [
                    {
                        "functionDeclarations": [
                            {
                                "name": "Read",
                                "description": "Reads.",
                                "parameters": {"type": "object"},
                            }
                        ]
                    }
                ],
                "generationConfig": {"maxOutputTokens": 500, "temperature": 0.5},
            },
        ),
        (
            "ollama",
            ollama_text("hi"),
            "/cloud/api/chat",
            {"authorization": "Bearer key-ollama"},
            {**CHAT, "options": {"num_predict": 500, "temperature": 0.5}},
        ),
        (
            "ollama-local",
            ollama_text("hi"),
            "/api/chat",
            {"authorization": None},
            {**CHAT, "options": {"num_predict": 500, "temperature": 0.5}},
        ),
    ],
)
async def test_the_exact_request(
    vendor: FakeVendor,
    provider_id: str,
    reply: Reply,
    target: str,
    headers: dict[str, str | None],
    body: Json,
) -> None:
    vendor.script(reply)
    async with provider_of(vendor, provider_id) as provider:
        deltas = await collect(provider, FULL)
    assert texts(deltas) == ["hi"]
    sent = vendor.requests[0]
    assert (sent.method, sent.target) == ("POST", target)
    assert sent.json == body
    assert sent.headers["content-type"] == "application/json"
    ollama = provider_id.startswith("ollama")
    expected = "application/x-ndjson" if ollama else "text/event-stream"
    assert sent.headers["accept"] == expected
    assert {name: sent.headers.get(name) for name in headers} == headers
