"""OpenAI's chat completions API and services that speak it (providers.md section 6.2).

What differs between such services is a :class:`Dialect`; the driver itself knows no vendor.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from loomcycle.providers import arguments, decoding, reasoning
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
from loomcycle.providers.coalesce import Coalescer
from loomcycle.providers.listing import list_names
from loomcycle.providers.transport import Transport
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

_REASONING_MODEL = re.compile(r"(?:.*/)?(?:o[134](?:-|$)|gpt-5)")
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class Dialect(Struct, frozen=True, kw_only=True):
    """``max_tokens_key`` names the body's output limit for a model."""

    id: str
    capabilities: Capabilities
    max_tokens_key: Callable[[str], str]


def max_tokens_key(model: str) -> str:
    """OpenAI's reasoning models refuse ``max_tokens``."""
    return "max_completion_tokens" if _REASONING_MODEL.match(model) else "max_tokens"


OPENAI = Dialect(
    id="openai",
    capabilities=Capabilities(context_window=128_000, effort=True, parallel_tools=True),
    max_tokens_key=max_tokens_key,
)


class OpenAIProvider:
    """Calls ``POST {base}/chat/completions``; always streams."""

    def __init__(self, transport: Transport, dialect: Dialect = OPENAI) -> None:
        self._transport = transport
        self._dialect = dialect

    @property
    def id(self) -> str:
        return self._dialect.id

    @property
    def capabilities(self) -> Capabilities:
        return self._dialect.capabilities

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        body = encode_request(request, self._dialect)
        exchange = self._transport.post("/chat/completions", body)
        answer = _Answer(self._transport.endpoint.name)
        async with aclosing(deltas_of(exchange, answer)) as deltas:
            async for delta in deltas:
                yield delta
        for call in answer.calls():
            yield call
        yield answer.done(self.capabilities.context_window)

    async def models(self) -> list[str]:
        return await list_names(self._transport, "/models", "data", "id")

    async def close(self) -> None:
        await self._transport.close()


def encode_request(request: ModelRequest, dialect: Dialect = OPENAI) -> bytes:
    """The request body; see the parameter table of providers.md section 4."""
    body: dict[str, Any] = {"model": request.model, "messages": list(_messages(request))}
    if request.tools:
        body["tools"] = function_tools(request)
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    if request.max_tokens:
        body[dialect.max_tokens_key(request.model)] = request.max_tokens
    sampling = request.sampling
    optional = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "reasoning_effort": request.effort or None,
    }
    body.update((key, value) for key, value in optional.items() if value is not None)
    return msgspec.json.encode(body)


