"""What the mock needs to know of a conversation, without reading a long one again each turn.

Relies on messages being immutable and on a growing conversation keeping the objects it has; a
conversation that changed in any other way is simply read anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from replay.conversation import Message, Text, ToolResult

REMEMBERED = 64
WORTH_REMEMBERING = 32


class History:
    """Totals over messages: ``size`` in bytes, ``results`` of tools, texts of the user."""

    __slots__ = ("_count", "_first", "_last", "results", "size", "user_texts")

    def __init__(self) -> None:
        self.size = 0
        self.results = 0
        self.user_texts: list[str] = []
        self._count = 0
        self._first: Message | None = None
        self._last: Message | None = None

    def covers_start_of(self, messages: Sequence[Message]) -> bool:
        """Whether ``messages`` continues what was read."""
        count = self._count
        return (
            0 < count <= len(messages)
            and messages[0] is self._first
            and messages[count - 1] is self._last
        )

    def read(self, messages: Sequence[Message]) -> None:
        """Add the messages that were not read yet."""
        for index in range(self._count, len(messages)):
            message = messages[index]
            if message.reasoning:
                self.size += byte_length(message.reasoning)
            from_user = message.role == "user"
            for block in message.blocks:
                if isinstance(block, Text):
                    self.size += byte_length(block.text)
                    if from_user:
                        self.user_texts.append(block.text)
                elif isinstance(block, ToolResult):
                    self.size += byte_length(block.text)
                    self.results += from_user
                else:
                    self.size += len(memoryview(block.input))
        if messages:
            self._count = len(messages)
            self._first, self._last = messages[0], messages[-1]


class Histories:
    """The histories of the conversations seen last; short ones are not worth keeping."""

    def __init__(self) -> None:
        self._by_first: OrderedDict[int, History] = OrderedDict()

    def of(self, messages: Sequence[Message]) -> History:
        if len(messages) < WORTH_REMEMBERING:
            history = History()
            history.read(messages)
            return history
        key = id(messages[0])
        known = self._by_first.pop(key, None)
        history = known if known and known.covers_start_of(messages) else History()
        history.read(messages)
        self._by_first[key] = history
        if len(self._by_first) > REMEMBERED:
            self._by_first.popitem(last=False)
        return history


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
