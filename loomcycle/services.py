"""What performing effects needs, handed down explicitly; no module keeps globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from events.ids import HexSource, random_hex
from events.log import EventStore
from events.plan import RunPlan
from events.vocabulary import Event, RunStarted
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.providers.base import Provider
from loomcycle.routing.matrix import Matrix
from loomcycle.tools.base import Tool
from replay.children import Spawn
from replay.state import State

if TYPE_CHECKING:
    from loomcycle.budget.budgets import Budgets
    from loomcycle.definitions import Resolved
    from loomcycle.hooks.chain import HookChain
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


class ChildPlans(Protocol):
    async def resolve(self, parent: State, spawn: Spawn) -> Resolved:
        """Raises CommandError, LogError."""
        ...


class Births(Protocol):
    async def begin_child(self, opening: list[Event], credentials: Mapping[str, str]) -> None:
        """Make a child's first commit, unless it has one, and have it advanced (here, or by
        whoever has room). Not torn when its caller is cancelled. Raises LogError."""
        ...

    def nudge(self, run_id: str) -> bool:
        """Tell a run that is advanced here that its inbox moved; False when it is not."""
        ...


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
    availability: Matrix = field(default_factory=Matrix)
    """What this process knows of providers; by default that none can be chosen."""
    budgets: Budgets | None = None
    paused: Callable[[], bool] = lambda: False
    """Whether the runtime is pausing: runs park at their next turn."""
    hooks: HookChain | None = None
    child_plans: ChildPlans | None = None
    births: Births | None = None
    """The worker of this process; it sets itself."""
    resume_fanout: bool = False
    """Whether journals also tell of each child's start and result to re-read streams."""
    ended: Callable[[RunStarted], None] = lambda facts: None
    """Told of each run whose last commit this process made; must return at once."""
