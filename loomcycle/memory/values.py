"""What the reducers make of JSON values (specification: memory.md section 4).

Pure functions from JSON bytes to JSON bytes. Numbers are never floats here: their digits are
kept, and two numbers are equal when their values are. An absent value is None.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from loomcycle.exact_json import encode_tree, parse_exactly
from loomcycle.memory.errors import MemoryRefused

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_INT64_DIGITS = 19
_NULL = b"null"
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_decode_items = msgspec.json.Decoder(list[Raw]).decode


class Number(Struct, frozen=True):
    """The exact value ``digits`` times ten to the ``exponent``; zero has no digits.

    ``digits`` begins and ends with another digit than 0, so equal values are equal numbers. An
    exponent of thousands of digits is kept as text.
    """

    negative: bool
    digits: str
    exponent: int | str


def parse_number(text: str) -> Number:
    """The value of a JSON number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a JSON number")
    sign, whole, fraction, power = match[1], match[2], match[3] or "", match[4] or "0"
    written = (whole + fraction).lstrip("0")
    digits = written.rstrip("0")
    if not digits:
        return Number(False, "", 0)
    try:
        exponent: int | str = int(power) - len(fraction) + len(written) - len(digits)
    except ValueError:
        exponent = text
    return Number(sign == "-", digits, exponent)


def as_integer(text: str) -> int | None:
    """The value of a JSON number that is integral and fits 64 bits, else None."""
    number = parse_number(text)
    exponent = number.exponent
    if not isinstance(exponent, int) or exponent < 0:
        return None
    if len(number.digits) + exponent > _INT64_DIGITS:
        return None
    value = int(number.digits + "0" * exponent or "0") * (-1 if number.negative else 1)
    return value if INT64_MIN <= value <= INT64_MAX else None


def equal(left: bytes, right: bytes) -> bool:
    """Structural equality: order of keys, white space and spelling of numbers do not matter."""
    return left == right or _comparable(left) == _comparable(right)


def _comparable(value: bytes) -> Any:
    return json.loads(value, parse_int=parse_number, parse_float=parse_number)


def is_null(value: bytes | None) -> bool:
    return value is None or value == _NULL


def incremented(existing: bytes | None, delta: int) -> bytes:
    """``existing`` plus ``delta`` as a plain integer; absent and null count as 0."""
    if existing is None or is_null(existing):
        current: int | None = 0
    elif existing[:1] in b"-0123456789":
        current = as_integer(existing.decode())
    else:
        current = None
    if current is None:
        raise MemoryRefused(
            "existing value is not a JSON number that is integral and fits 64 bits", "wrong_type"
        )
    total = current + delta
    if not INT64_MIN <= total <= INT64_MAX:
        raise MemoryRefused("the sum does not fit a signed 64-bit integer", "wrong_type")
    return b"%d" % total


def require_object(value: bytes) -> None:
    """Refuse what :func:`merged` cannot merge in."""
    if not is_null(value) and value[:1] != b"{":
        raise MemoryRefused("value must be a JSON object", "wrong_type")


def merged(existing: bytes | None, incoming: bytes) -> bytes:
    """Objects merge recursively; arrays, scalars and null replace. Keys come out sorted."""
    require_object(incoming)
    if existing is not None and not is_null(existing) and existing[:1] != b"{":
        raise MemoryRefused("existing value is not a JSON object", "wrong_type")
    return encode_tree(_merge(_object(existing), _object(incoming)))


def _object(value: bytes | None) -> dict[str, Any]:
    if value is None or is_null(value):
        return {}
    tree: dict[str, Any] = parse_exactly(value.decode(), [])
    return tree


def _merge(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    for name, value in patch.items():
        known = base.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        else:
            base[name] = value
    return base


def appended_once(existing: bytes | None, item: bytes) -> tuple[bytes, bool]:
    """The array with ``item`` at its end unless an equal one is in it, and whether it was added."""
    items = _items(existing)
    if item in items:
        return _array(items), False
    form = _comparable(item)
    if any(_comparable(known) == form for known in items):
        return _array(items), False
    return _array([*items, item]), True


def appended_bounded(existing: bytes | None, item: bytes, limit: int) -> tuple[bytes, int]:
    """The newest ``limit`` items with ``item`` at the end, and how many were dropped."""
    items = [*_items(existing), item]
    dropped = max(len(items) - limit, 0)
    return _array(items[dropped:]), dropped


def _items(existing: bytes | None) -> list[bytes]:
    if existing is None or is_null(existing):
        return []
    if existing[:1] != b"[":
        raise MemoryRefused("existing value is not a JSON array", "wrong_type")
    return [bytes(item) for item in _decode_items(existing)]


def _array(items: list[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
