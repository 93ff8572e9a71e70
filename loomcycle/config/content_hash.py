"""Content hashes of definitions: SHA-256 over canonical JSON (cli spec 6, defs spec 6).

The field sets are closed; adding a field to a Struct never changes a hash. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from loomcycle.config.agent_schema import AgentConfig
from loomcycle.config.skills import Skill

_ESCAPES: Final = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
)
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
)
_COMPACTION: Final = (
    "enabled",
    "target_percentage",
    "keep_last_n",
    "keep_first",
    "autocompact_at_pct",
    "model",
)


def content_sha256(definition: AgentConfig | Skill) -> str:
    """`sha256:` and 64 hex digits for an agent or a skill."""
    if isinstance(definition, Skill):
        return _digest(
            {
                "allowed_tools": list(definition.allowed_tools),
                "body": normalise(definition.body),
                "description": definition.description,
                "name": definition.name,
            }
        )
    return _digest(_agent_fields(definition))


def mcp_content_sha256(
    *, name: str, transport: str, url: str, headers: dict[str, str], description: str = ""
) -> str:
    """The hash of an MCP server definition; tokens in headers and URL stay unexpanded."""
    return _digest(
        {
            "description": normalise(description),
            "headers": dict(sorted(headers.items())),
            "name": name,
            "transport": transport,
            "url": url,
        }
    )


def normalise(text: str) -> str:
    """A prompt or body as it is hashed: `\\n` line ends, no trailing white space."""
    return text.replace("\r\n", "\n").rstrip(" \t\r\n")


def canonical_json(fields: dict[str, Any]) -> bytes:
    """Compact JSON in the given key order, empty members left out, HTML characters escaped."""
    kept = {key: value for key, value in fields.items() if value not in ("", 0, [], {}, None)}
    return _json(kept).translate(_ESCAPES).encode()


def _digest(fields: dict[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(canonical_json(fields)).hexdigest()


def _agent_fields(agent: AgentConfig) -> dict[str, Any]:
    return {
        "allowed_tools": list(agent.allowed_tools),
        "channels": _non_empty(
            publish=list(agent.channels.publish), subscribe=list(agent.channels.subscribe)
        ),
        "code_body": agent.code,
        "compaction": _given(agent.compaction, _COMPACTION),
        "description": agent.description,
        "effort": agent.effort,
        "evaluation_scopes": list(agent.evaluation_scopes),
        "interruption": _non_empty(
            enabled=agent.interruption.enabled,
            kinds=list(agent.interruption.kinds),
            max_pending=agent.interruption.max_pending,
        ),
        "max_concurrent_children": agent.max_concurrent_children,
        "max_iterations": agent.max_iterations,
        "max_tokens": agent.max_tokens,
        "memory_backend": agent.memory_backend,
        "memory_quota_bytes": agent.memory_quota_bytes,
        "memory_scopes": list(agent.memory_scopes),
        "model": agent.model,
        "models": {
            tier: [{"provider": c.provider, "model": c.model} for c in candidates]
            for tier, candidates in sorted(agent.models.items())
        },
        "name": agent.name,
        "provider": agent.provider,
        "providers": list(agent.providers),
        "sampling": _given(agent.sampling, _SAMPLING),
        "skills": list(agent.skills),
        "system_prompt": normalise(agent.system_prompt),
        "tier": agent.tier,
        "unbounded_iterations": agent.unbounded_iterations,
    }


def _non_empty(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value}


def _given(settings: object, order: tuple[str, ...]) -> dict[str, Any]:
    values = ((name, getattr(settings, name)) for name in order)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values
        if value is not None
    }


def _json(value: Any) -> str:
    match value:
        case dict():
            members = (f"{_json(key)}:{_json(item)}" for key, item in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
        case float():
            return _number(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text
    if 1e-6 <= abs(value) < 1:
        digits, _, exponent = text.partition("e-")
        return f"{value:.{len(digits.lstrip('-').replace('.', '')) - 1 + int(exponent)}f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
