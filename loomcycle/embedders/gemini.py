"""Google's batch embeddings API (providers.md section 8). HTTP 429 is not repeated here."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec
from msgspec import Struct

from loomcycle.embedders.base import EmbedderError, Vector, vectors
from loomcycle.embedders.wire import Patience, ask
from loomcycle.providers.decoding import Unreadable, read
from loomcycle.providers.transport import Transport

DIMENSIONS = {"text-embedding-004": 768, "gemini-embedding-001": 3072}


class _Embedding(Struct):
    values: list[float]


class _Answer(Struct):
    embeddings: list[_Embedding] = []


_decode = msgspec.json.Decoder(_Answer).decode


class GeminiEmbedder:
    """Calls ``POST {base}/models/{model}:batchEmbedContents``."""

    provider = "gemini"

    def __init__(self, model: str, transport: Transport, patience: Patience) -> None:
        self.model = model.removeprefix("models/")
        self.dimensions = DIMENSIONS.get(self.model, 0)
        self._transport = transport
        self._patience = patience

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        requests = [
            {"model": f"models/{self.model}", "content": {"parts": [{"text": text}]}}
            for text in texts
        ]
        path = f"/models/{quote(self.model, safe='')}:batchEmbedContents"
        body = msgspec.json.encode({"requests": requests})
        data = await ask(self._transport, path, body, self._patience)
        try:
            found = [each.values for each in read(_decode, data).embeddings]
        except Unreadable as cause:
            raise EmbedderError(f"gemini embeddings: unreadable answer: {cause}") from None
        return vectors(found, len(texts), self.dimensions)

    async def close(self) -> None:
        await self._transport.close()
