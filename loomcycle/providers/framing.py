"""Cuts a streamed body into frames: SSE data payloads or NDJSON lines. Sans-I/O.

What comes out never depends on how the bytes were split into chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

SSE_LINE_LIMIT = 1 << 20
NDJSON_LINE_LIMIT = 4 << 20


class LineTooLong(Exception):
    """A line (or one SSE event's data) exceeds the limit; the text says which limit."""


class Framing(Protocol):
    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Frames completed by ``chunk``; raises LineTooLong after those that precede it."""

    def finish(self) -> Iterator[bytes]:
        """The last frame of a body that ended without a final line break."""


class LineSplitter:
    """Lines without their ``\\n`` or ``\\r\\n``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        first, *rest = chunk.split(b"\n")
        self._pending += first
        self._check(len(self._pending))
        for piece in rest:
            line = bytes(self._pending)
            self._pending = bytearray(piece)
            yield line.removesuffix(b"\r")
            self._check(len(piece))

    def finish(self) -> Iterator[bytes]:
        if self._pending:
            yield bytes(self._pending).removesuffix(b"\r")
            self._pending.clear()

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise LineTooLong(f"line longer than {self._limit} bytes")


class NdjsonFraming:
    """Every line that is not blank is a frame."""

    def __init__(self, limit: int = NDJSON_LINE_LIMIT) -> None:
        self._lines = LineSplitter(limit)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        return (line for line in self._lines.feed(chunk) if line.strip())

    def finish(self) -> Iterator[bytes]:
        return (line for line in self._lines.finish() if line.strip())


class SseFraming:
    """The ``data`` of each event; an event that the body's end cuts off still counts."""

    def __init__(self, limit: int = SSE_LINE_LIMIT) -> None:
        self._limit = limit
        self._lines = LineSplitter(limit)
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for line in self._lines.feed(chunk):
            yield from self._line(line)

    def finish(self) -> Iterator[bytes]:
        for line in self._lines.finish():
            yield from self._line(line)
        yield from self._dispatch()

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            yield from self._dispatch()
        elif line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._size += len(data)
            if self._size > self._limit:
                raise LineTooLong(f"event longer than {self._limit} bytes")
            self._data.append(data)

    def _dispatch(self) -> Iterator[bytes]:
        if self._data:
            data = b"\n".join(self._data)
            self._data.clear()
            self._size = 0
            yield data
