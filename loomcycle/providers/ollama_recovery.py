"""Recovers tool calls that a local model wrote as plain text (providers.md section 6.5).

Only a text that is nothing but calls counts; any prose around them means no call at all.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw

from loomcycle.providers import arguments

Calls = list[tuple[str, Raw]]

_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n?(.*?)```", re.DOTALL)
_OPENING = re.compile(r"\[tool_use:\s*([A-Za-z_][A-Za-z0-9_-]*)\s*(?=[\]{])")
_objects = json.JSONDecoder()


def recover_calls(text: str) -> Calls:
    """Calls (name, arguments) that make up the whole of ``text``; empty when it is prose."""
    text = text.strip()
    if (fenced := _FENCE.fullmatch(text)) is not None:
        text = fenced[1].strip()
    if text.startswith("[tool_use:"):
        return _bracketed(text)
    value = _decode(text) if text.startswith(("{", "[")) else None
    entries = value if isinstance(value, list) else [value]
    calls = [_call(entry) for entry in entries]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(entry: Any) -> tuple[str, Raw] | None:
    if not isinstance(entry, dict) or not entry.keys() <= {"name", "arguments"}:
        return None
    name, value = entry.get("name"), entry.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    if value is None:
        return name, arguments.EMPTY
    return (name, Raw(msgspec.json.encode(value))) if isinstance(value, dict) else None


def _bracketed(text: str) -> Calls:
    """``[tool_use: name]`` with at most one JSON object, inside or behind the brackets."""
    opening = _OPENING.match(text)
    if opening is None:
        return []
    inside, rest = _leading_object(text[opening.end() :])
    if not rest.startswith("]"):
        return []
    behind, rest = _leading_object(rest[1:].lstrip())
    if rest or (inside and behind):
        return []
    return [(opening[1], Raw((inside or behind or "{}").encode()))]


def _leading_object(text: str) -> tuple[str, str]:
    """The JSON object that ``text`` starts with ("" if none) and what follows it."""
    if not text.startswith("{"):
        return "", text
    try:
        _, end = _objects.raw_decode(text)
    except (ValueError, RecursionError):
        return "", text
    found = text[:end]
    return (found, text[end:].lstrip()) if arguments.is_json(found.encode()) else ("", text)


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
