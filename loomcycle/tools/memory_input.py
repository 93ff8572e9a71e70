"""What the Memory tool takes: its operations, the fields of its input, and their JSON schema.

Specification: memory.md section 3. Nothing here decides whether a call is allowed.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from loomcycle.memory.values import INT64_MAX, INT64_MIN

OPERATIONS = (
    "get",
    "set",
    "delete",
    "list",
    "incr",
    "search",
    "merge",
    "append_dedupe",
    "bounded_list",
    "add",
    "recall",
    "sql_query",
    "sql_exec",
    "sql_begin",
    "sql_commit",
    "sql_rollback",
)
SQL_OPERATIONS = frozenset(op for op in OPERATIONS if op.startswith("sql_"))
_SCOPES = ("agent", "user", "run")

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]


class Rank(Struct):
    semantic_weight: float | None = None
    recency_weight: float | None = None
    recency_half_life_hours: float | None = None
    source_weight: float | None = None
    frequency_weight: float | None = None


class Dedup(Struct):
    enabled: bool | None = None
    threshold: float | None = None
    mode: str | None = None


class ChatMessage(Struct):
    role: str | None = None
    content: str | None = None


class MemoryInput(Struct):
    """The input of every operation; each reads the fields it needs. ``ttl`` is in seconds."""

    op: str | None = None
    scope: str | None = None
    key: str | None = None
    path: str | None = None
    value: Raw | UnsetType = UNSET
    delta: Int64 | None = None
    ttl: Int64 | None = None
    prefix: str | None = None
    limit: Int64 | None = None
    embed: bool | None = None
    embed_text: str | None = None
    query: str | None = None
    top_k: Int64 | None = None
    rank: Rank | None = None
    dedup: Dedup | None = None
    messages: list[ChatMessage] | None = None
    infer: bool | None = None
    metadata: dict[str, str] | None = None
    threshold: float | None = None
    statement: str | None = None
    args: list[Any] | None = None
    timeout_ms: Int64 | None = None


def input_schema() -> bytes:
    """The JSON schema of :class:`MemoryInput`, as models see it."""
    text, integer, number, boolean = (
        {"type": kind} for kind in ("string", "integer", "number", "boolean")
    )
    rank = dict.fromkeys(Rank.__struct_fields__, number)
    message = {
        "type": "object",
        "properties": {
            "role": {"type": "string", "enum": ["user", "assistant", "system"]},
            "content": text,
        },
        "required": ["role", "content"],
    }
    dedup = {
        "enabled": boolean,
        "threshold": number,
        "mode": {"type": "string", "enum": ["drop", "merge", "keep"]},
    }
    return msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": OPERATIONS},
                "scope": {"type": "string", "enum": _SCOPES},
                "key": text,
                "value": {"description": "Any JSON value."},
                "delta": {"type": "integer", "description": "incr: what to add; default 1."},
                "ttl": {"type": "integer", "description": "Seconds until the row expires."},
                "prefix": text,
                "limit": {
                    "type": "integer",
                    "description": "list: 1 to 1000, default 100. bounded_list: 1 to 10000.",
                },
                "embed": boolean,
                "embed_text": text,
                "query": text,
                "top_k": integer,
                "rank": {"type": "object", "properties": rank},
                "dedup": {"type": "object", "properties": dedup},
                "messages": {"type": "array", "items": message},
                "infer": boolean,
                "metadata": {"type": "object", "additionalProperties": text},
                "threshold": number,
                "statement": text,
                "args": {"type": "array"},
                "timeout_ms": integer,
            },
            "required": ["op", "scope"],
            "additionalProperties": False,
        }
    )
