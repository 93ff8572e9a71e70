"""Turns of a model in the words of five vendors, and what a vendor was asked, in one shape.

Replies are built for :class:`tests.wire.vendors.FakeVendor`; requests are read back leniently,
so a test states once what a conversation must look like on every wire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Hold,
    Part,
    Received,
    Reply,
    Stall,
    anthropic_events,
    gemini_chunk,
    ndjson,
    ollama_end,
    ollama_line,
    openai_chunk,
    openai_usage,
    sse,
)

VENDORS = ("anthropic", "openai", "deepseek", "gemini", "ollama")

ERROR_NAMES = {"deepseek": "openai"}
"""How a provider is called in error texts and retries, where it differs from its id."""

WITHOUT_CALL_IDS = ("gemini", "ollama")

INPUT_TOKENS, OUTPUT_TOKENS = 10, 5
"""What every reply reports."""

MODELS = {
    "anthropic": "claude-fake-1",
    "openai": "gpt-fake-1",
    "deepseek": "gpt-fake-1",
    "gemini": "gemini-fake-1",
    "ollama": "llama-fake",
}
"""The model that replies say answered."""

Spoken = str | asyncio.Event | Stall | Cut


class Call(NamedTuple):
    """A tool call of a model; ``id`` is left out where the vendor has none."""

    id: str
    name: str
    input: dict[str, Any]


class Told(NamedTuple):
    """One message of a request: what was said, which tools were called, what they answered."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    results: tuple[str, ...] = ()


def reply(vendor: str, *spoken: Spoken, calls: Sequence[Call] = (), stop: str = "") -> Reply:
    """A streamed answer; an event in it waits, a stall or cut ends it.

    ``stop`` is the vendor's word for its end; "" the usual one.
    """
    parts: list[Part] = []
    if opening := _OPENINGS.get(vendor):
        parts.append(opening)
    for each in spoken:
        match each:
            case str():
                parts.append(piece(vendor, each))
            case asyncio.Event():
                parts.append(Hold(each))
            case _:
                return Reply([*parts, each])
    return Reply([*parts, _ending(vendor, calls, stop)])


def piece(vendor: str, text: str) -> bytes:
    match vendor:
        case "anthropic":
            delta = {"type": "text_delta", "text": text}
            return sse({"type": "content_block_delta", "index": 0, "delta": delta})
        case "gemini":
            return sse(gemini_chunk({"text": text}))
        case "ollama":
            return ndjson(ollama_line({"content": text}))
        case _:
            return sse(openai_chunk({"content": text}))


_BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
_OPENINGS = {"anthropic": sse(*anthropic_events([])[:1], _BLOCK)}


def _ending(vendor: str, calls: Sequence[Call], stop: str) -> bytes:
    match vendor:
        case "anthropic":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": ""}]
            blocks += [
                {"type": "tool_use", "id": c.id, "name": c.name, "input": c.input} for c in calls
            ]
            reason = stop or ("tool_use" if calls else "end_turn")
            return sse(*anthropic_events(blocks, stop_reason=reason)[3:])
        case "gemini":
            parts = [{"functionCall": {"name": c.name, "args": c.input}} for c in calls]
            usage = (INPUT_TOKENS, OUTPUT_TOKENS, 0)
            return sse(gemini_chunk(*parts, finish=stop or "STOP", usage=usage))
        case "ollama":
            wanted = [{"function": {"name": c.name, "arguments": c.input}} for c in calls]
            lines = [ollama_line({"tool_calls": wanted})] if calls else []
            return ndjson(*lines, ollama_end(stop or "stop"))
        case _:
            chunks = [openai_chunk({"tool_calls": [one]}) for one in _openai_calls(calls)]
            finish = stop or ("tool_calls" if calls else "stop")
            return sse(*chunks, openai_chunk(finish=finish), openai_usage(), done=True)


def _openai_calls(calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(calls):
        function = {"name": call.name, "arguments": json.dumps(call.input)}
        yield {"index": index, "id": call.id, "type": "function", "function": function}


def asked(vendor: FakeVendor) -> list[Received]:
    """The model calls that came in, without other questions to the vendor."""
    return [request for request in vendor.requests if request.method == "POST"]


def conversation(vendor: str, request: Received) -> list[Told]:
    """The messages of a request; tool messages in a row are one message of the user."""
    body = request.json
    match vendor:
        case "anthropic":
            return [_anthropic(message) for message in body["messages"]]
        case "gemini":
            return [_gemini(message) for message in body["contents"]]
        case _:
            return _merged([_openai(m) for m in body["messages"] if m["role"] != "system"])


def _anthropic(message: dict[str, Any]) -> Told:
    blocks = message["content"]
    return Told(
        message["role"],
        "".join(b["text"] for b in blocks if b["type"] == "text"),
        tuple((b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"),
        tuple(b.get("content", "") for b in blocks if b["type"] == "tool_result"),
    )


def _gemini(message: dict[str, Any]) -> Told:
    parts = message["parts"]
    answers = [p["functionResponse"] for p in parts if "functionResponse" in p]
    return Told(
        "assistant" if message["role"] == "model" else "user",
        "".join(p.get("text", "") for p in parts),
        tuple(
            (p["functionCall"]["name"], p["functionCall"]["args"])
            for p in parts
            if "functionCall" in p
        ),
        tuple(answer["response"]["content"] for answer in answers),
    )


def _openai(message: dict[str, Any]) -> Told:
    if message["role"] == "tool":
        return Told("user", results=(message["content"],))
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return Told(
        message["role"],
        message.get("content") or "",
        tuple((f["name"], _parsed(f["arguments"])) for f in functions),
    )


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _merged(messages: Sequence[Told]) -> list[Told]:
    merged: list[Told] = []
    for message in messages:
        if message.results and merged and merged[-1].results:
            merged[-1] = merged[-1]._replace(results=merged[-1].results + message.results)
        else:
            merged.append(message)
    return merged
