"""A client of the event streams on raw sockets: small, exact about how a stream ended.

It follows http-runs.md section 4 and knows nothing of the runtime's own code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple


class Frame(NamedTuple):
    id: str
    event: str
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data)


class BrokenOff(Exception):
    """The connection ended, or was refused, before the response was complete."""


class Refused(Exception):
    """An answer that is no stream."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{status}: {body[:300].decode(errors='replace')}")
        self.status, self.headers, self.body = status, headers, body


async def frames(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    silence_s: float = 60.0,
) -> AsyncIterator[Frame]:
    """Frames up to the response's regular end. Raises BrokenOff, Refused.

    ``silence_s``: without a byte for so long the stream counts as broken.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    except OSError as cause:
        raise BrokenOff(str(cause)) from None
    try:
        async with asyncio.timeout(silence_s):
            writer.write(_request(method, path, body, headers or {}))
            status, answered = await _head(reader)
            if answered.get("content-type") != "text/event-stream":
                raise Refused(status, answered, await _rest(reader, answered))
        pending = b""
        while chunk := await _chunk(reader, silence_s):
            *whole, pending = (pending + chunk).split(b"\n\n")
            for block in whole:
                if frame := _frame(block):
                    yield frame
    except (OSError, EOFError, TimeoutError) as cause:
        raise BrokenOff(repr(cause)) from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def request(
    port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One plain request: status, headers, body. Raises BrokenOff."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(_request(method, path, body, headers or {}))
            status, answered = await _head(reader)
            return status, answered, await _rest(reader, answered)
        finally:
            writer.close()
    except (OSError, EOFError) as cause:
        raise BrokenOff(repr(cause)) from None


def _request(method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: tests",
        "content-type: application/json",
        f"content-length: {len(content)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def _rest(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while part := await _chunk(reader, 30.0):
        parts.append(part)
    return b"".join(parts)


async def _chunk(reader: asyncio.StreamReader, silence_s: float) -> bytes:
    """The next chunk of a body; empty for the last one."""
    async with asyncio.timeout(silence_s):
        size = int(await reader.readuntil(b"\r\n"), 16)
        return (await reader.readexactly(size + 2))[:-2]


def _frame(block: bytes) -> Frame | None:
    """None for a comment."""
    fields = {
        name: value.removeprefix(b" ")
        for name, _, value in (line.partition(b":") for line in block.split(b"\n"))
        if name
    }
    if b"data" not in fields:
        return None
    return Frame(
        fields.get(b"id", b"").decode(), fields.get(b"event", b"").decode(), fields[b"data"]
    )
