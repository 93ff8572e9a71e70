"""The plan of a run, written out of an agent's configuration and a request's narrowing.

Pure but for the bodies of JavaScript agents, which are read once. Which provider and model were
chosen is told to it (``definitions.py``); what it writes stands in the journal for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw, Struct

from events.plan import (
    Budget,
    Compaction,
    Interruption,
    Pair,
    Routing,
    RunPlan,
    Sampling,
    SystemBlock,
    ToolSpec,
)
from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.content_hash import content_sha256
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.schema import UserTierConfig
from loomcycle.providers.base import Provider
from loomcycle.tools.base import Tool
from loomcycle.tools.policy import visible_tools
from loomcycle.volumes import bind
from replay.children import DEFAULT_CONCURRENCY
from replay.codejs.program import body_path
from replay.machine import CODE_PROVIDER

UNBOUNDED = 2**20
DEFAULT_ITERATIONS = 16
MAX_RETRIES = 5
DEFAULT_COOLDOWN_MS = 30_000
NO_LIMIT = 2**53
"""No run gets there: larger limits say the same, and would not fit a JSON number."""

GATES = (
    "channels",
    "sql_scopes",
    "sql_quota_bytes",
    "skills",
    "memory_backend",
    "agent_def_scopes",
    "skill_def_scopes",
    "volume_def_scopes",
    "schedule_def_scopes",
    "webhook_def_scopes",
    "a2a_server_card_def_scopes",
    "a2a_agent_def_scopes",
    "evaluation_scopes",
    "history_scope",
)
"""Fields of an agent that single tools read from ``RunPlan.extra`` (tools.md section 1.5)."""


class ProviderLookup(Protocol):
    def get(self, provider_id: str) -> Provider: ...
    def check(self, provider_id: str) -> None: ...


class Narrowing(Struct, frozen=True, kw_only=True):
    """What one request changes of a definition; the cache key together with the agent.

    ``max_cost_usd`` and ``max_tokens_total`` can only lower the agent's own limits. ``inherited``
    are a parent's compaction settings; their model, if there is one, is of ``inherited_from``.
    """

    allowed_tools: tuple[str, ...] | None = None
    sampling: Sampling | None = None
    run_timeout_seconds: int = 0
    interactive: bool = False
    user_tier: str = ""
    compaction: Compaction | None = None
    inherited: Compaction | None = None
    inherited_from: str = ""
    max_cost_usd: float | None = None
    max_tokens_total: int | None = None


class Planner:
    """Writes plans of this deployment. ``read_body`` reads a code-js file body."""

    def __init__(
        self,
        loaded: LoadedConfig,
        providers: ProviderLookup,
        tools: Mapping[str, Tool],
        *,
        read_body: Callable[[str], str],
    ) -> None:
        self._loaded = loaded
        self._providers = providers
        self._tools = tools
        self._read_body = read_body
        self._bodies: dict[str, str] = {}

    def plan(
        self, agent: AgentConfig, narrowing: Narrowing, pair: Pair, routing: Routing
    ) -> RunPlan:
        """The plan of a run of ``agent`` that ``pair`` serves first."""
        environment = self._loaded.environment
        operator = self._loaded.config.interruption
        code: str | None = None
        timeout = 0
        if pair.provider == CODE_PROVIDER:
            code = agent.code or self._body(agent.name)
            timeout = (
                narrowing.run_timeout_seconds
                or agent.run_timeout_seconds
                or environment.code_agents_run_timeout_seconds
            )
        names = visible_tools(list(self._tools), agent.allowed_tools, narrowing.allowed_tools)
        capabilities = None if code is not None else self._providers.get(pair.provider).capabilities
        prompt = agent.system_prompt
        return RunPlan(
            agent=agent.name,
            definition=content_sha256(agent),
            provider=pair.provider,
            model=pair.model,
            system=(SystemBlock(prompt, cacheable=True),) if prompt else (),
            tools=tuple(_spec(self._tools[name]) for name in names),
            max_tokens=agent.max_tokens,
            effort=agent.effort,
            sampling=merge_sampling(agent, narrowing.sampling),
            max_iterations=_iterations(agent, narrowing, code is not None),
            context_window=capabilities.context_window if capabilities is not None else 0,
            tool_parallelism=environment.tool_parallelism,
            code=code,
            run_timeout_seconds=timeout,
            deterministic=environment.code_agents_deterministic and code is not None,
            memory_scopes=agent.memory_scopes,
            memory_quota_bytes=agent.memory_quota_bytes,
            volumes=bind(agent.volumes, self._loaded.config.volumes),
            allowed_tools=agent.allowed_tools,
            routing=routing,
            compaction=_compaction(agent, narrowing, pair.provider),
            budget=_budget(agent, narrowing),
            interruption=self._interruption(agent),
            output_schema=UNSET if agent.output_schema is None else _raw(agent.output_schema),
            require_approval=agent.require_approval,
            approval_timeout_ms=operator.default_timeout_ms if agent.require_approval else 0,
            max_concurrent_children=agent.max_concurrent_children or DEFAULT_CONCURRENCY,
            extra=_gates(agent),
        )

    def _interruption(self, agent: AgentConfig) -> Interruption:
        """The agent's leave to ask, within the operator's bounds (tools.md section 3.13)."""
        own, operator = agent.interruption, self._loaded.config.interruption
        if not own.enabled:
            return Interruption()
        return Interruption(
            enabled=True,
            kinds=own.kinds,
            max_pending=_smaller_positive(own.max_pending, operator.max_pending_per_run),
            default_timeout_ms=operator.default_timeout_ms,
            max_timeout_ms=operator.max_timeout_ms,
            backend=operator.backend,
        )

    def _body(self, agent: str) -> str:
        body = self._bodies.get(agent)
        if body is None:
            body = self._read_body(body_path(self._loaded.environment.code_agents_root, agent))
            self._bodies[agent] = body
        return body


def routing_of(
    agent: AgentConfig,
    tier_name: str,
    tier: UserTierConfig | None,
    candidates: tuple[Pair, ...],
    *,
    explicit_tier: bool,
    pin_after_success: bool,
) -> Routing:
    """How a run may leave its provider; ``tier`` is the user tier in effect, if there is one.

    The agent's ``retry_attempts`` count before the tier's; the tier's cooldown counts when the
    request named the tier (specification: providers.md section 9).
    """
    retries = agent.retry_attempts
    if retries is None:
        retries = tier.retry_attempts if tier is not None else 0
    plain = Routing(
        candidates=candidates, pinned=not agent.tier, retry_attempts=min(retries, MAX_RETRIES)
    )
    if tier is None:
        return plain
    return msgspec.structs.replace(
        plain,
        user_tier=tier_name,
        fallback=tier.fallback_on_error,
        max_switches=tier.max_fallback_attempts,
        pin_after_success=pin_after_success,
        cooldown_ms=tier.rate_limit_cooldown_ms if explicit_tier else DEFAULT_COOLDOWN_MS,
    )


def merge_sampling(agent: AgentConfig, own: Sampling | None) -> Sampling:
    """Per field the request's value wins; ``stop`` replaces when it is not empty."""
    base: dict[str, object] = msgspec.structs.asdict(agent.sampling)
    if own is not None:
        for field, value in msgspec.structs.asdict(own).items():
            if value is not None and value != ():
                base[field] = value
    return msgspec.convert(base, Sampling)


