"""From an agent's name and a request's narrowing to the plan of a run, cached.

Static definitions come from the configuration; one lookup serves every entry point. What was
resolved here stands in the journal, so replay never comes back (design.md section 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from events.plan import RunPlan, Sampling, SystemBlock, ToolSpec
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.content_hash import content_sha256
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.resolution import Unresolved, resolve_pin, tier_candidates
from loomcycle.errors import InvalidArgument, ModelUnavailable, UnknownAgent
from loomcycle.loading import Plans
from loomcycle.providers.base import Provider, ProviderNotConfigured
from loomcycle.tools.base import Tool
from loomcycle.tools.policy import visible_tools
from loomcycle.volumes import bind
from replay.codejs.program import body_path
from replay.machine import CODE_PROVIDER

UNBOUNDED = 2**20
DEFAULT_ITERATIONS = 16


class ProviderLookup(Protocol):
    def get(self, provider_id: str) -> Provider: ...
    def check(self, provider_id: str) -> None: ...


class Resolved(Struct, frozen=True):
    """A plan, its blob's name, and the system prompt as the transcript records it."""

    plan: RunPlan
    name: str
    system_prompt: str


class Narrowing(Struct, frozen=True, kw_only=True):
    """What one request changes of a definition; the cache key together with the agent."""

    allowed_tools: tuple[str, ...] | None = None
    sampling: Sampling | None = None
    run_timeout_seconds: int = 0
    interactive: bool = False
    user_tier: str = ""


class Definitions:
    """Resolves agents of this deployment. ``read_body`` reads a code-js file body; ``stored``
    makes of a plan what the log may hold."""

    def __init__(
        self,
        loaded: LoadedConfig,
        providers: ProviderLookup,
        tools: Mapping[str, Tool],
        plans: Plans,
        *,
        read_body: Callable[[str], str],
        stored: Callable[[RunPlan], RunPlan] = lambda plan: plan,
    ) -> None:
        self._loaded = loaded
        self._providers = providers
        self._tools = tools
        self._plans = plans
        self._read_body = read_body
        self._stored = stored
        self._bodies: dict[str, str] = {}
        self._cache: dict[tuple[str, Narrowing], Resolved] = {}

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
        """The plan of a new run. Raises UnknownAgent, InvalidArgument, ModelUnavailable."""
        known = self._cache.get((name, narrowing))
        if known is not None:
            return known
        agent = self.agent(name, tenant)
        plan = self._stored(self._plan(agent, narrowing))
        resolved = Resolved(plan, await self._plans.put(plan), agent.system_prompt)
        if len(self._cache) > 4096:
            self._cache.clear()
        self._cache[name, narrowing] = resolved
        return resolved

    def _plan(self, agent: AgentConfig, narrowing: Narrowing) -> RunPlan:
        provider, model = self._model(agent, narrowing.user_tier)
        environment = self._loaded.environment
        code: str | None = None
        timeout = 0
        if provider == CODE_PROVIDER:
            code = agent.code or self._body(agent.name)
            timeout = (
                narrowing.run_timeout_seconds
                or agent.run_timeout_seconds
                or environment.code_agents_run_timeout_seconds
            )
        names = visible_tools(list(self._tools), agent.allowed_tools, narrowing.allowed_tools)
        capabilities = None if code is not None else self._providers.get(provider).capabilities
        prompt = agent.system_prompt
        return RunPlan(
            agent=agent.name,
            definition=content_sha256(agent),
            provider=provider,
            model=model,
            system=(SystemBlock(prompt, cacheable=True),) if prompt else (),
            tools=tuple(_spec(self._tools[name]) for name in names),
            max_tokens=agent.max_tokens,
            effort=agent.effort,
            sampling=merge_sampling(agent, narrowing.sampling),
            max_iterations=_iterations(agent, narrowing, code is not None),
            retry_attempts=agent.retry_attempts or 0,
            context_window=capabilities.context_window if capabilities is not None else 0,
            tool_parallelism=environment.tool_parallelism,
            code=code,
            run_timeout_seconds=timeout,
            deterministic=environment.code_agents_deterministic and code is not None,
            memory_scopes=agent.memory_scopes,
            memory_quota_bytes=agent.memory_quota_bytes,
            volumes=bind(agent.volumes, self._loaded.config.volumes),
            allowed_tools=agent.allowed_tools,
            extra=_gates(agent),
        )

    def _model(self, agent: AgentConfig, user_tier: str) -> tuple[str, str]:
        try:
            if agent.tier:
                return self._from_tier(agent, user_tier)
            provider, model = resolve_pin(self._loaded.config, agent)
            self._providers.check(provider)
        except (Unresolved, ProviderNotConfigured) as cause:
            raise InvalidArgument(str(cause), "agent") from None
        return provider, model

    def _from_tier(self, agent: AgentConfig, user_tier: str) -> tuple[str, str]:
        config = self._loaded.config
        tier = config.user_tiers.get(user_tier or "default")
        for candidate in tier_candidates(config, agent, tier):
            try:
                self._providers.check(candidate.provider)
            except ProviderNotConfigured:
                continue
            return candidate.provider, candidate.model
        raise ModelUnavailable(f"no provider available for requested tier: {agent.tier}")

    def _body(self, agent: str) -> str:
        body = self._bodies.get(agent)
        if body is None:
            body = self._read_body(body_path(self._loaded.environment.code_agents_root, agent))
            self._bodies[agent] = body
        return body


GATES = (
    "compaction",
    "channels",
    "sql_scopes",
    "agent_def_scopes",
    "skill_def_scopes",
    "evaluation_scopes",
    "history_scope",
)
"""Fields of an agent that single tools read from ``RunPlan.extra`` (tools.md section 1.5)."""


def _gates(agent: AgentConfig) -> dict[str, Raw]:
    plain = AgentConfig()
    return {
        name: Raw(msgspec.json.encode(getattr(agent, name)))
        for name in GATES
        if getattr(agent, name) != getattr(plain, name)
    }


def merge_sampling(agent: AgentConfig, own: Sampling | None) -> Sampling:
    """Per field the request's value wins; ``stop`` replaces when it is not empty."""
    base: dict[str, object] = msgspec.structs.asdict(agent.sampling)
    if own is not None:
        for field, value in msgspec.structs.asdict(own).items():
            if value is not None and value != ():
                base[field] = value
    return msgspec.convert(base, Sampling)


def _iterations(agent: AgentConfig, narrowing: Narrowing, program: bool) -> int:
    if program or agent.unbounded_iterations:
        return UNBOUNDED
    if agent.max_iterations:
        return agent.max_iterations
    return UNBOUNDED if narrowing.interactive else DEFAULT_ITERATIONS


def _spec(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, Raw(tool.input_schema))


def tool_names(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Tools by name, in registration order (the order in which models see them)."""
    return {tool.name: tool for tool in tools}
