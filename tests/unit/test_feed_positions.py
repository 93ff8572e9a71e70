"""Frame ids as clients send them back: ``<seq>`` or ``<seq>.<attempt>.<offset>``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.feed import BadPosition, Position, parse_position

LARGEST = 2**53
numbers = st.integers(min_value=0, max_value=LARGEST)


@given(numbers)
def test_the_id_of_a_durable_frame_is_its_sequence(seq: int) -> None:
    assert parse_position(str(seq)) == Position(seq)


@given(numbers, numbers, numbers)
def test_the_id_of_a_delta_has_three_numbers(seq: int, attempt: int, offset: int) -> None:
    assert parse_position(f"{seq}.{attempt}.{offset}") == Position(seq, attempt, offset)


def test_leading_zeros_change_nothing() -> None:
    assert parse_position("0" * 5000 + "7.00.1") == Position(7, 0, 1)


@pytest.mark.parametrize(
    "text", [str(LARGEST + 1), "9" * 19, "9" * 5000, f"7.{LARGEST + 1}.0", f"7.0.{2**64}"]
)
def test_a_number_beyond_every_sequence_is_refused_and_says_the_limit(text: str) -> None:
    with pytest.raises(BadPosition, match=r"greater than 9007199254740992") as caught:
        parse_position(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "-1", "+1", "1_000", "1.2", "1.2.3.4", "1..2", "1.2.", "0x10", "1e3", "١٢", "²"],
)
def test_what_no_frame_has_as_its_id_is_refused(text: str) -> None:
    with pytest.raises(BadPosition, match="not a frame id"):
        parse_position(text)


def test_a_long_id_that_is_none_is_not_repeated_whole() -> None:
    with pytest.raises(BadPosition) as caught:
        parse_position("x" * 100_000)
    assert len(str(caught.value)) < 200


@given(st.text())
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        position = parse_position(text)
    except BadPosition:
        return
    assert all(0 <= number <= LARGEST for number in position)