def own_compaction(agent: AgentConfig) -> Compaction:
    """The agent's own compaction settings."""
    return msgspec.convert(msgspec.structs.asdict(agent.compaction), Compaction)


def merge_compaction(base: Compaction, over: Compaction | None) -> Compaction:
    """Per field, what is set in ``over`` wins (specification: compaction.md section 1)."""
    if over is None:
        return base
    given = {k: v for k, v in msgspec.structs.asdict(over).items() if v is not None}
    return msgspec.structs.replace(base, **given)


def _compaction(agent: AgentConfig, narrowing: Narrowing, provider: str) -> Compaction:
    """The request's settings, then a parent's, then the agent's own. A parent's model counts
    where its provider serves: no other can be asked for it."""
    inherited = narrowing.inherited
    if inherited is not None and inherited.model and provider != narrowing.inherited_from:
        inherited = msgspec.structs.replace(inherited, model=None)
    above = merge_compaction(own_compaction(agent), inherited)
    return merge_compaction(above, narrowing.compaction)


def _budget(agent: AgentConfig, narrowing: Narrowing) -> Budget | None:
    cost = _smaller(agent.max_cost_usd, narrowing.max_cost_usd)
    tokens = _smaller(agent.max_tokens_total, narrowing.max_tokens_total)
    if cost is None and tokens is None:
        return None
    return Budget(
        cost_micros=None if cost is None else min(round(cost * 1_000_000), NO_LIMIT),
        tokens=None if tokens is None else min(int(tokens), NO_LIMIT),
    )


def _smaller(own: float | None, requested: float | None) -> float | None:
    given = [limit for limit in (own, requested) if limit is not None]
    return min(given, default=None)


def _smaller_positive(one: int, other: int) -> int:
    return min((limit for limit in (one, other) if limit > 0), default=0)


def _gates(agent: AgentConfig) -> dict[str, Raw]:
    plain = AgentConfig()
    return {
        name: _raw(getattr(agent, name))
        for name in GATES
        if getattr(agent, name) != getattr(plain, name)
    }


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _iterations(agent: AgentConfig, narrowing: Narrowing, program: bool) -> int:
    if program or agent.unbounded_iterations:
        return UNBOUNDED
    if agent.max_iterations:
        return agent.max_iterations
    return UNBOUNDED if narrowing.interactive else DEFAULT_ITERATIONS


def _spec(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, Raw(tool.input_schema))