def function_tools(request: ModelRequest) -> list[dict[str, Any]]:
    """The ``tools`` array; schemas verbatim."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
            },
        }
        for tool in request.tools
    ]


def joined_system(request: ModelRequest) -> str:
    """All system blocks as one text, a blank line between them."""
    return "\n\n".join(block.text for block in request.system if block.text)


def _messages(request: ModelRequest) -> Iterator[dict[str, Any]]:
    if system := joined_system(request):
        yield {"role": "system", "content": system}
    for message in request.messages:
        if message.role == "assistant":
            yield from _assistant(message)
        else:
            yield from _user(message)


def _assistant(message: Message) -> Iterator[dict[str, Any]]:
    """Nothing for a turn without text and calls: the API refuses it."""
    text = "".join(block.text for block in message.blocks if isinstance(block, Text))
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": bytes(block.input).decode()},
        }
        for block in message.blocks
        if isinstance(block, ToolUse)
    ]
    if not text and not calls:
        return
    wire: dict[str, Any] = {"role": "assistant"}
    if text:
        wire["content"] = text
    if calls:
        wire["tool_calls"] = calls
    if message.reasoning and not reasoning.is_sealed(message.reasoning):
        wire["reasoning_content"] = message.reasoning
    yield wire


def _user(message: Message) -> Iterator[dict[str, Any]]:
    texts = [block.text for block in message.blocks if isinstance(block, Text)]
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}
    for block in message.blocks:
        if isinstance(block, ToolResult):
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}


class _WireFunction(Struct):
    name: str | None = None
    arguments: str | None = None


class _WireCall(Struct):
    index: int | None = None
    id: str | None = None
    function: _WireFunction | None = None


class _WireDelta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_WireCall] | None = None


class _WireChoice(Struct):
    delta: _WireDelta | None = None
    finish_reason: str | None = None


class _WireCached(Struct):
    cached_tokens: int | None = None


class _WireUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _WireCached | None = None


class _WireError(Struct):
    message: str | None = None
    code: int | str | None = None


class _Chunk(Struct):
    model: str | None = None
    choices: list[_WireChoice] | None = None
    usage: _WireUsage | None = None
    error: _WireError | str | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _OpenCall(Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class _Answer:
    """What the chunks read so far amount to."""

    def __init__(self, name: str) -> None:
        self.ended = False
        self._name = name
        self._text = Coalescer()
        self._reasoning: list[str] = []
        self._calls: dict[int, _OpenCall] = {}
        self._finish = ""
        self._model = ""
        self._usage: _WireUsage | None = None

    @property
    def complete(self) -> bool:
        return self.ended or bool(self._finish)

    def read(self, data: bytes) -> Iterator[Delta]:
        if data.strip() == b"[DONE]":
            self.ended = True
            return
        chunk = decoding.frame(_chunk.decode, data)
        if chunk is None:
            return
        if chunk.error is not None:
            raise ProviderError(_error_text(self._name, chunk.error), partial=True)
        self._model = self._model or chunk.model or ""
        self._usage = chunk.usage or self._usage
        for choice in (chunk.choices or ())[:1]:
            self._finish = choice.finish_reason or self._finish
            if choice.delta is not None:
                yield from self._extend(choice.delta)

    def flush(self) -> Iterator[Delta]:
        if text := self._text.flush():
            yield TextDelta(text)

    def calls(self) -> Iterator[ToolCallDelta]:
        for index in sorted(self._calls):
            call = self._calls[index]
            yield ToolCallDelta(call.id, call.name, arguments.parse("".join(call.arguments)))

    def done(self, window: int) -> Done:
        stop_reason = _STOP_REASONS.get(self._finish, self._finish)
        if self._calls and stop_reason in ("end_turn", ""):
            stop_reason = "tool_use"
        return Done(
            stop_reason=stop_reason,
            usage=self._totals(window),
            reasoning="".join(self._reasoning),
        )

    def _extend(self, delta: _WireDelta) -> Iterator[Delta]:
        if delta.reasoning_content:
            self._reasoning.append(delta.reasoning_content)
            yield ThinkingDelta(delta.reasoning_content)
        if delta.content and (text := self._text.push(delta.content)):
            yield TextDelta(text)
        for part in delta.tool_calls or ():
            call = self._calls.setdefault(self._index(part), _OpenCall())
            call.id = part.id or call.id
            if part.function is not None:
                call.name = part.function.name or call.name
                call.arguments.append(part.function.arguments or "")

    def _index(self, part: _WireCall) -> int:
        """Some compatible servers leave the index out: an id then begins the next call."""
        if part.index is not None:
            return part.index
        last = max(self._calls, default=-1)
        return last + 1 if part.id or last < 0 else last

    def _totals(self, window: int) -> Usage | None:
        if self._usage is None:
            return None
        details = self._usage.prompt_tokens_details
        return Usage(
            input_tokens=self._usage.prompt_tokens or 0,
            output_tokens=self._usage.completion_tokens or 0,
            cache_read_input_tokens=(details.cached_tokens or 0) if details else 0,
            model=self._model,
            max_context_tokens=window,
        )


def _error_text(name: str, error: _WireError | str) -> str:
    if isinstance(error, str):
        return f"{name}: {error}"
    if isinstance(error.code, int) and 400 <= error.code < 600:
        return f"{name} {error.code}: {error.message or ''}"
    return f"{name}: {error.message or error.code or 'unknown error'}"
