"""The contract of an embedder, and what both sides of it may rely on (providers.md section 8)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, TypeAlias

Vector: TypeAlias = "array[float]"
"""float32 values (type code ``f``)."""


class EmbedderError(Exception):
    """No embeddings; the text is for people and holds no key."""


class EmbedderNotConfigured(EmbedderError):
    """The provider is known but its key is missing; the text names the variable."""


class Embedder(Protocol):
    """An embedding model. ``dimensions`` is 0 when it is not known beforehand."""

    @property
    def provider(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector for each text, in their order; nothing is asked for no texts.

        Raises :class:`EmbedderError`.
        """
        ...

    async def close(self) -> None: ...


def vectors(values: Sequence[Sequence[float]], wanted: int, dimensions: int) -> list[Vector]:
    """``values`` as vectors of one length. Raises :class:`EmbedderError`.

    ``wanted`` is their number, ``dimensions`` their length, 0 when any will do.
    """
    if len(values) != wanted:
        raise EmbedderError(f"{wanted} texts were sent, {len(values)} embeddings came back")
    length = dimensions or (len(values[0]) if values else 0)
    for value in values:
        if len(value) != length or not length:
            raise EmbedderError(f"an embedding has {len(value)} dimensions, expected {length}")
    try:
        return [array("f", value) for value in values]
    except OverflowError:
        raise EmbedderError("an embedding holds a number that is no float32") from None
