"""The embedder of a deployment, built from its configuration (providers.md section 8).

Building costs no I/O. A missing key does not fail start-up: asking for the embedder does, and
the text names the variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loomcycle.config.schema import EmbedderConfig
from loomcycle.config.variables import Environment
from loomcycle.embedders.base import Embedder, EmbedderError, EmbedderNotConfigured, Vector
from loomcycle.embedders.gemini import GeminiEmbedder
from loomcycle.embedders.openai import OPENAI_DIMENSIONS, VOYAGE_DIMENSIONS, OpenAIEmbedder
from loomcycle.embedders.stub import StubEmbedder
from loomcycle.embedders.wire import Patience
from loomcycle.providers.ratelimit import retry_after_or_reset
from loomcycle.providers.transport import Endpoint, Sleep, Transport

OPENAI_URL = "https://api.openai.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com/v1beta"
VOYAGE_URL = "https://api.voyageai.com/v1"


def build_embedder(
    config: EmbedderConfig | None, environment: Environment, *, sleep: Sleep = asyncio.sleep
) -> Embedder | None:
    """The configured embedder; None when there is none.

    ``sleep`` makes the pauses after HTTP 429. Raises :class:`EmbedderNotConfigured`, and
    :class:`EmbedderError` for a provider that does not exist.
    """
    if config is None:
        return None
    driver = _driver(config, environment, sleep)
    size = config.batch_size or environment.memory_embed_batch_size
    return InBatches(driver, size) if size > 0 else driver


class InBatches:
    """Asks ``embedder`` for at most ``size`` texts at once."""

    def __init__(self, embedder: Embedder, size: int) -> None:
        self._embedder = embedder
        self._size = size

    @property
    def provider(self) -> str:
        return self._embedder.provider

    @property
    def model(self) -> str:
        return self._embedder.model

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        made: list[Vector] = []
        for begin in range(0, len(texts), self._size):
            made += await self._embedder.embed(texts[begin : begin + self._size])
        return made

    async def close(self) -> None:
        await self._embedder.close()


def _driver(config: EmbedderConfig, environment: Environment, sleep: Sleep) -> Embedder:
    milliseconds = config.timeout_ms or environment.memory_embed_timeout_ms
    limit = milliseconds / 1000 if milliseconds > 0 else None
    model = config.model
    match config.provider:
        case "openai":
            key = _key("openai", "OPENAI_API_KEY", environment.openai_api_key)
            url = environment.openai_base_url or OPENAI_URL
            return OpenAIEmbedder(
                "openai",
                model,
                _transport("openai", url, {"Authorization": f"Bearer {key}"}, key, sleep),
                Patience(total_s=limit),
                dimensions=OPENAI_DIMENSIONS.get(model, 0),
            )
        case "anthropic":
            key = _key("anthropic", "VOYAGE_API_KEY", environment.voyage_api_key)
            url = environment.voyage_base_url or VOYAGE_URL
            return OpenAIEmbedder(
                "anthropic",
                model,
                _transport("voyage", url, {"Authorization": f"Bearer {key}"}, key, sleep),
                Patience(attempt_s=limit),
                dimensions=VOYAGE_DIMENSIONS.get(model, 0),
            )
        case "gemini":
            key = _key("gemini", "GEMINI_API_KEY", environment.gemini_api_key)
            url = environment.gemini_base_url or GEMINI_URL
            transport = _transport("gemini", url, {"x-goog-api-key": key}, key, sleep)
            return GeminiEmbedder(model, transport, Patience(total_s=limit, repeats=False))
        case "stub" if environment.embedder_stub:
            return StubEmbedder(model)
        case "stub":
            raise EmbedderNotConfigured(
                "stub embedder not configured (set LOOMCYCLE_EMBEDDER_STUB=1)"
            )
        case unknown:
            raise EmbedderError(f'unknown embedder "{unknown}"')


def _key(provider: str, variable: str, value: str) -> str:
    if not value:
        raise EmbedderNotConfigured(f"{provider} embedder not configured (set {variable})")
    return str(value)


def _transport(name: str, url: str, headers: dict[str, str], key: str, sleep: Sleep) -> Transport:
    endpoint = Endpoint(
        name=name,
        base_url=url,
        headers=headers,
        secret=key,
        accept="application/json",
        header_wait=retry_after_or_reset,
        header_timeout=None,  # how long an answer may take is the embedder's patience
        idle_timeout=None,
    )
    return Transport(endpoint, sleep=sleep)
