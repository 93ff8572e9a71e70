"""What a call of Context looks like, and the two ways in which an operation answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from loomcycle.tools.base import CallContext, ToolOutput

OPERATIONS = (
    "self",
    "tools",
    "doc",
    "permissions",
    "agents",
    "lineage",
    "evaluations",
    "channels",
    "history",
    "help",
    "time",
    "compact",
)


class ContextInput(Struct):
    """The input of every operation; each reads the fields it needs."""

    op: str | None = None
    name: str | None = None
    prefix: str | None = None
    def_id: str | None = None
    depth: int | None = None
    include_lineage: bool | None = None
    agent_id: str | None = None
    event_types: list[str] | None = None
    limit: int | None = None
    since_ts: str | None = None
    topic: str | None = None


Operation = Callable[[ContextInput, CallContext], Awaitable[ToolOutput]]


def answer(facts: object) -> ToolOutput:
    """One compact JSON document."""
    return ToolOutput(msgspec.json.encode(facts).decode())


def refuse(op: str, reason: str) -> ToolOutput:
    return ToolOutput(f"{op}: {reason}", is_error=True)


def missing(op: str, field: str) -> ToolOutput:
    return refuse(op, f"missing required field: {field}")


def input_schema() -> bytes:
    text: dict[str, Any] = {"type": "string"}
    return msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": OPERATIONS},
                "name": text | {"description": "doc: which tool."},
                "prefix": text | {"description": "agents, channels: what names begin with."},
                "def_id": text | {"description": "lineage, evaluations: which definition."},
                "depth": {"type": "integer", "description": "lineage: how far; 10 if unset."},
                "include_lineage": {
                    "type": "boolean",
                    "description": "evaluations: count the definition's ancestors too.",
                },
                "agent_id": text | {"description": "history: whose session; your own if unset."},
                "event_types": {
                    "type": "array",
                    "items": text,
                    "description": "history: only these types of events.",
                },
                "limit": {"type": "integer", "description": "history: how many; 100 if unset."},
                "since_ts": text | {"description": "history: not before this RFC 3339 time."},
                "topic": text | {"description": "help: which topic; all are listed if unset."},
            },
            "required": ["op"],
            "additionalProperties": False,
        }
    )
