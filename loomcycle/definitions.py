"""From an agent's name and a request's narrowing to the plan of a run, cached.

Static definitions come from the configuration; one lookup serves every entry point. What was
resolved here stands in the journal, so replay never comes back (design.md section 9). Caches
hold what follows from the configuration; which candidate is usable is asked at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from events.plan import Pair, Routing, RunPlan
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.resolution import Unresolved, resolve_pin, tier_candidates
from loomcycle.errors import InvalidArgument, ModelUnavailable, UnknownAgent
from loomcycle.loading import Plans
from loomcycle.planning import Narrowing, Planner, ProviderLookup, routing_of
from loomcycle.providers.base import ProviderNotConfigured
from loomcycle.routing.matrix import Matrix
from loomcycle.tools.base import Tool

__all__ = ["Definitions", "Narrowing", "Resolved", "tool_names"]

MAX_CACHED = 4096

T = TypeVar("T")


class Resolved(Struct, frozen=True):
    """A plan, its blob's name, and the system prompt as the transcript records it."""

    plan: RunPlan
    name: str
    system_prompt: str


class _Route(Struct, frozen=True):
    """Where runs of an agent may go, from configuration alone."""

    agent: AgentConfig
    routing: Routing
    plans: dict[Pair, Resolved] = {}


class Definitions:
    """Resolves agents of this deployment. ``read_body`` reads a code-js file body; ``stored``
    makes of a plan what the log may hold; ``availability`` chooses among candidates of tiers."""

    def __init__(
        self,
        loaded: LoadedConfig,
        providers: ProviderLookup,
        tools: Mapping[str, Tool],
        plans: Plans,
        *,
        read_body: Callable[[str], str],
        stored: Callable[[RunPlan], RunPlan] = lambda plan: plan,
        availability: Matrix | None = None,
    ) -> None:
        self._loaded = loaded
        self._providers = providers
        self._planner = Planner(loaded, providers, tools, read_body=read_body)
        self._plans = plans
        self._stored = stored
        self._availability = availability or Matrix()
        self._pinned: dict[tuple[str, Narrowing], Resolved] = {}
        self._routes: dict[tuple[str, Narrowing], _Route] = {}

    def agent(self, name: str, tenant: str) -> AgentConfig:
        """Raises UnknownAgent."""
        agent = self._loaded.config.agents.get(name)
        if agent is None:
            raise UnknownAgent(f'unknown agent "{name}"', "agent")
        return agent

    def check_user_tier(self, user_tier: str) -> None:
        """Raises InvalidArgument for a tier that the configuration does not know."""
        tiers = self._loaded.config.user_tiers
        if user_tier and tiers and user_tier not in tiers:
            raise InvalidArgument(f'unknown user_tier "{user_tier}"', "user_tier")

    async def resolve(self, name: str, tenant: str, narrowing: Narrowing) -> Resolved:
        """The plan of a new run. Raises UnknownAgent, InvalidArgument, ModelUnavailable.

        A pinned agent never waits and asks nobody. Right after the process began, the agent of
        a tier may have to wait for a provider's first probe.
        """
        key = (name, narrowing)
        known = self._pinned.get(key)
        if known is not None:
            return known
        route = self._routes.get(key)
        if route is None:
            route = self._route(self.agent(name, tenant), narrowing.user_tier)
        routing = route.routing
        if routing.pinned:
            pair = routing.candidates[0]
        else:
            pair = await self._first_usable(route)
        resolved = route.plans.get(pair)
        if resolved is None:
            resolved = await self._resolved(route, narrowing, pair)
            route.plans[pair] = resolved
        if routing.pinned:
            _remember(self._pinned, key, resolved)
        else:
            _remember(self._routes, key, route)
        return resolved

    async def _resolved(self, route: _Route, narrowing: Narrowing, pair: Pair) -> Resolved:
        agent = route.agent
        plan = self._stored(self._planner.plan(agent, narrowing, pair, route.routing))
        return Resolved(plan, await self._plans.put(plan), agent.system_prompt)

    async def _first_usable(self, route: _Route) -> Pair:
        """The best candidate that can be used now. Raises ModelUnavailable."""
        for pair in route.routing.candidates:
            await self._availability.settled(pair.provider)
            if self._availability.usable(pair):
                return pair
        tried = ", ".join(f"{p.provider}/{p.model}" for p in route.routing.candidates)
        raise ModelUnavailable(
            f"no provider available for requested tier: {route.agent.tier}"
            + (f" (tried {tried})" if tried else "")
        )

    def _route(self, agent: AgentConfig, user_tier: str) -> _Route:
        """Raises InvalidArgument, ModelUnavailable."""
        config = self._loaded.config
        tier_name = user_tier or "default"
        tier = config.user_tiers.get(tier_name)
        try:
            if agent.tier:
                found = tier_candidates(config, agent, tier)
                pairs = tuple(dict.fromkeys(Pair(c.provider, c.model) for c in found))
            else:
                pin = Pair(*resolve_pin(config, agent))
                self._providers.check(pin.provider)
                pairs = (pin,)
        except Unresolved as cause:
            if cause.code == "tier_unavailable":
                raise ModelUnavailable(str(cause)) from None
            raise InvalidArgument(str(cause), "agent") from None
        except ProviderNotConfigured as cause:
            raise InvalidArgument(str(cause), "agent") from None
        routing = routing_of(
            agent,
            tier_name,
            tier,
            pairs,
            explicit_tier=bool(user_tier),
            pin_after_success=self._loaded.environment.fallback_pin_after_success,
        )
        return _Route(agent, routing)


def _remember(cache: dict[tuple[str, Narrowing], T], key: tuple[str, Narrowing], value: T) -> None:
    if len(cache) > MAX_CACHED:
        cache.clear()
    cache[key] = value


def tool_names(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Tools by name, in registration order (the order in which models see them)."""
    return {tool.name: tool for tool in tools}
