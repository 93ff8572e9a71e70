"""Asks every provider for its models, now and then, and writes the answers into the matrix.

A probe never fails: a provider that does not answer is a fact. Nothing waits for the first
probes but starts of runs that have to choose among providers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from loomcycle.providers.base import Provider, ProviderError
from loomcycle.routing.matrix import Matrix

log = logging.getLogger("loomcycle.routing")

PROBE_TIMEOUT_S = 5.0


class Prober:
    """Probes ``providers`` at :meth:`start` and every ``interval_s`` seconds from then on."""

    def __init__(
        self, matrix: Matrix, providers: Mapping[str, Provider], *, interval_s: float
    ) -> None:
        self._matrix = matrix
        self._providers = providers
        self._interval_s = interval_s
        self._probing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._repeat(), name="provider-probes")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def probe(self) -> None:
        """Ask all providers at once; returns within :data:`PROBE_TIMEOUT_S` of its turn."""
        async with self._probing:
            await asyncio.gather(*(self._ask(name) for name in self._providers))

    async def _repeat(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(self._interval_s)

    async def _ask(self, name: str) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                models = await self._providers[name].models()
        except TimeoutError:
            self._matrix.unreachable(name, f"no list of models within {PROBE_TIMEOUT_S:g} s")
        except ProviderError as cause:
            self._matrix.unreachable(name, str(cause))
        except Exception as cause:
            log.exception("probe of %s failed", name)
            self._matrix.unreachable(name, type(cause).__name__)
        else:
            self._matrix.listed(name, models)
