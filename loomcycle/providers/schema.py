"""Reduces tool schemas to what a vendor accepts (providers.md section 5).

Schemas come from tool servers, so they are untrusted: malformed, cyclic and exploding ones must
neither raise nor grow without bound. Input bytes are never changed; results are cached.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

Schema = dict[str, Any]

MAX_NODES = 20_000
MAX_ROOT_MERGES = 16

_ROOT_COMBINATORS = ("oneOf", "anyOf", "allOf")
_DEFS = ("$defs", "definitions")
_GEMINI_REMOVED = frozenset({*_DEFS, "additionalProperties", "$schema", "$id"})
_GEMINI_FOLDED = ("allOf", "oneOf", "anyOf")
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFS})
_DATA = frozenset({"enum", "const", "default", "example", "examples", "required"})


@lru_cache(maxsize=2048)
def for_anthropic(schema: bytes) -> Raw:
    """Merge a combinator at the root into the root; anything else passes byte for byte.

    A variant may bring a combinator of its own, which is then merged too: the API refuses any.
    """
    root = _decode(schema)
    if not isinstance(root, dict):
        return Raw(schema)
    if _combinator_at(root) is None:
        return Raw(schema)
    for _ in range(MAX_ROOT_MERGES):
        combinator = _combinator_at(root)
        if combinator is None:
            break
        for variant in root[combinator]:
            merge(root, _resolve_root_ref(root, variant))
        del root[combinator]
    for combinator in _ROOT_COMBINATORS:
        root.pop(combinator, None)
    root.setdefault("type", "object")
    return Raw(msgspec.json.encode(root))


@lru_cache(maxsize=2048)
def for_gemini(schema: bytes) -> Raw:
    """Inline every ``$ref``, fold every combinator, drop the keywords Gemini refuses."""
    root = _decode(schema)
    if not isinstance(root, dict) or not root:
        return Raw(schema)
    try:
        return Raw(msgspec.json.encode(_GeminiReduction(root).run()))
    except RecursionError:
        return Raw(schema)


def merge(target: Schema, variant: Any) -> None:
    """Merge ``variant`` into ``target`` in place: what ``target`` has wins, ``required`` unites.

    When both name different types, the variant's properties, items and required are skipped.
    """
    if not isinstance(variant, dict):
        return
    skipped: tuple[str, ...] = ()
    if "type" in target and "type" in variant and target["type"] != variant["type"]:
        skipped = ("properties", "items", "required")
    for key, value in variant.items():
        if key in skipped:
            continue
        mine = target.get(key)
        if key == "properties" and isinstance(mine, dict) and isinstance(value, dict):
            target[key] = mine | {name: value[name] for name in value if name not in mine}
        elif key == "required" and isinstance(mine, list) and isinstance(value, list):
            target[key] = mine + [name for name in value if name not in mine]
        else:
            target.setdefault(key, value)


def _decode(schema: bytes) -> Any:
    try:
        return msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _combinator_at(root: Schema) -> str | None:
    for combinator in _ROOT_COMBINATORS:
        if isinstance(root.get(combinator), list) and root[combinator]:
            return combinator
    return None


def _resolve_root_ref(root: Schema, variant: Any) -> Any:
    seen: set[str] = set()
    while isinstance(variant, dict) and isinstance(variant.get("$ref"), str):
        reference = variant["$ref"]
        if reference in seen:
            return None
        seen.add(reference)
        parts = reference.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFS:
            return None
        definitions = root.get(parts[1])
        variant = definitions.get(parts[2]) if isinstance(definitions, dict) else None
    return copy.deepcopy(variant)


class _GeminiReduction:
    """Builds the reduced copy of one schema; ``_open`` holds the references being inlined."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = {
            reference: schema
            for holder in _schemas(root)
            for reference, schema in _definitions(holder)
        }
        self._open: list[str] = []
        self._nodes = 0

    def run(self) -> Schema:
        return self._schema(self._root)

    def _schema(self, schema: Schema) -> Schema:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            return {}
        reduced: Schema = {}
        for key, value in schema.items():
            if key in _GEMINI_REMOVED or key in _GEMINI_FOLDED:
                continue
            if key == "$ref" and isinstance(value, str):
                continue
            reduced[key] = self._value(key, value)
        if isinstance(schema.get("$ref"), str):
            merge(reduced, self._inline(schema["$ref"]))
        for combinator in _GEMINI_FOLDED:
            variants = schema.get(combinator)
            for variant in variants if isinstance(variants, list) else ():
                if isinstance(variant, dict):
                    merge(reduced, self._schema(variant))
        return reduced

    def _value(self, key: str, value: Any) -> Any:
        if key in _DATA:
            return copy.deepcopy(value)
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            return {name: self._any(schema) for name, schema in value.items()}
        return self._any(value)

    def _any(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._schema(value)
        if isinstance(value, list):
            return [self._any(item) for item in value]
        return value

    def _inline(self, reference: str) -> Schema:
        target = self._definitions.get(reference)
        if target is None or reference in self._open:
            return {}
        self._open.append(reference)
        try:
            return self._schema(target)
        finally:
            self._open.pop()


def _definitions(holder: Schema) -> Iterator[tuple[str, Schema]]:
    for keyword in _DEFS:
        named = holder.get(keyword)
        if isinstance(named, dict):
            for name, schema in named.items():
                if isinstance(schema, dict):
                    yield f"#/{keyword}/{name}", schema


def _schemas(root: Schema) -> Iterator[Schema]:
    """Every schema in ``root``, the root last, so that in a table of names the root wins."""
    found: list[Schema] = []
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            found.append(value)
            for key, inner in value.items():
                if key in _DATA:
                    continue
                if key in _MAPS_OF_SCHEMAS and isinstance(inner, dict):
                    pending.extend(inner.values())
                else:
                    pending.append(inner)
    return reversed(found)
