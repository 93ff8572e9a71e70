"""Anthropic's messages API (providers.md section 6.1).

Thinking blocks are replayed with their signatures on the following requests, because the API
refuses a tool result whose assistant turn lost them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from events.plan import SystemBlock
from loomcycle.providers import arguments, decoding, reasoning, schema
from loomcycle.providers.answers import deltas_of
from loomcycle.providers.base import (
    Capabilities,
    Delta,
    Done,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
)
from loomcycle.providers.listing import list_names
from loomcycle.providers.transport import Transport
from replay.conversation import Block, Message, ModelRequest, Text, ToolResult, ToolUse

log = logging.getLogger(__name__)

CAPABILITIES = Capabilities(
    context_window=200_000, native_cache=True, thinking=True, effort=True, parallel_tools=True
)
DEFAULT_MAX_TOKENS = 8192
MAX_CACHE_BREAKPOINTS = 4
THINKING_BUDGETS = {"medium": 2048, "high": 8192}
MIN_THINKING_BUDGET = 1024

DRIVER = "anthropic"


class AnthropicProvider:
    """Calls ``POST /v1/messages``; always streams."""

    id = "anthropic"
    capabilities = CAPABILITIES

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        exchange = self._transport.post("/v1/messages", encode_request(request))
        answer = _Answer()
        async with aclosing(deltas_of(exchange, answer)) as deltas:
            async for delta in deltas:
                yield delta
        yield answer.done()

    async def models(self) -> list[str]:
        return await list_names(self._transport, "/v1/models", "data", "id")

    async def close(self) -> None:
        await self._transport.close()


def encode_request(request: ModelRequest) -> bytes:
    """The request body; see the parameter table of providers.md section 4."""
    max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
    body: dict[str, Any] = {"model": request.model, "max_tokens": max_tokens}
    if system := _system(request.system):
        body["system"] = system
    body["messages"] = [
        {"role": message.role, "content": content}
        for message in request.messages
        if (content := _content(message))
    ]
    if request.tools:
        body["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": schema.for_anthropic(bytes(tool.input_schema)),
            }
            for tool in request.tools
        ]
    body["stream"] = True
    budget = thinking_budget(request.model, request.effort, max_tokens)
    if budget and _may_think(request.messages):
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    _add_sampling(body, request)
    return msgspec.json.encode(body)


def thinking_budget(model: str, effort: str, max_tokens: int) -> int:
    """Tokens for thinking, 0 for none."""
    budget = 0 if "haiku" in model.lower() else THINKING_BUDGETS.get(effort, 0)
    if budget >= max_tokens:
        budget = max_tokens - 1024
    return budget if budget >= MIN_THINKING_BUDGET else 0


def _add_sampling(body: dict[str, Any], request: ModelRequest) -> None:
    sampling = request.sampling
    for key, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if value is None:
            continue
        if "thinking" in body:
            log.info("%s: %s is not sent together with thinking", request.model, key)
        else:
            body[key] = value
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop_sequences"] = sampling.stop


def _system(blocks: tuple[SystemBlock, ...]) -> list[dict[str, Any]]:
    filled = [block for block in blocks if block.text]
    marked = [index for index, block in enumerate(filled) if block.cacheable]
    breakpoints = set(marked[-MAX_CACHE_BREAKPOINTS:])
    wire: list[dict[str, Any]] = []
    for index, block in enumerate(filled):
        item: dict[str, Any] = {"type": "text", "text": block.text}
        if index in breakpoints:
            item["cache_control"] = {"type": "ephemeral"}
        wire.append(item)
    return wire


def _content(message: Message) -> list[dict[str, Any]]:
    """Wire blocks of a message; empty when the API would refuse the message as empty."""
    content = [block for each in message.blocks if (block := _block(each)) is not None]
    if content and message.reasoning:
        return (reasoning.unseal(DRIVER, message.reasoning) or []) + content
    return content


def _block(block: Block) -> dict[str, Any] | None:
    match block:
        case Text(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ToolUse(id=call, name=name, input=value):
            value = arguments.as_object(value)
            return {"type": "tool_use", "id": call, "name": name, "input": value}
        case ToolResult(tool_use_id=call, text=text, is_error=is_error):
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call}
            if text:
                result["content"] = text
            if is_error:
                result["is_error"] = True
            return result


def _may_think(messages: tuple[Message, ...] | list[Message]) -> bool:
    """False while results are due to a turn whose thinking blocks are not ours to replay."""
    if len(messages) < 2 or not any(isinstance(b, ToolResult) for b in messages[-1].blocks):
        return True
    for message in reversed(messages):
        if message.role == "assistant":
            return bool(reasoning.unseal(DRIVER, message.reasoning))
    return True


class _WireUsage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _WireMessage(Struct):
    model: str | None = None
    usage: _WireUsage | None = None


class _WireBlock(Struct):
    type: str | None = None
    id: str | None = None
    name: str | None = None
    text: str | None = None
    data: str | None = None


class _WireDelta(Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _WireError(Struct):
    type: str | None = None
    message: str | None = None


class _Frame(Struct):
    type: str
    index: int = 0
    message: _WireMessage | None = None
    content_block: _WireBlock | None = None
    delta: _WireDelta | None = None
    usage: _WireUsage | None = None
    error: _WireError | None = None


_frame = msgspec.json.Decoder(_Frame)


class _OpenCall(Struct):
    id: str
    name: str
    json: list[str] = []


class _Answer:
    """What the frames read so far amount to."""

    def __init__(self) -> None:
        self.ended = False
        self._model = ""
        self._stop_reason = ""
        self._started = _WireUsage()
        self._usage: _WireUsage | None = None
        self._delta_seen = False
        self._calls: dict[int, _OpenCall] = {}
        self._thinking: dict[int, dict[str, str]] = {}

    @property
    def complete(self) -> bool:
        return self.ended or self._delta_seen

    def read(self, data: bytes) -> Iterator[Delta]:
        frame = decoding.frame(_frame.decode, data)
        if frame is None:
            return
        match frame:
            case _Frame(type="message_start", message=_WireMessage(model=model, usage=usage)):
                self._model = model or ""
                self._started = usage or _WireUsage()
            case _Frame(type="content_block_start", content_block=_WireBlock() as block):
                yield from self._start(frame.index, block)
            case _Frame(type="content_block_delta", delta=_WireDelta() as delta):
                yield from self._extend(frame.index, delta)
            case _Frame(type="content_block_stop"):
                call = self._calls.pop(frame.index, None)
                if call is not None:
                    value = arguments.parse("".join(call.json))
                    yield ToolCallDelta(call.id, call.name, value)
            case _Frame(type="message_delta"):
                self._delta_seen = True
                if frame.delta is not None and frame.delta.stop_reason:
                    self._stop_reason = frame.delta.stop_reason
                self._usage = frame.usage or self._usage
            case _Frame(type="message_stop"):
                self.ended = True
            case _Frame(type="error", error=error):
                error = error or _WireError()
                kind = error.type or "error"
                raise ProviderError(f"{kind}: {error.message or ''}", partial=True)

    def flush(self) -> tuple[()]:
        return ()

    def done(self) -> Done:
        thinking = [self._thinking[index] for index in sorted(self._thinking)]
        signed = [block for block in thinking if block.get("signature") or "data" in block]
        return Done(
            stop_reason=self._stop_reason,
            usage=self._totals() if self._usage else None,
            reasoning=reasoning.seal(DRIVER, signed) if signed else "",
        )

    def _start(self, index: int, block: _WireBlock) -> Iterator[Delta]:
        match block.type:
            case "tool_use":
                self._calls[index] = _OpenCall(block.id or "", block.name or "")
            case "thinking":
                self._thinking[index] = {"type": "thinking", "thinking": "", "signature": ""}
            case "redacted_thinking":
                self._thinking[index] = {"type": "redacted_thinking", "data": block.data or ""}
            case "text" if block.text:
                yield TextDelta(block.text)

    def _extend(self, index: int, delta: _WireDelta) -> Iterator[Delta]:
        match delta.type:
            case "text_delta" if delta.text:
                yield TextDelta(delta.text)
            case "thinking_delta" if delta.thinking:
                if index in self._thinking:
                    self._thinking[index]["thinking"] += delta.thinking
                yield ThinkingDelta(delta.thinking)
            case "signature_delta" if delta.signature and index in self._thinking:
                self._thinking[index]["signature"] += delta.signature
            case "input_json_delta" if delta.partial_json and index in self._calls:
                self._calls[index].json.append(delta.partial_json)

    def _totals(self) -> Usage:
        """The last ``message_delta`` counts; what it leaves out stands in ``message_start``."""

        def count(field: str) -> int:
            value = getattr(self._usage, field)
            return (getattr(self._started, field) if value is None else value) or 0

        return Usage(
            input_tokens=count("input_tokens"),
            output_tokens=count("output_tokens"),
            cache_creation_input_tokens=count("cache_creation_input_tokens"),
            cache_read_input_tokens=count("cache_read_input_tokens"),
            model=self._model,
            max_context_tokens=CAPABILITIES.context_window,
        )
