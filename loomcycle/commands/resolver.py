"""What operators ask about providers: the availability matrix, a probe now, a list of models.

Specification: providers.md section 9, http-admin.md section 9. An unreachable provider is data;
only questions about one provider can fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from loomcycle.errors import ProviderListFailed, ProviderUnavailable, ProviderUnknown
from loomcycle.providers.base import ProviderError, ProviderNotConfigured
from loomcycle.providers.registry import Registry, UnknownProvider
from loomcycle.routing.matrix import Matrix, ProviderStatus
from loomcycle.routing.probes import Prober

LISTING_TIMEOUT_S = 10.0


class Availability(Struct, frozen=True):
    """The matrix as it stood at ``at_ns`` (unix nanoseconds)."""

    at_ns: int
    providers: dict[str, ProviderStatus]


class Listing(Struct, frozen=True):
    """A provider's models, asked for at ``at_ns`` and answered after ``duration_ms``."""

    provider: str
    at_ns: int
    duration_ms: int
    models: list[str]


class ResolverCommands:
    """Questions about this process' providers."""

    def __init__(
        self, registry: Registry, matrix: Matrix, prober: Prober, now_ns: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._matrix = matrix
        self._prober = prober
        self._now_ns = now_ns

    def availability(self) -> Availability:
        return Availability(self._now_ns(), self._matrix.report())

    async def probe(self) -> Availability:
        """Ask all providers now."""
        await self._prober.probe()
        return self.availability()

    async def models(self, provider_id: str) -> Listing:
        """Raises ProviderUnknown, ProviderUnavailable, ProviderListFailed."""
        try:
            self._registry.check(provider_id)
            provider = self._registry.configured().get(provider_id)
        except UnknownProvider as cause:
            raise ProviderUnknown(str(cause)) from None
        except ProviderNotConfigured as cause:
            raise ProviderUnavailable(str(cause)) from None
        at_ns, began = self._now_ns(), time.monotonic()
        try:
            async with asyncio.timeout(LISTING_TIMEOUT_S):
                models = await provider.models() if provider is not None else []
        except TimeoutError:
            text = f"{provider_id}: no list of models within {LISTING_TIMEOUT_S:g} s"
            raise ProviderListFailed(text) from None
        except ProviderError as cause:
            raise ProviderListFailed(str(cause)) from None
        return Listing(provider_id, at_ns, int((time.monotonic() - began) * 1000), models)
