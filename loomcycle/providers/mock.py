"""An in-process provider for load tests: scripted answers, latency and failures on demand.

Specification: providers.md section 7. Its randomness (tool ids, jitter, failures) comes from the
``random.Random`` it is given, and with latency 0 it never sleeps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Raw, Struct

from loomcycle.providers.base import (
    Capabilities,
    Delta,
    Done,
    ProviderError,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from loomcycle.providers.mock_history import Histories, byte_length
from loomcycle.providers.mock_scripts import Scene, Step, script_for
from loomcycle.providers.transport import Sleep
from replay.conversation import ModelRequest

CAPABILITIES = Capabilities(streaming=False)
LISTED = [
    "mock-researcher",
    "mock-editor",
    "mock-evaluator",
    "mock-generic",
    "mock-mcp-caller",
]

_ANSWER = Step("ok")
_LAST = Step("done")


class MockSettings(Struct, frozen=True, kw_only=True):
    """Latencies in milliseconds; rates are probabilities per call."""

    latency_ms: int = 50
    jitter_ms: int = 25
    rate_429: float = 0.0
    rate_500: float = 0.0


class MockProvider:
    """One scripted turn per call. ``mock-stable`` is the same with both rates 0."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        provider_id: str,
        settings: MockSettings,
        *,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.id = provider_id
        self._settings = settings
        self._rng = rng
        self._sleep = sleep
        self._histories = Histories()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        settings = self._settings
        if settings.rate_429 or settings.rate_500:
            self._maybe_fail()
        history = self._histories.of(request.messages)
        size = history.size + sum(byte_length(block.text) for block in request.system)
        if settings.latency_ms or settings.jitter_ms:
            await self._sleep(self._latency(size))
        script = script_for(request.model)
        step = _ANSWER if script is None else script(Scene(request, history)) or _LAST
        written = len(step.text) // 4
        yield TextDelta(step.text)
        if step.tool:
            value = msgspec.json.encode(step.input)
            written += len(value) // 4
            call = f"mock_tu_{self._rng.getrandbits(64):016x}"
            yield ToolCallDelta(call, step.tool, Raw(value))
        yield Done(
            stop_reason="tool_use" if step.tool else "end_turn",
            usage=Usage(input_tokens=max(1, size // 4), output_tokens=written, model=request.model),
        )

    async def models(self) -> list[str]:
        return list(LISTED)

    async def close(self) -> None:
        """Nothing to close."""

    def _maybe_fail(self) -> None:
        first, second = self._rng.random(), self._rng.random()
        if first < self._settings.rate_429:
            raise ProviderError("mock 429: rate_limited (injected failure)")
        if second < self._settings.rate_500:
            raise ProviderError("mock 500: server_error (injected failure)")

    def _latency(self, size: int) -> float:
        """Seconds: base, jitter, and a microsecond for each 100 bytes of request."""
        settings = self._settings
        jitter = self._rng.random() * settings.jitter_ms
        return (settings.latency_ms + jitter) / 1000 + size / 100e6
