"""Joins tiny text deltas into events worth sending (providers.md section 6.2)."""

from __future__ import annotations

MIN_BYTES = 64


class Coalescer:
    """Holds text until there are 64 bytes of it or a delta contains a line break."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def push(self, delta: str) -> str:
        """The text to send now, "" while it is held back."""
        self._parts.append(delta)
        self._size += len(delta.encode("utf-8", "surrogatepass"))
        return self.flush() if self._size >= MIN_BYTES or "\n" in delta else ""

    def flush(self) -> str:
        """Everything held back."""
        text = "".join(self._parts)
        self._parts.clear()
        self._size = 0
        return text
