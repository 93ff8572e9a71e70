"""Drops null members that a type has no room for: a null means "not given" to many clients.

Only on the way after strict decoding failed; values of free form (``Raw``, dicts) stay as sent.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.inspect import (
    Field,
    ListType,
    NoneType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
)

_NULL = b"null"
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


def without_nulls(data: bytes, kind: type[Any]) -> bytes:
    """``data`` (one JSON value) as ``kind`` would accept it. Raises msgspec.DecodeError."""
    return _pruned(data, msgspec.inspect.type_info(kind))


def _pruned(data: bytes, kind: Type) -> bytes:
    if isinstance(kind, UnionType):
        shapes = [own for own in kind.types if isinstance(own, StructType | VarTupleType)]
        return _pruned(data, shapes[0]) if len(shapes) == 1 and data != _NULL else data
    if isinstance(kind, ListType | VarTupleType) and data.startswith(b"["):
        return _encode([Raw(_pruned(bytes(item), kind.item_type)) for item in _items(data)])
    if isinstance(kind, StructType) and data.lstrip()[:1] == b"{":
        fields: dict[str, Field] = {field.encode_name: field for field in kind.fields}
        kept = {
            name: Raw(_pruned(bytes(value), fields[name].type))
            for name, value in _members(data).items()
            if name in fields and (bytes(value) != _NULL or _nullable(fields[name].type))
        }
        return _encode(kept)
    return data


def _nullable(kind: Type) -> bool:
    return isinstance(kind, UnionType) and any(isinstance(own, NoneType) for own in kind.types)
