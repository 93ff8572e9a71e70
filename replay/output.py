"""Structured output: whether a final answer fits the JSON Schema that the agent declares.

The whole answer has to be JSON; nothing is cut out of it, no code fence stripped. References are
resolved inside the schema only, never over a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from msgspec import Raw
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

MAX_PROBLEM = 500
"""Characters of an explanation; those of the library repeat the value that is wrong."""

MAX_DEPTH = 64
"""Levels of an answer; a fixed number, so that no verdict depends on the stack's size."""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

_CLOSED: Registry[Any] = Registry()
"""Knows no other document and fetches none."""

_canonical = msgspec.json.Encoder(order="sorted").encode


def problem(schema: Raw, text: str) -> str:
    """Why ``text`` does not fit, with the place (JSON pointer); "" when it does."""
    answer = text.strip()
    try:
        value = msgspec.json.decode(answer)
    except msgspec.DecodeError as cause:
        fenced = " (a code fence is not JSON)" if answer.startswith("```") else ""
        return _short(f"not JSON: {cause}{fenced}")
    except RecursionError:
        return f"/: {TOO_DEEP}"
    if _deeper_than(MAX_DEPTH, value):
        return f"/: {TOO_DEEP}"
    try:
        error = next(_validator(bytes(schema)).iter_errors(value), None)
    except (Unresolvable, SchemaError) as cause:
        return _short(f"the schema cannot be used: {cause}")
    except RecursionError:
        return "the schema cannot be used: it refers to itself without end"
    if error is None:
        return ""
    pointer = "".join(f"/{_escaped(part)}" for part in error.absolute_path)
    return _short(f"{pointer or '/'}: {error.message}")


def schema_problem(schema: object) -> str:
    """Why ``schema`` is no JSON Schema that answers can be checked with; "" when it is one.

    References to other documents count as a problem: nothing is ever fetched.
    """
    try:
        Draft202012Validator.check_schema(schema)  # type: ignore[arg-type]
        resolver = _CLOSED.resolver_with_root(DRAFT202012.create_resource(schema))
        for reference in _references(schema):
            resolver.lookup(reference)
    except Unresolvable as cause:
        return _short(f"$ref {cause.ref!r} leads nowhere inside the schema")
    except SchemaError as cause:
        place = "".join(f"/{_escaped(part)}" for part in cause.absolute_path)
        return _short(f"{place or '/'}: {cause.message}")
    except RecursionError:
        return "nested too deeply"
    return ""


def repair_request(error: str) -> str:
    """What the model is told about an answer that does not fit."""
    return (
        f"Your answer does not fit the required JSON Schema ({error}). "
        "Answer again with JSON that fits it, and with nothing else: no prose, no code fence."
    )


def _deeper_than(levels: int, value: Any) -> bool:
    inside = [value]
    for _ in range(levels):
        inside = [
            inner
            for outer in inside
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not inside:
            return False
    return any(isinstance(value, list | dict) for value in inside)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Validator:
    validator: Validator = _Answers(msgspec.json.decode(schema), registry=_CLOSED)
    return validator


def _unique(
    validator: Validator, wanted: bool, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """``uniqueItems`` in linear time; the library compares every pair of objects."""
    if not wanted or not isinstance(instance, list):
        return
    seen: set[bytes] = set()
    for place, item in enumerate(instance):
        key = _canonical(_comparable(item))
        if key in seen:
            yield ValidationError(f"item {place} repeats an earlier one")
            return
        seen.add(key)


def _comparable(value: Any) -> Any:
    """``value`` with whole floats as integers: 1 and 1.0 are the same number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_comparable(item) for item in value]
        case dict():
            return {key: _comparable(item) for key, item in value.items()}
        case _:
            return value


_Answers = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"uniqueItems": _unique}
)


def _references(schema: object) -> Iterator[str]:
    match schema:
        case dict():
            for key, value in schema.items():
                if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                    yield value
                yield from _references(value)
        case list():
            for item in schema:
                yield from _references(item)


def _escaped(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def _short(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM else text[:MAX_PROBLEM] + "…"
