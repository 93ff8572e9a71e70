"""What performing effects needs, handed down explicitly; no module keeps globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from events.ids import HexSource, random_hex
from events.log import EventStore
from events.plan import RunPlan
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.providers.base import Provider
from loomcycle.tools.base import Tool

if TYPE_CHECKING:
    from loomcycle.masking import RunMasker


class Providers(Protocol):
    def get(self, provider_id: str) -> Provider:
        """Raises ProviderNotConfigured."""
        ...


class Redaction(Protocol):
    """Builds the masker of one run; masks what belongs to none."""

    def for_run(self, credentials: Mapping[str, str]) -> RunMasker: ...
    def text(self, text: str) -> str: ...
    def plan(self, plan: RunPlan) -> RunPlan: ...


@dataclass
class Services:
    """``process`` is this process' id: worker, gateway and lease holder in one.

    ``now_ns`` is the wall clock in unix nanoseconds.
    """

    store: EventStore
    live: LiveRuns
    plans: Plans
    providers: Providers
    tools: Mapping[str, Tool]
    process: str
    now_ns: Callable[[], int]
    redaction: Redaction | None = None
    new_hex: HexSource = random_hex
    delta_flush_s: float = 0.005
    paused: Callable[[], bool] = lambda: False
    """Whether the runtime is pausing: runs park at their next turn."""
