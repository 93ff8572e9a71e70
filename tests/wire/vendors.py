"""Model vendors at the wire: a real HTTP/1.1 server on 127.0.0.1 that plays scripted replies.

It parses nothing of what it is sent beyond HTTP framing, so tests assert the exact request.
Use ``async with FakeVendor() as vendor`` and the ``*_text`` / ``*_tool_call`` replies below.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]


class Stall:
    """Sends nothing more until the client leaves."""


class Cut:
    """Drops the connection in the middle of the body."""


@dataclass(frozen=True)
class Hold:
    """Waits for an event of the test's."""

    until: asyncio.Event


Part = bytes | Stall | Cut | Hold


@dataclass
class Reply:
    """One scripted answer. ``parts`` are sent one by one, each as its own piece of the body.

    ``stall_headers`` never answers at all, ``cut_headers`` hangs up instead.
    ``close_delimited`` ends the body by closing the connection instead of HTTP chunks, so that
    a cut looks like an end.
    """

    parts: list[Part] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    stall_headers: bool = False
    cut_headers: bool = False
    close_delimited: bool = False


@dataclass(frozen=True)
class Received:
    """A request as it came in; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FakeVendor:
    """Plays ``replies`` in order; ``routes`` answer (method, path) any number of times.

    Ollama's question for the loaded models is routed from the start, so it takes no reply.
    """

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        nothing_loaded = json_reply({"models": []})
        self.routes: dict[tuple[str, str], Reply] = {
            ("GET", "/api/ps"): nothing_loaded,
            ("GET", "/cloud/api/ps"): nothing_loaded,
        }
        self.listings: dict[str, Reply] = {}
        """Lists of models by path: answered whenever a server asks, and not noted down."""
        self.requests: list[Received] = []
        self.connections = 0
        self.dropped = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def script(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    def route(self, method: str, path: str, reply: Reply) -> None:
        self.routes[method, path] = reply

    @property
    def last(self) -> Received:
        return self.requests[-1]

    async def wait_for(self, condition: Callable[[FakeVendor], bool]) -> None:
        """Return once ``condition(self)`` holds; checked after each request and disconnect."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), 5)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped += 1
            await self._notify()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection may serve another."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return False
        request_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, target, _ = request_line.split(" ")
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET" and target in self.listings:
            return await _send(self.listings[target], reader, writer)
        received = Received(method, target, headers, body)
        reply = await self.reply_to(received)
        self.requests.append(received)
        await self._notify()
        if reply.cut_headers:
            return False
        if reply.stall_headers:
            await _until_gone(reader)
        return await _send(reply, reader, writer)

    async def reply_to(self, received: Received) -> Reply:
        """The answer to a request."""
        routed = self.routes.get((received.method, received.target.split("?")[0]))
        if routed is not None:
            return routed
        if self.replies:
            return self.replies.pop(0)
        return Reply([b"the script of the fake vendor is exhausted"], status=500)


