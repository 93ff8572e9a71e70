"""Times as tools show and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.tools.timestamps import parse_rfc3339, rfc3339_nano

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01t02:00:00.5+02:00", SECOND // 2),
        ("1969-12-31T23:59:59.25z", -3 * SECOND // 4),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
    ],
)
def test_a_time_is_read_in_any_zone(text: str, unix_ns: int) -> None:
    assert parse_rfc3339(text) == unix_ns


@pytest.mark.parametrize(
    "text",
    [
        "", "yesterday", "2026-01-31", "2026-01-31T09:30:00", "2026-13-01T00:00:00Z",
        "2026-01-31T09:30:00+99:99", "2026-01-31T09:30:00.Z", "٢٠٢٦-01-31T09:30:00Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not an RFC 3339 time such as") as error:
        parse_rfc3339(text)
    assert f'"{text}"' in str(error.value)


@given(st.integers(0, 253_402_300_799 * SECOND))
def test_a_shown_time_reads_as_itself(unix_ns: int) -> None:
    text = rfc3339_nano(unix_ns)
    assert parse_rfc3339(text) == unix_ns
    assert len(text) == len("2026-01-31T09:30:00.000000000Z")
