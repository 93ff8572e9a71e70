"""OpenAI's embeddings API, and Voyage's, which speaks the same format (providers.md section 8)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from loomcycle.embedders.base import EmbedderError, Vector, vectors
from loomcycle.embedders.wire import Patience, ask
from loomcycle.providers.decoding import Unreadable, read
from loomcycle.providers.transport import Transport

OPENAI_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}
VOYAGE_DIMENSIONS = dict.fromkeys(
    (
        "voyage-4",
        "voyage-4-large",
        "voyage-4-lite",
        "voyage-4-nano",
        "voyage-code-3",
        "voyage-finance-2",
        "voyage-law-2",
        "voyage-3",
        "voyage-3-large",
        "voyage-multilingual-2",
    ),
    1024,
)


class _Item(Struct):
    index: int
    embedding: list[float]


class _Answer(Struct):
    data: list[_Item]


_decode = msgspec.json.Decoder(_Answer).decode


class OpenAIEmbedder:
    """Calls ``POST {base}/embeddings``."""

    def __init__(
        self,
        provider: str,
        model: str,
        transport: Transport,
        patience: Patience,
        *,
        dimensions: int,
    ) -> None:
        self.provider, self.model, self.dimensions = provider, model, dimensions
        self._transport = transport
        self._patience = patience

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        body = msgspec.json.encode({"input": list(texts), "model": self.model})
        data = await ask(self._transport, "/embeddings", body, self._patience)
        try:
            items = read(_decode, data).data
        except Unreadable as cause:
            raise EmbedderError(f"{self.provider} embeddings: unreadable answer: {cause}") from None
        return vectors(self._in_order(items, len(texts)), len(texts), self.dimensions)

    async def close(self) -> None:
        await self._transport.close()

    def _in_order(self, items: list[_Item], count: int) -> list[list[float]]:
        ordered = sorted(items, key=lambda item: item.index)
        for due, item in enumerate(ordered[:count]):
            if item.index != due:
                text = f"index {item.index} for {count} texts, {due} was due"
                raise EmbedderError(f"{self.provider} embeddings: {text}")
        return [item.embedding for item in ordered]