async def _send(reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    headers = {"Content-Type": "application/octet-stream", **reply.headers}
    headers |= (
        {"Connection": "close"} if reply.close_delimited else {"Transfer-Encoding": "chunked"}
    )
    lines = [f"HTTP/1.1 {reply.status} Scripted"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for part in reply.parts:
        match part:
            case Stall():
                await writer.drain()
                await _until_gone(reader)
            case Cut():
                await writer.drain()
                return False
            case Hold(until=event):
                await writer.drain()
                await _either(event.wait(), _until_gone(reader))
            case bytes() if part:
                framed = part if reply.close_delimited else b"%x\r\n%s\r\n" % (len(part), part)
                writer.write(framed)
                await writer.drain()
    if not reply.close_delimited:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not reply.close_delimited


async def _until_gone(reader: asyncio.StreamReader) -> None:
    await reader.read(1)
    raise ConnectionResetError


async def _either(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Bodies


def json_reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply([json.dumps(value).encode()], status=status, headers=dict(headers or {}))


def sse(*events: Any, done: bool = False) -> bytes:
    """Events as ``data`` frames; an Anthropic event (it has a ``type``) gets its event line."""
    frames = []
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        frames.append(f"{name}data: {json.dumps(event)}\n\n")
    if done:
        frames.append("data: [DONE]\n\n")
    return "".join(frames).encode()


def ndjson(*lines: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def byte_by_byte(data: bytes) -> list[Part]:
    return [data[index : index + 1] for index in range(len(data))]


# Anthropic


def anthropic_events(
    blocks: Iterable[Json],
    *,
    stop_reason: str = "end_turn",
    model: str = "claude-fake-1",
    input_tokens: int = 10,
    output_tokens: int = 5,
    cache_creation: int = 0,
    cache_read: int = 0,
) -> list[Json]:
    """The events of an answer; blocks as in a finished message (text, thinking, tool_use)."""
    events: list[Json] = [
        {
            "type": "message_start",
            "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": model,
                        "content": [], "usage": {"input_tokens": input_tokens, "output_tokens": 1}},
        }
    ]  # fmt: skip
    for index, block in enumerate(blocks):
        events += _anthropic_block(index, block)
    usage = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": cache_creation,
        "cache_read_input_tokens": cache_read,
    }
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": usage})
    events.append({"type": "message_stop"})
    return events


def _anthropic_block(index: int, block: Json) -> list[Json]:
    match block["type"]:
        case "text":
            start: Json = {"type": "text", "text": ""}
            deltas: list[Json] = [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "tool_use":
            start = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            text = json.dumps(block["input"])
            half = len(text) // 2
            deltas = [
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": text[:half]},
                {"type": "input_json_delta", "partial_json": text[half:]},
            ]
        case _:
            start, deltas = block, []
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic_text(text: str, **options: Any) -> Reply:
    return Reply([sse(*anthropic_events([{"type": "text", "text": text}], **options))])


def anthropic_tool_call(
    name: str, value: Json, *, call_id: str = "toolu_1", text: str = "", **options: Any
) -> Reply:
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": value})
    return Reply([sse(*anthropic_events(blocks, stop_reason="tool_use", **options))])


# OpenAI and services that speak its format


def openai_chunk(
    delta: Json | None = None, *, finish: str | None = None, model: str = "gpt-fake-1"
) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model,
            "choices": [choice]}  # fmt: skip


def openai_usage(
    prompt: int = 10, completion: int = 5, *, cached: int = 0, model: str = "gpt-fake-1"
) -> Json:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {"id": "chatcmpl-1", "model": model, "choices": [], "usage": usage}


def openai_text(text: str, *, finish: str = "stop", reasoning: str = "") -> Reply:
    chunks = [openai_chunk({"role": "assistant", "content": ""})]
    if reasoning:
        chunks.append(openai_chunk({"reasoning_content": reasoning}))
    chunks += [openai_chunk({"content": text}), openai_chunk(finish=finish), openai_usage()]
    return Reply([sse(*chunks, done=True)])


def openai_tool_call(
    name: str,
    value: Json,
    *,
    call_id: str = "call_1",
    text: str = "",
    finish: str = "tool_calls",
    reasoning: str = "",
) -> Reply:
    chunks = [openai_chunk({"role": "assistant", "content": text or None})]
    if reasoning:
        chunks.append(openai_chunk({"reasoning_content": reasoning}))
    function = {"name": name, "arguments": ""}
    call = {"index": 0, "id": call_id, "type": "function", "function": function}
    chunks.append(openai_chunk({"tool_calls": [call]}))
    arguments = {"index": 0, "function": {"arguments": json.dumps(value)}}
    chunks.append(openai_chunk({"tool_calls": [arguments]}))
    chunks += [openai_chunk(finish=finish), openai_usage()]
    return Reply([sse(*chunks, done=True)])


# Gemini


def gemini_chunk(
    *parts: Json, finish: str | None = None, usage: tuple[int, int, int] | None = None
) -> Json:
    """``usage`` is (prompt, candidates, cached)."""
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    chunk: Json = {"candidates": [candidate], "modelVersion": "gemini-fake-1"}
    if usage:
        chunk["usageMetadata"] = {
            "promptTokenCount": usage[0],
            "candidatesTokenCount": usage[1],
            "cachedContentTokenCount": usage[2],
            "thoughtsTokenCount": 99,
        }
    return chunk


def gemini_text(text: str, *, finish: str = "STOP") -> Reply:
    return Reply([sse(gemini_chunk({"text": text}, finish=finish, usage=(10, 5, 0)))])


def gemini_tool_call(name: str, value: Json, *, text: str = "", signature: str = "") -> Reply:
    parts: list[Json] = [{"text": text}] if text else []
    call: Json = {"functionCall": {"name": name, "args": value}}
    if signature:
        call["thoughtSignature"] = signature
    return Reply([sse(gemini_chunk(*parts, call, finish="STOP", usage=(10, 5, 0)))])


# Ollama


def ollama_line(message: Json | None = None, *, model: str = "llama-fake") -> Json:
    return {"model": model, "message": {"role": "assistant", **(message or {})}, "done": False}


def ollama_end(
    reason: str = "stop", *, prompt: int = 10, made: int = 5, model: str = "llama-fake"
) -> Json:
    return {"model": model, "message": {"role": "assistant", "content": ""}, "done": True,
            "done_reason": reason, "prompt_eval_count": prompt, "eval_count": made}  # fmt: skip


def ollama_text(text: str, *, reason: str = "stop") -> Reply:
    return Reply([ndjson(ollama_line({"content": text}), ollama_end(reason))])


def ollama_tool_call(name: str, value: Json, *, text: str = "") -> Reply:
    call = {"function": {"name": name, "arguments": value}}
    return Reply([ndjson(ollama_line({"content": text, "tool_calls": [call]}), ollama_end())])


LISTINGS: dict[str, Json] = {
    "/v1/models": {"data": [{"id": "m-1"}]},
    "/deepseek/models": {"data": [{"id": "m-1"}]},
    "/v1beta/models": {"models": [{"name": "models/m-1"}]},
    "/api/tags": {"models": [{"name": "m-1"}]},
    "/cloud/api/tags": {"models": [{"name": "m-1"}]},
}
"""Where vendors list their models, and how one model looks there."""


def environment(vendor: FakeVendor, **extra: str) -> dict[str, str]:
    """Settings under which every HTTP provider calls ``vendor``, each with its own fake key.

    A server probes its providers, so ``vendor`` lists the model ``m-1`` for each of them.
    """
    url = vendor.url
    for path, listing in LISTINGS.items():
        vendor.listings.setdefault(path, json_reply(listing))
    return {
        "ANTHROPIC_API_KEY": "key-anthropic",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": "key-openai",
        "OPENAI_BASE_URL": f"{url}/v1",
        "DEEPSEEK_API_KEY": "key-deepseek",
        "DEEPSEEK_BASE_URL": f"{url}/deepseek",
        "GEMINI_API_KEY": "key-gemini",
        "GEMINI_BASE_URL": f"{url}/v1beta",
        "OLLAMA_API_KEY": "key-ollama",
        "OLLAMA_CLOUD_BASE_URL": f"{url}/cloud",
        "OLLAMA_BASE_URL": url,
        **extra,
    }
