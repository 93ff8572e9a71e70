"""Ollama's chat API, for a local server and for the hosted service (providers.md section 6.5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw, Struct

from loomcycle.providers import arguments, decoding
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
from loomcycle.providers.ollama_recovery import recover_calls
from loomcycle.providers.openai import function_tools, joined_system
from loomcycle.providers.transport import Transport
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

log = logging.getLogger(__name__)

WINDOW_TIMEOUT = 2.0
WINDOW_LIFETIME = 300.0

_STOP_REASONS = {"": "end_turn", "stop": "end_turn", "length": "max_tokens"}


class OllamaProvider:
    """Calls ``POST {base}/api/chat``; ``num_ctx`` 0 leaves the window to the server."""

    def __init__(
        self,
        provider_id: str,
        transport: Transport,
        *,
        num_ctx: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._id = provider_id
        self._transport = transport
        self._num_ctx = num_ctx
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}
        self._effort_noted: set[str] = set()

    @property
    def id(self) -> str:
        return self._id

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(context_window=self._num_ctx, parallel_tools=True)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        self._note_effort(request)
        exchange = self._transport.post("/api/chat", encode_request(request, self._num_ctx))
        answer = _Answer(self._id)
        async with aclosing(deltas_of(exchange, answer)) as deltas:
            async for delta in deltas:
                yield delta
        for call in answer.written_calls() if request.tools else ():
            yield call
        window = await self._window(request.model) if answer.counted else 0
        yield answer.done(window)

    async def models(self) -> list[str]:
        return await list_names(self._transport, "/api/tags", "models", "name")

    async def close(self) -> None:
        await self._transport.close()

    def _note_effort(self, request: ModelRequest) -> None:
        if request.effort and request.model not in self._effort_noted:
            self._effort_noted.add(request.model)
            log.info("%s: model %s takes no effort; it is ignored", self._id, request.model)

    async def _window(self, model: str) -> int:
        """Context length of the loaded model; 0 when the server does not tell."""
        if self._num_ctx:
            return self._num_ctx
        known = self._windows.get(model)
        if known is not None and self._clock() - known[0] < WINDOW_LIFETIME:
            return known[1]
        try:
            async with asyncio.timeout(WINDOW_TIMEOUT):
                window = _loaded_window(await self._transport.get_json("/api/ps"), model)
        except (ProviderError, TimeoutError) as error:
            log.debug("%s: no answer to /api/ps: %s", self._id, error)
            window = 0
        self._windows[model] = (self._clock(), window)
        return window


def _loaded_window(listing: Any, model: str) -> int:
    entries = listing.get("models") if isinstance(listing, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and model in (entry.get("name"), entry.get("model")):
            length = entry.get("context_length")
            return length if isinstance(length, int) else 0
    return 0


def encode_request(request: ModelRequest, num_ctx: int = 0) -> bytes:
    """The request body; see the parameter table of providers.md section 4."""
    body: dict[str, Any] = {"model": request.model, "messages": list(_messages(request))}
    if request.tools:
        body["tools"] = function_tools(request)
    body["stream"] = True
    sampling = request.sampling
    optional = {
        "num_ctx": num_ctx or None,
        "num_predict": request.max_tokens or None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
    }
    if options := {key: value for key, value in optional.items() if value is not None}:
        body["options"] = options
    return msgspec.json.encode(body)


def _messages(request: ModelRequest) -> Iterator[dict[str, Any]]:
    if system := joined_system(request):
        yield {"role": "system", "content": system}
    for message in request.messages:
        if message.role == "assistant":
            yield from _assistant(message)
        else:
            yield from _user(message)


def _assistant(message: Message) -> Iterator[dict[str, Any]]:
    text = "".join(block.text for block in message.blocks if isinstance(block, Text))
    calls = [
        {"function": {"name": block.name, "arguments": arguments.as_object(block.input)}}
        for block in message.blocks
        if isinstance(block, ToolUse)
    ]
    if calls:
        yield {"role": "assistant", "content": text, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


def _user(message: Message) -> Iterator[dict[str, Any]]:
    texts = [block.text for block in message.blocks if isinstance(block, Text)]
    if texts:
        yield {"role": "user", "content": "\n".join(texts)}
    for block in message.blocks:
        if isinstance(block, ToolResult):
            yield {"role": "tool", "content": block.text}


class _WireFunction(Struct):
    name: str | None = None
    arguments: Raw = arguments.EMPTY


class _WireCall(Struct):
    function: _WireFunction | None = None


class _WireMessage(Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_WireCall] | None = None


class _Line(Struct):
    model: str | None = None
    message: _WireMessage | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: str | None = None


_line = msgspec.json.Decoder(_Line)


class _Answer:
    """What the lines read so far amount to."""

    def __init__(self, provider_id: str) -> None:
        self.ended = False
        self._id = provider_id
        self._coalescer = Coalescer()
        self._text: list[str] = []
        self._called = False
        self._model = ""
        self._reason = ""
        self._tokens = (0, 0)

    @property
    def complete(self) -> bool:
        return self.ended

    @property
    def counted(self) -> bool:
        """Whether the server reported usage."""
        return any(self._tokens)

    def read(self, data: bytes) -> Iterator[Delta]:
        line = decoding.frame(_line.decode, data)
        if line is None:
            return
        if line.error is not None:
            raise ProviderError(f"{self._id}: {line.error}", partial=True)
        self._model = self._model or line.model or ""
        if line.message is not None:
            yield from self._extend(line.message)
        if line.done:
            self.ended = True
            self._reason = line.done_reason or ""
            self._tokens = (line.prompt_eval_count or 0, line.eval_count or 0)

    def flush(self) -> Iterator[Delta]:
        if text := self._coalescer.flush():
            yield TextDelta(text)

    def written_calls(self) -> Iterator[ToolCallDelta]:
        """Calls that the model wrote as text, where it made no other."""
        if not self._called:
            for name, value in recover_calls("".join(self._text)):
                self._called = True
                yield ToolCallDelta("", name, value)

    def done(self, window: int) -> Done:
        stop_reason = _STOP_REASONS.get(self._reason, self._reason)
        given, made = self._tokens
        usage = Usage(
            input_tokens=given, output_tokens=made, model=self._model, max_context_tokens=window
        )
        return Done(
            stop_reason="tool_use" if self._called else stop_reason,
            usage=usage if self.counted else None,
        )

    def _extend(self, message: _WireMessage) -> Iterator[Delta]:
        if message.thinking:
            yield ThinkingDelta(message.thinking)
        if message.content:
            self._text.append(message.content)
            if text := self._coalescer.push(message.content):
                yield TextDelta(text)
        for call in message.tool_calls or ():
            if call.function is None:
                continue
            yield from self.flush()
            self._called = True
            yield ToolCallDelta("", call.function.name or "", _object(call.function.arguments))


def _object(value: Raw) -> Raw:
    """Arguments as an object; some servers send them as a string holding JSON."""
    data = bytes(value)
    if data == b"null":
        return arguments.EMPTY
    if data.startswith(b'"'):
        return arguments.parse(msgspec.json.decode(data, type=str))
    return Raw(data)
