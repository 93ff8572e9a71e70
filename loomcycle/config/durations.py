"""Go-style durations (`1m30s`, `500ms`): parsing and printing. Pure functions, no clock."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

_MICROSECONDS: Final = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "µs": Fraction(1),
    "μs": Fraction(1),
    "ms": Fraction(1000),
    "s": Fraction(1_000_000),
    "m": Fraction(60_000_000),
    "h": Fraction(3_600_000_000),
}
_TERM: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `30s`, `1h15m` or `0`; raises ValueError for anything else."""
    sign = -1 if text.startswith("-") else 1
    body = text[1:] if text[:1] in "+-" and text else text
    if body == "0":
        return timedelta(0)
    total, position = Fraction(0), 0
    for term in _TERM.finditer(body):
        if term.start() != position:
            break
        total += Fraction(term[1].removesuffix(".")) * _MICROSECONDS[term[2]]
        position = term.end()
    if not body or position != len(body):
        raise ValueError("not a duration; write a number with a unit, such as 30s, 5m or 1h30m")
    try:
        return timedelta(microseconds=sign * round(total))
    except OverflowError:
        raise ValueError("duration too long") from None


def format_duration(duration: timedelta) -> str:
    """Print a duration the way Go does: `30s`, `2m0s`, `1.5s`, `250ms`."""
    micros = duration // timedelta(microseconds=1)
    if micros == 0:
        return "0s"
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    if micros < 1_000:
        return f"{sign}{micros}µs"
    if micros < 1_000_000:
        return f"{sign}{_decimal(micros, 1_000)}ms"
    minutes, rest = divmod(micros, 60_000_000)
    text = f"{_decimal(rest, 1_000_000)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
