"""Times as tools show and read them: RFC 3339, in UTC, to the nanosecond."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2})(?:\.(\d+))?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_SECOND_NS = 1_000_000_000


def rfc3339_nano(unix_ns: int) -> str:
    """With nine fraction digits, always."""
    seconds, fraction = divmod(unix_ns, _SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def parse_rfc3339(text: str) -> int:
    """Unix nanoseconds; digits behind the ninth are dropped. Raises ValueError."""
    wrong = f'"{text}" is not an RFC 3339 time such as 2026-01-31T09:30:00Z'
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(wrong)
    moment, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    try:
        seconds = int(datetime.fromisoformat(moment.upper() + zone).timestamp())
    except ValueError:
        raise ValueError(wrong) from None
    return seconds * _SECOND_NS + int(f"{fraction or '':0<9}"[:9])
