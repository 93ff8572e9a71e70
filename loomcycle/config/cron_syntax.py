"""Cron expressions as the schedules write them, brought to one plain form.

Accepts five fields, `?`, descriptors such as `@daily`, `@every <duration>` and a `TZ=` or
`CRON_TZ=` prefix. Computes no times: that is the scheduler's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cron_converter import Cron
from msgspec import Struct

from loomcycle.config.durations import parse_duration

_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class CronExpression(Struct, frozen=True, kw_only=True):
    """Either five plain cron `fields` or a fixed interval `every`; `timezone` empty if unset."""

    fields: str = ""
    every: timedelta | None = None
    timezone: str = ""


def parse_cron(text: str) -> CronExpression:
    """Parse a schedule; raises ValueError saying what is wrong (triggers spec A2)."""
    timezone, body = "", text.strip()
    for prefix in ("TZ=", "CRON_TZ="):
        if body.startswith(prefix):
            timezone, _, body = body.removeprefix(prefix).partition(" ")
            body = body.strip()
            if not known_timezone(timezone):
                raise ValueError(f'unknown time zone "{timezone}"')
    if body.startswith("@every "):
        every = parse_duration(body.removeprefix("@every ").strip())
        if every < timedelta(seconds=1):
            raise ValueError("@every needs at least 1s")
        return CronExpression(every=every, timezone=timezone)
    if body.startswith("@"):
        if body not in _DESCRIPTORS:
            raise ValueError(f'unknown descriptor "{body}"')
        body = _DESCRIPTORS[body]
    parts = ["*" if part == "?" else part for part in body.split()]
    if len(parts) != 5:
        raise ValueError(f"needs five fields (minute hour day month weekday), found {len(parts)}")
    fields = " ".join(parts)
    try:
        Cron(fields)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(str(error) or "malformed field") from None
    return CronExpression(fields=fields, timezone=timezone)


def known_timezone(name: str) -> bool:
    """Whether the name is an IANA time zone this system knows."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return False
    return bool(name)
