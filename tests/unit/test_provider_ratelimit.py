"""Pauses after HTTP 429: schedule, headers, bounds (providers.md 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.providers.ratelimit import (
    Backoff,
    parse_duration,
    retry_after,
    retry_after_or_reset,
)


def test_without_headers_the_schedule_is_followed_and_the_fifth_attempt_is_the_last() -> None:
    backoff = Backoff(retry_after)
    waits = [backoff.next({}) for _ in range(5)]
    assert [wait and (wait.attempt, wait.seconds, wait.reason) for wait in waits] == [
        (1, 10.0, "exponential backoff"),
        (2, 20.0, "exponential backoff"),
        (3, 40.0, "exponential backoff"),
        (4, 60.0, "exponential backoff"),
        None,
    ]


def test_a_retry_after_header_wins_over_the_schedule() -> None:
    wait = Backoff(retry_after).next({"retry-after": "7"})
    assert wait is not None
    assert (wait.seconds, wait.milliseconds, wait.reason) == (7.0, 7000, "retry-after header")


def test_a_zero_retry_after_means_at_once_but_still_counts_as_an_attempt() -> None:
    backoff = Backoff(retry_after)
    waits = [backoff.next({"retry-after": "0"}) for _ in range(5)]
    assert [wait.seconds if wait else None for wait in waits] == [0, 0, 0, 0, None]


def test_a_wait_that_would_pass_five_minutes_in_all_is_not_begun() -> None:
    assert Backoff(retry_after).next({"retry-after": "301"}) is None
    backoff = Backoff(retry_after)
    assert backoff.next({"retry-after": "290"}) is not None
    assert backoff.next({"retry-after": "11"}) is None
    assert backoff.next({"retry-after": "10"}) is not None


@pytest.mark.parametrize(
    "value", ["-1", "1.5", "", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "٣", "1e3", "+1"]
)
def test_a_retry_after_that_is_no_whole_number_of_seconds_is_ignored(value: str) -> None:
    assert retry_after({"retry-after": value}) is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3", "x-ratelimit-reset-requests": "1s"}, 3.0),
        ({"retry-after": "0", "x-ratelimit-reset-requests": "1s"}, 0.0),
        ({"x-ratelimit-reset-requests": "2s", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-reset-requests": "0s", "x-ratelimit-reset-tokens": "1m30s"}, 90.0),
        ({"x-ratelimit-reset-requests": "later", "x-ratelimit-reset-tokens": "12.5s"}, 12.5),
        ({"retry-after": "soon", "x-ratelimit-reset-requests": "1s"}, 1.0),
        ({"x-ratelimit-reset-requests": "0s"}, None),
        ({"x-ratelimit-reset-requests": "-1s"}, None),
        ({}, None),
    ],
)
def test_openai_style_headers_give_the_smallest_positive_reset(
    headers: dict[str, str], expected: float | None
) -> None:
    assert retry_after_or_reset(headers) == pytest.approx(expected)


def test_anthropic_style_headers_ignore_resets() -> None:
    assert retry_after({"x-ratelimit-reset-requests": "1s"}) is None


@pytest.mark.parametrize("text", ["", "5", "s", "1x", "1s ago", "1s-2s", ".s", "1 s", "١s"])
def test_malformed_durations_are_none(text: str) -> None:
    assert parse_duration(text) is None


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_add_their_parts(hours: int, minutes: int, seconds: int, millis: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{millis}ms"
    expected = hours * 3600 + minutes * 60 + seconds + millis / 1000
    assert parse_duration(text) == pytest.approx(expected)
