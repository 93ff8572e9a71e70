"""A deterministic embedder without a model: signed hashing of words (providers.md section 8)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from loomcycle.embedders.base import Vector

DIMENSIONS = 256
DEFAULT_MODEL = "stub-deterministic-v1"


class StubEmbedder:
    """Texts that share words are near each other."""

    provider = "stub"
    dimensions = DIMENSIONS

    def __init__(self, model: str = "") -> None:
        self.model = model or DEFAULT_MODEL

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [vector_of(text) for text in texts]

    async def close(self) -> None:
        """Nothing to close."""


def vector_of(text: str) -> Vector:
    """The unit vector of ``text``; that of no words points along the first axis."""
    sums = [0] * DIMENSIONS
    for token in tokens(text):
        data = token.encode()
        sums[fnv1a_32(data) % DIMENSIONS] += 1 if fnv1a_32(data + b"\0sign") % 2 else -1
    length = math.sqrt(sum(value * value for value in sums))
    if not length:
        sums[0], length = 1, 1.0
    return array("f", (value / length for value in sums))


def tokens(text: str) -> list[str]:
    """Lower-case runs of letters and digits."""
    return "".join(c if c.isalpha() or c.isdecimal() else " " for c in text.lower()).split()


def fnv1a_32(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
