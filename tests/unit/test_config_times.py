"""Durations and cron expressions as configuration writes them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.config.cron_syntax import parse_cron
from loomcycle.config.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("0", 0),
        ("30s", 30e6),
        ("1h15m", 4500e6),
        ("1.5s", 1.5e6),
        ("250ms", 250e3),
        ("-2m", -120e6),
        ("1µs", 1),
        ("100us", 100),
        (".5h", 1800e6),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, micros: float) -> None:
    assert parse_duration(text).total_seconds() * 1e6 == pytest.approx(micros)


@pytest.mark.parametrize("text", ["", "30", "s", "1d", "1 s", "1s ", "--1s", "1s2", "1e3s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.timedeltas())
def test_a_printed_duration_reads_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(120, "2m0s"), (30, "30s"), (5400, "1h30m0s"), (0, "0s"), (0.25, "250ms")]
)
def test_durations_are_printed_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_duration(parse_duration(f"{seconds}s")) == text


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        ("0 9 ? * MON-FRI", "0 9 * * MON-FRI"),
        ("0 0 1 JAN *", "0 0 1 JAN *"),
        ("@daily", "0 0 * * *"),
        ("TZ=Europe/Berlin 0 9 * * *", "0 9 * * *"),
        ("CRON_TZ=UTC @hourly", "0 * * * *"),
    ],
)
def test_cron_expressions_come_to_five_plain_fields(text: str, fields: str) -> None:
    assert parse_cron(text).fields == fields


def test_cron_prefix_and_interval_are_kept() -> None:
    assert parse_cron("TZ=Europe/Berlin 0 9 * * *").timezone == "Europe/Berlin"
    assert parse_cron("@every 90s").every == parse_duration("90s")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "61 * * * *",
        "@sometimes",
        "@every 0s",
        "@every x",
        "TZ=Nowhere/City * * * * *",
        "a b c d e",
    ],
)
def test_other_cron_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cron(text)
