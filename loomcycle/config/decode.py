"""Turns a node tree into the schema's Structs, collecting every fault on the way.

One walk over msgspec's own description of the types: wrong types, ranges, closed word
lists, unknown keys. A faulty value is reported and replaced by its default, so that one
mistake never hides another. Messages name kinds, not values, except for refused words.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

from loomcycle.config.agent_schema import ProviderCandidate
from loomcycle.config.problems import FieldPath, Findings, did_you_mean, dotted
from loomcycle.config.tree import Node, Scalar
from loomcycle.config.vocabulary import PROVIDER_IDS, TIERS

S = TypeVar("S", bound=msgspec.Struct)


class _Refused(Exception):
    """A value that was reported and has no meaning."""


def decode(node: Node, target: type[S], findings: Findings, path: FieldPath = ()) -> S:
    """Decode a mapping into a Struct; faults go to `findings`, faulty fields get defaults."""
    info = _type_info(target)
    try:
        result = _struct(node, info, path, findings)
    except _Refused:
        result = target()
    assert isinstance(result, target)
    return result


@cache
def _type_info(target: type[msgspec.Struct]) -> types.StructType:
    info = types.type_info(target)
    assert isinstance(info, types.StructType)
    return info


def field_names(target: type[msgspec.Struct]) -> tuple[str, ...]:
    """The keys that may be written for a Struct."""
    derived: frozenset[str] = getattr(target, "derived_fields", frozenset())
    return tuple(name for name in target.__struct_fields__ if name not in derived)


def _struct(node: Node, info: types.StructType, path: FieldPath, findings: Findings) -> Any:
    if info.cls is ProviderCandidate and isinstance(node.value, Scalar) and not node.is_null:
        return ProviderCandidate(model=_text(node, path, findings))
    if not isinstance(node.value, dict):
        raise _wrong_type(node, "a mapping", path, findings)
    known = field_names(info.cls)
    ignored: frozenset[str] = getattr(info.cls, "ignored_fields", frozenset())
    for key, value in node.value.items():
        if key not in known and key not in ignored and not key.startswith("x-"):
            hint = did_you_mean(key, known)
            findings.warn((*path, key), f"unknown key, ignored{hint}", place=value.place)
    values: dict[str, Any] = {}
    for field in info.fields:
        given = node.value.get(field.name) if field.name in known else None
        if given is None or given.is_null:
            continue
        try:
            values[field.name] = _value(given, field.type, (*path, field.name), findings)
        except _Refused:
            continue
    return info.cls(**values)


def _value(node: Node, info: types.Type, path: FieldPath, findings: Findings) -> Any:
    match info:
        case types.AnyType():
            return node.plain()
        case types.UnionType():
            inner = next(kind for kind in info.types if not isinstance(kind, types.NoneType))
            return _value(node, inner, path, findings)
        case types.StructType():
            return _struct(node, info, path, findings)
        case types.DictType():
            return _mapping(node, info, path, findings)
        case types.VarTupleType():
            return _sequence(node, info, path, findings)
        case types.LiteralType():
            return _word(node, info, path, findings)
        case types.StrType():
            return _text(node, path, findings)
        case types.BoolType():
            if isinstance(node.value, Scalar) and isinstance(node.value.value, bool):
                return node.value.value
            raise _wrong_type(node, "true or false", path, findings)
        case types.IntType() | types.FloatType():
            return _number(node, info, path, findings)
        case _:
            raise AssertionError(f"the schema holds a type that cannot be decoded: {info}")


def _mapping(node: Node, info: types.DictType, path: FieldPath, findings: Findings) -> Any:
    if not isinstance(node.value, dict):
        raise _wrong_type(node, "a mapping", path, findings)
    keys = info.key_type.values if isinstance(info.key_type, types.LiteralType) else None
    result: dict[str, Any] = {}
    for key, item in node.value.items():
        here = (*path, key)
        if keys is not None and key not in keys:
            _refuse_word(key, tuple(map(str, keys)), here, findings, item)
            continue
        if item.is_null:
            if isinstance(info.value_type, types.StructType):
                result[key] = info.value_type.cls()
            elif isinstance(info.value_type, types.AnyType):
                result[key] = None
            elif isinstance(info.value_type, types.VarTupleType):
                result[key] = ()
            else:
                result[key] = ""
            continue
        try:
            result[key] = _value(item, info.value_type, here, findings)
        except _Refused:
            continue
    return result


def _sequence(node: Node, info: types.VarTupleType, path: FieldPath, findings: Findings) -> Any:
    if not isinstance(node.value, list):
        raise _wrong_type(node, "a list", path, findings)
    if info.max_length is not None and len(node.value) > info.max_length:
        findings.error(
            path,
            f"{len(node.value)} entries, at most {info.max_length} are allowed",
            "out_of_range",
            place=node.place,
        )
    items: list[Any] = []
    for index, item in enumerate(node.value):
        try:
            items.append(_value(item, info.item_type, (*path, index), findings))
        except _Refused:
            continue
    return tuple(items)


def _word(node: Node, info: types.LiteralType, path: FieldPath, findings: Findings) -> str:
    word = _text(node, path, findings)
    words = tuple(map(str, info.values))
    if word not in words:
        _refuse_word(word, words, path, findings, node)
        raise _Refused
    return word


def _refuse_word(
    word: str, words: tuple[str, ...], path: FieldPath, findings: Findings, node: Node
) -> None:
    choices = [choice for choice in words if choice]
    if set(choices) == set(PROVIDER_IDS):
        noun = "provider"
    elif set(choices) == set(TIERS):
        noun = "tier"
    else:
        noun = "value"
    shown = f'"{word}"' if len(word) <= 60 else f"of {len(word)} characters"
    hint = did_you_mean(word, choices) or "; use " + ", ".join(choices)
    findings.error(path, f"unknown {noun} {shown}{hint}", "unknown_name", place=node.place)


def _text(node: Node, path: FieldPath, findings: Findings) -> str:
    if isinstance(node.value, Scalar) and not node.is_null:
        return node.value.text
    raise _wrong_type(node, "a string", path, findings)


def _number(
    node: Node, info: types.IntType | types.FloatType, path: FieldPath, findings: Findings
) -> int | float:
    value = node.value.value if isinstance(node.value, Scalar) else None
    whole = isinstance(info, types.IntType)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(node, "a whole number" if whole else "a number", path, findings)
    if not math.isfinite(value):
        raise _out_of_range(node, "must be finite", path, findings)
    if whole:
        if value != int(value):
            raise _wrong_type(node, "a whole number", path, findings)
        value = int(value)
        if abs(value) >= 2**63:
            raise _out_of_range(node, "does not fit in 64 bits", path, findings)
    low, high = info.ge, info.le
    if (low is not None and value < low) or (high is not None and value > high):
        match low, high:
            case int(), int():
                limits = f"{value} out of range [{low},{high}]"
            case _, None:
                limits = f"{value} must be at least {low}"
            case _:
                limits = f"{value} must be at most {high}"
        raise _out_of_range(node, limits, path, findings)
    return value


def _out_of_range(node: Node, text: str, path: FieldPath, findings: Findings) -> _Refused:
    findings.error(path, text, "out_of_range", place=node.place)
    return _Refused(dotted(path))


def _wrong_type(node: Node, wanted: str, path: FieldPath, findings: Findings) -> _Refused:
    match node.value:
        case dict():
            found = "a mapping"
        case list():
            found = "a list"
        case Scalar(bool()):
            found = "true or false"
        case Scalar(int() | float()):
            found = "a number"
        case Scalar(str()):
            found = "a string"
        case Scalar():
            found = "nothing"
    findings.error(path, f"must be {wanted}, not {found}", "wrong_type", place=node.place)
    return _Refused(dotted(path))
