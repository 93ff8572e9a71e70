"""Gemini's streamGenerateContent API (providers.md section 6.4).

Signatures that come with function calls are replayed on the following requests (as sealed
reasoning), because newer models refuse a history without them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

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
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse

CAPABILITIES = Capabilities(
    context_window=2_000_000, thinking=True, effort=True, parallel_tools=True
)
DRIVER = "gemini"


class GeminiProvider:
    """Calls ``POST {base}/models/{model}:streamGenerateContent?alt=sse``."""

    id = "gemini"
    capabilities = CAPABILITIES

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        model = quote(request.model.removeprefix("models/"), safe="")
        path = f"/models/{model}:streamGenerateContent?alt=sse"
        exchange = self._transport.post(path, encode_request(request))
        answer = _Answer(request.model)
        async with aclosing(deltas_of(exchange, answer)) as deltas:
            async for delta in deltas:
                yield delta
        for call in answer.calls:
            yield call
        yield answer.done()

    async def models(self) -> list[str]:
        names = await list_names(self._transport, "/models", "models", "name")
        return [name.removeprefix("models/") for name in names]

    async def close(self) -> None:
        await self._transport.close()


def encode_request(request: ModelRequest) -> bytes:
    """The request body; see the parameter table of providers.md section 4."""
    body: dict[str, Any] = {
        "contents": [
            {"role": "model" if message.role == "assistant" else "user", "parts": parts}
            for message in request.messages
            if (parts := list(_parts(message)))
        ]
    }
    if system := [{"text": block.text} for block in request.system if block.text]:
        body["systemInstruction"] = {"parts": system}
    if request.tools:
        body["tools"] = [
            {
                "functionDeclarations": [
                    {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": schema.for_gemini(bytes(tool.input_schema)),
                    }
                    for tool in request.tools
                ]
            }
        ]
    if config := _generation_config(request):
        body["generationConfig"] = config
    return msgspec.json.encode(body)


def thinking_budget(effort: str, max_tokens: int) -> int | None:
    """``thinkingBudget`` for an effort; None leaves the vendor's default."""
    match effort:
        case "low":
            return 0
        case "medium":
            return max(max_tokens - 256, 0) if 0 < max_tokens <= 2048 else 2048
        case "high" if 0 < max_tokens <= 8192:
            return max_tokens - 1024 if max_tokens - 1024 >= 1024 else 0
        case "high":
            return 8192
        case _:
            return None


def _generation_config(request: ModelRequest) -> dict[str, Any]:
    sampling = request.sampling
    budget = thinking_budget(request.effort, request.max_tokens)
    optional = {
        "maxOutputTokens": request.max_tokens or None,
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "seed": sampling.seed,
        "stopSequences": sampling.stop or None,
        "thinkingConfig": None if budget is None else {"thinkingBudget": budget},
    }
    return {key: value for key, value in optional.items() if value is not None}


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    signatures = reasoning.unseal(DRIVER, message.reasoning) if message.reasoning else None
    pending = iter(signatures or ())
    for block in message.blocks:
        match block:
            case Text(text=text) if text:
                yield {"text": text}
            case ToolUse(name=name, input=value):
                part: dict[str, Any] = {
                    "functionCall": {"name": name, "args": arguments.as_object(value)}
                }
                if signature := next(pending, ""):
                    part["thoughtSignature"] = signature
                yield part
            case ToolResult(name=name, text=text):
                yield {"functionResponse": {"name": name, "response": {"content": text}}}


class _WireCall(Struct):
    name: str | None = None
    args: Raw = arguments.EMPTY


class _WirePart(Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _WireCall | None = None


class _WireContent(Struct):
    parts: list[_WirePart] | None = None


class _WireCandidate(Struct, rename="camel"):
    content: _WireContent | None = None
    finish_reason: str | None = None


class _WireFeedback(Struct, rename="camel"):
    block_reason: str | None = None


class _WireUsage(Struct, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    cached_content_token_count: int | None = None


class _WireError(Struct):
    code: int | None = None
    message: str | None = None


class _Chunk(Struct, rename="camel"):
    candidates: list[_WireCandidate] | None = None
    usage_metadata: _WireUsage | None = None
    model_version: str | None = None
    prompt_feedback: _WireFeedback | None = None
    error: _WireError | None = None


_chunk = msgspec.json.Decoder(_Chunk)


class _Answer:
    """What the chunks read so far amount to; ``calls`` in arrival order, without ids."""

    def __init__(self, model: str) -> None:
        self.calls: list[ToolCallDelta] = []
        self.complete = False
        self.ended = False
        self._signatures: list[str] = []
        self._model = model
        self._finish = ""
        self._usage = _WireUsage()

    def read(self, data: bytes) -> Iterator[Delta]:
        chunk = decoding.frame(_chunk.decode, data)
        if chunk is None:
            return
        if chunk.error is not None:
            raise ProviderError(_error_text(chunk.error), partial=True)
        self._model = chunk.model_version or self._model
        self._usage = chunk.usage_metadata or self._usage
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self.complete = True
        for candidate in (chunk.candidates or ())[:1]:
            if candidate.finish_reason:
                self._finish = candidate.finish_reason
                self.complete = True
            for part in (candidate.content.parts if candidate.content else None) or ():
                yield from self._part(part)

    def flush(self) -> tuple[()]:
        return ()

    def done(self) -> Done:
        stop_reason = "max_tokens" if self._finish == "MAX_TOKENS" else "end_turn"
        if self.calls and stop_reason == "end_turn":
            stop_reason = "tool_use"
        usage = Usage(
            input_tokens=self._usage.prompt_token_count or 0,
            output_tokens=self._usage.candidates_token_count or 0,
            cache_read_input_tokens=self._usage.cached_content_token_count or 0,
            model=self._model,
            max_context_tokens=CAPABILITIES.context_window,
        )
        signed = any(self._signatures)
        return Done(
            stop_reason=stop_reason,
            usage=usage,
            reasoning=reasoning.seal(DRIVER, self._signatures) if signed else "",
        )

    def _part(self, part: _WirePart) -> Iterator[Delta]:
        if part.text:
            yield ThinkingDelta(part.text) if part.thought else TextDelta(part.text)
        if part.function_call is not None:
            value = bytes(part.function_call.args)
            call = arguments.EMPTY if value == b"null" else Raw(value)
            self.calls.append(ToolCallDelta("", part.function_call.name or "", call))
            self._signatures.append(part.thought_signature or "")


def _error_text(error: _WireError) -> str:
    status = f" {error.code}" if error.code is not None else ""
    return f"gemini{status}: {error.message or ''}"
