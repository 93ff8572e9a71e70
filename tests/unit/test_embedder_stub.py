"""The stub embedder: deterministic, normalised, words shared are nearness."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.embedders.stub import DIMENSIONS, StubEmbedder, fnv1a_32, tokens, vector_of


def dot(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(vector_of(one), vector_of(other), strict=True))


@pytest.mark.parametrize(
    ("data", "value"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
)
def test_the_hash_is_fnv1a(data: bytes, value: int) -> None:
    assert fnv1a_32(data) == value


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    assert tokens("Über-Tea, 2 cups_of") == ["über", "tea", "2", "cups", "of"]


@given(st.text())
def test_every_vector_has_length_one(text: str) -> None:
    vector = vector_of(text)
    assert vector.typecode == "f"
    assert len(vector) == DIMENSIONS
    assert math.isclose(sum(v * v for v in vector), 1.0, rel_tol=1e-5)


@given(st.text())
def test_a_text_is_itself_whatever_its_case_and_punctuation(text: str) -> None:
    assert vector_of(text) == vector_of(f" {text} ... ")


def test_no_words_point_along_the_first_axis() -> None:
    assert list(vector_of("?!")) == [1.0] + [0.0] * (DIMENSIONS - 1)


def test_texts_that_share_words_are_nearer() -> None:
    assert dot("green tea", "black tea") > 0.4
    assert dot("green tea", "green tea") > dot("green tea", "black tea")


def test_a_word_adds_or_takes_one_at_its_place() -> None:
    sign = 1.0 if fnv1a_32(b"tea\0sign") % 2 else -1.0
    vector = vector_of("tea")
    assert vector[fnv1a_32(b"tea") % DIMENSIONS] == sign
    assert sum(v != 0 for v in vector) == 1


async def test_the_stub_answers_in_order_and_has_a_name() -> None:
    stub = StubEmbedder()
    assert (stub.provider, stub.model, stub.dimensions) == ("stub", "stub-deterministic-v1", 256)
    assert await stub.embed(["a", "b"]) == [vector_of("a"), vector_of("b")]
    assert await stub.embed([]) == []
