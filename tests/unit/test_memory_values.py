"""Reducers on JSON bytes: exact numbers, deep merge, set-like and bounded arrays."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.memory import values
from loomcycle.memory.errors import MemoryRefused

numbers = st.one_of(
    st.integers(-(10**25), 10**25).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9)
    .map(lambda d: f"{d:f}")
    .filter(lambda text: text != "-0"),
    st.tuples(st.integers(-999, 999), st.integers(-30, 30)).map(lambda p: f"{p[0]}e{p[1]}"),
)
# A small alphabet: the table of all characters takes seconds to build on a fresh checkout.
texts = st.text(alphabet='ab"\\\x00é\u2028𐀀', max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4)


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("existing", "delta", "total"),
    [
        (None, 1, "1"),
        (b"null", 5, "5"),
        (b"3", -4, "-1"),
        (b"3.0", 1, "4"),
        (b"-0", 0, "0"),
        (b"-0.0", 1, "1"),
        (b"1e3", 1, "1001"),
        (b"120e-1", 1, "13"),
        (b"9007199254740993", 1, "9007199254740994"),
        (b"9223372036854775806", 1, "9223372036854775807"),
        (b"-9223372036854775807", -1, "-9223372036854775808"),
    ],
)
def test_incr_adds_exact_integers(existing: bytes | None, delta: int, total: str) -> None:
    assert values.incremented(existing, delta) == total.encode()


@pytest.mark.parametrize(
    "existing",
    [b"3.5", b'"3"', b"true", b"{}", b"[]", b"1e400", b"9223372036854775808", b"1e-1"],
)
def test_incr_refuses_what_is_no_integer(existing: bytes) -> None:
    with pytest.raises(MemoryRefused, match="not a JSON number"):
        values.incremented(existing, 1)


def test_incr_refuses_to_overflow() -> None:
    with pytest.raises(MemoryRefused, match="64-bit"):
        values.incremented(b"9223372036854775807", 1)


def test_an_exponent_of_thousands_of_digits_costs_nothing() -> None:
    absurd = b"1e" + b"9" * 5000
    assert values.equal(absurd, absurd)
    assert not values.equal(absurd, b"1")
    with pytest.raises(MemoryRefused):
        values.incremented(absurd, 1)


@given(numbers, numbers)
def test_numbers_are_equal_exactly_when_their_values_are(left: str, right: str) -> None:
    same = Fraction(Decimal(left)) == Fraction(Decimal(right))
    assert (values.parse_number(left) == values.parse_number(right)) == same


@given(numbers)
def test_an_integral_number_has_its_integer_value(text: str) -> None:
    exact = Fraction(Decimal(text))
    fits = exact.denominator == 1 and values.INT64_MIN <= exact <= values.INT64_MAX
    assert values.as_integer(text) == (int(exact) if fits else None)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (b'{"a":1,"b":2}', b'{ "b": 2.0, "a": 1 }', True),
        (b"[1,2]", b"[2,1]", False),
        (b"1", b"true", False),
        (b"0", b"false", False),
        (b"1", b'"1"', False),
        (b"12345678901234567890", b"12345678901234567891", False),
        (b'"\\u00e9"', '"é"'.encode(), True),
    ],
)
def test_equality_is_structural(left: bytes, right: bytes, same: bool) -> None:
    assert values.equal(left, right) is same


def model_merge(base: Any, patch: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(patch, dict)):
        return patch
    merged = {name: model_merge(base[name], patch[name]) for name in base.keys() & patch.keys()}
    return {**base, **patch, **merged}


@given(st.none() | objects, objects)
def test_merge_equals_a_plain_recursive_merge(base: Any, patch: Any) -> None:
    existing = None if base is None else dump(base)
    assert json.loads(values.merged(existing, dump(patch))) == model_merge(base or {}, patch)


def test_merge_keeps_the_spelling_of_numbers() -> None:
    merged = values.merged(b'{"a":12345678901234567890,"b":1.0}', b'{"c":1e400}')
    assert merged == b'{"a":12345678901234567890,"b":1.0,"c":1e400}'


def test_merge_stores_null_and_replaces_arrays() -> None:
    assert values.merged(b'{"a":[1],"b":2}', b'{"a":[2],"b":null}') == b'{"a":[2],"b":null}'


def test_a_top_level_null_merges_as_an_empty_object() -> None:
    assert values.merged(b"null", b'{"a":1}') == b'{"a":1}'
    assert values.merged(b'{"a":1}', b"null") == b'{"a":1}'


def test_merge_refuses_other_types() -> None:
    with pytest.raises(MemoryRefused, match="must be a JSON object"):
        values.merged(None, b"[1]")
    with pytest.raises(MemoryRefused, match="not a JSON object"):
        values.merged(b"[1]", b"{}")


def differs(left: Any, right: Any) -> bool:
    """Python takes True for 1; JSON does not."""
    return json.dumps(left, sort_keys=True) != json.dumps(right, sort_keys=True)


@given(st.lists(json_values, max_size=6))
def test_append_dedupe_equals_an_ordered_set(items: list[Any]) -> None:
    stored: bytes | None = None
    model: list[Any] = []
    for item in items:
        stored, appended = values.appended_once(stored, dump(item))
        assert appended == all(differs(item, known) for known in model)
        if appended:
            model.append(item)
        assert not differs(json.loads(stored), model)


@given(st.lists(st.tuples(json_values, st.integers(1, 4)), max_size=8))
def test_bounded_list_keeps_the_newest(steps: list[tuple[Any, int]]) -> None:
    stored: bytes | None = None
    model: list[Any] = []
    for item, limit in steps:
        stored, dropped = values.appended_bounded(stored, dump(item), limit)
        model.append(item)
        assert dropped == max(len(model) - limit, 0)
        model = model[-limit:]
        assert not differs(json.loads(stored), model)


@pytest.mark.parametrize("existing", [b"{}", b'"[]"', b"1", b"true"])
def test_array_reducers_refuse_other_types(existing: bytes) -> None:
    with pytest.raises(MemoryRefused, match="not a JSON array"):
        values.appended_once(existing, b"1")
    with pytest.raises(MemoryRefused, match="not a JSON array"):
        values.appended_bounded(existing, b"1", 3)
