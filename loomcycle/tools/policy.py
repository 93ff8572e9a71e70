"""Which tools a run may see: allow rules of the agent, narrowed by the caller's.

Specification: tools.md sections 1.1, 1.4 and 3.12 (side-effect classes). Pure functions; every
dispatch must use the result of :func:`visible_tools` and nothing wider.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

OPERATOR_ONLY = frozenset(
    {
        "MCPServerDef",
        "ScheduleDef",
        "A2AServerCardDef",
        "A2AAgentDef",
        "WebhookDef",
        "MemoryBackendDef",
        "OperatorTokenDef",
    }
)

_SIDE_EFFECT_CLASSES = {
    **dict.fromkeys(("Read", "Write", "Edit"), "filesystem"),
    **dict.fromkeys(("HTTP", "WebFetch", "WebSearch"), "network"),
    **dict.fromkeys(("Bash", "Agent"), "privileged"),
    **dict.fromkeys(("Memory", "Channel", "AgentDef", "Evaluation"), "state"),
    **dict.fromkeys(("Context", "Skill"), "pure"),
}


def rule_matches(rule: str, name: str) -> bool:
    """An exact name, or a prefix followed by ``*``; there is no other pattern syntax."""
    if rule.endswith("*"):
        return name.startswith(rule[:-1])
    return name == rule


def is_allowed(name: str, rules: Iterable[str]) -> bool:
    return any(rule_matches(rule, name) for rule in rules)


def visible_tools(
    registered_names: Iterable[str],
    agent_rules: Sequence[str],
    caller_rules: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The run's tools, in registration order.

    ``caller_rules`` None means that the caller narrows nothing; an empty list leaves no tool.
    Operator surfaces are never visible inside a run, whatever the rules say.
    """
    return tuple(
        name
        for name in registered_names
        if name not in OPERATOR_ONLY
        and is_allowed(name, agent_rules)
        and (caller_rules is None or is_allowed(name, caller_rules))
    )


def side_effect_class(name: str) -> str:
    """``filesystem``, ``network``, ``privileged``, ``state``, ``pure`` or ``unknown``."""
    return _SIDE_EFFECT_CLASSES.get(name, "unknown")
