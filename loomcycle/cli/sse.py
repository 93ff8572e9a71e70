"""Server-sent events, decoded line by line. Pure: bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class SseEvent(NamedTuple):
    """``id`` is the last one seen on this stream, "" before the first."""

    event: str
    data: str
    id: str


class SseDecoder:
    """Feed it text in pieces of any size; an incomplete last event is never delivered."""

    def __init__(self, last_id: str = "") -> None:
        self._line = ""
        self._name = ""
        self._data: list[str] = []
        self._id = last_id

    def feed(self, text: str) -> Iterator[SseEvent]:
        """The events that ``text`` completes."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            yield from self._take(line.removesuffix("\r"))

    def _take(self, line: str) -> Iterable[SseEvent]:
        if not line:
            name, data = self._name, self._data
            self._name, self._data = "", []
            return [SseEvent(name or "message", "\n".join(data), self._id)] if data else []
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "id":
                self._id = value
        return []
