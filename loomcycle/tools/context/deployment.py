"""Operations of Context about what is configured: ``agents``, ``channels`` and ``lineage``.

Only names and limits are shown, never a prompt. Definitions made at run time have no place yet:
each of these operations says what holds for static ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from loomcycle.config.agent_schema import AgentChannels, AgentConfig
from loomcycle.config.resolution import Unresolved, resolve_pin
from loomcycle.config.schema import ChannelConfig, Config
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, missing, refuse

_grants = msgspec.json.Decoder(AgentChannels)


class _Agent(Struct, kw_only=True, omit_defaults=True):
    name: str
    tier: str = ""
    model: str = ""
    provider: str = ""
    active_def_id: str = ""
    allowed_tools_count: int
    error: str = ""


class _Channel(Struct, kw_only=True, omit_defaults=True):
    """``default_ttl`` in seconds. ``publish`` and ``subscribe``: granted by this very name."""

    name: str
    scope: str = ""
    semantic: str = ""
    default_ttl: int = 0
    max_messages: int = 0
    publisher: str = ""
    publish: bool
    subscribe: bool


def operations(config: Config) -> dict[str, Operation]:
    async def agents(request: ContextInput, context: CallContext) -> ToolOutput:
        found = [_agent(config, agent) for _, agent in _matching(config.agents, request.prefix)]
        return answer({"agents": found, "count": len(found)})

    async def channels(request: ContextInput, context: CallContext) -> ToolOutput:
        return answer(_channels(config.channels, request.prefix, context))

    return {"agents": agents, "channels": channels, "lineage": _lineage}


def _matching(named: Mapping[str, Any], prefix: str | None) -> Iterable[tuple[str, Any]]:
    return sorted((n, value) for n, value in named.items() if n.startswith(prefix or ""))


def _agent(config: Config, agent: AgentConfig) -> _Agent:
    shown = _Agent(name=agent.name, tier=agent.tier, allowed_tools_count=len(agent.allowed_tools))
    if agent.tier:
        return shown
    try:
        shown.provider, shown.model = resolve_pin(config, agent)
    except Unresolved as cause:
        shown.error = str(cause)
    return shown


def _channels(
    declared: Mapping[str, ChannelConfig], prefix: str | None, context: CallContext
) -> dict[str, Any]:
    raw = context.plan.extra.get("channels")
    grants = _grants.decode(raw) if raw is not None else AgentChannels()
    found = [
        _Channel(
            name=name,
            scope=channel.scope,
            semantic=channel.semantic,
            default_ttl=channel.default_ttl,
            max_messages=channel.max_messages,
            publisher=channel.publisher,
            publish=name in grants.publish,
            subscribe=name in grants.subscribe,
        )
        for name, channel in _matching(declared, prefix)
    ]
    return {
        "channels": found,
        "count": len(found),
        "publish_wildcards": _wildcards(grants.publish),
        "subscribe_wildcards": _wildcards(grants.subscribe),
    }


def _wildcards(entries: Iterable[str]) -> list[str]:
    return [entry for entry in entries if entry.endswith("*")]


async def _lineage(request: ContextInput, context: CallContext) -> ToolOutput:
    if not request.def_id:
        return missing("lineage", "def_id")
    return refuse(
        "lineage",
        f'def_id "{request.def_id}" not found: agents of the configuration have no definition ids',
    )
