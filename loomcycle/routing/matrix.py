"""What this process knows of the providers' availability (specification: providers.md 9).

Plain memory, fed by probes (``probes.py``) and by the calls of runs; it asks nobody itself and
decides nothing but "usable now". Times come from the clocks it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from events.plan import Pair


class ModelStatus(Struct, frozen=True, kw_only=True):
    """``listed`` by the last successful probe; ``stalled`` since a call of a run failed."""

    listed: bool
    stalled: bool


class ProviderStatus(Struct, frozen=True, kw_only=True):
    """``last_check_ns`` is unix nanoseconds, 0 for never; ``last_error`` "" for none."""

    excluded: bool
    reachable: bool
    models: dict[str, ModelStatus]
    last_check_ns: int
    last_error: str


class _Known:
    """One provider as the probes found it."""

    __slots__ = ("error", "excluded", "models", "probed", "reachable", "when_ns")

    def __init__(self, excluded: str | None) -> None:
        self.excluded = excluded is not None
        self.error = excluded or ""
        self.reachable = False
        self.models: frozenset[str] = frozenset()
        self.when_ns = 0
        self.probed = asyncio.Event()


class Matrix:
    """``providers`` can be called, ``excluded`` cannot, each for the reason given."""

    def __init__(
        self,
        providers: Iterable[str] = (),
        excluded: Mapping[str, str] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._known = {name: _Known(None) for name in providers}
        self._known |= {name: _Known(reason) for name, reason in (excluded or {}).items()}
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._stalled: set[Pair] = set()
        self._cooling: dict[Pair, float] = {}

    def usable(self, pair: Pair) -> bool:
        """Whether a run may be sent there now."""
        known = self._known.get(pair.provider)
        return (
            known is not None
            and known.reachable
            and pair.model in known.models
            and pair not in self._stalled
            and not self._is_cooling(pair)
        )

    async def settled(self, provider: str) -> None:
        """Wait until the provider has been probed once; not at all for one that never is."""
        known = self._known.get(provider)
        if known is not None and not known.excluded and not known.when_ns:
            await known.probed.wait()

    # -- what probes tell

    def listed(self, provider: str, models: Iterable[str]) -> None:
        """A probe succeeded: its list replaces the last one and ends the provider's stalls."""
        known = self._known[provider]
        known.models = frozenset(models)
        self._stalled = {pair for pair in self._stalled if pair.provider != provider}
        self._probed(known, reachable=True, error="")

    def unreachable(self, provider: str, error: str) -> None:
        """A probe failed: the models listed before are remembered."""
        self._probed(self._known[provider], reachable=False, error=error)

    def _probed(self, known: _Known, *, reachable: bool, error: str) -> None:
        known.reachable, known.error = reachable, error
        known.when_ns = self._now_ns()
        known.probed.set()

    # -- what the calls of runs tell

    def succeeded(self, provider: str, model: str) -> None:
        """A turn was answered: the pair is not stalled (a cooldown goes on)."""
        if self._stalled:
            self._stalled.discard(Pair(provider, model))

    def stall(self, pair: Pair) -> None:
        """A call failed: not to be used before the next successful probe or answer."""
        self._stalled.add(pair)

    def cool_down(self, pair: Pair, milliseconds: int) -> None:
        """The provider limits the rate: not to be used for that long."""
        until = self._monotonic() + milliseconds / 1000
        self._cooling[pair] = max(until, self._cooling.get(pair, until))

    def _is_cooling(self, pair: Pair) -> bool:
        until = self._cooling.get(pair)
        if until is None:
            return False
        if self._monotonic() < until:
            return True
        del self._cooling[pair]
        return False

    # -- what operators see

    def report(self) -> dict[str, ProviderStatus]:
        """All providers by id; cooldowns are not shown."""
        return {name: self._status(name, known) for name, known in sorted(self._known.items())}

    def _status(self, provider: str, known: _Known) -> ProviderStatus:
        stalled = {pair.model for pair in self._stalled if pair.provider == provider}
        return ProviderStatus(
            excluded=known.excluded,
            reachable=known.reachable,
            models={
                model: ModelStatus(listed=model in known.models, stalled=model in stalled)
                for model in sorted(known.models | stalled)
            },
            last_check_ns=known.when_ns,
            last_error=known.error,
        )
