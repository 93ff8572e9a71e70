"""When to try again after HTTP 429 inside one provider call (providers.md section 3).

Pure arithmetic over response headers: it neither sleeps nor sends. Statuses other than 429 are
never retried at this layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

MAX_ATTEMPTS = 5
MAX_TOTAL_WAIT = 300.0
SCHEDULE = (10.0, 20.0, 40.0, 60.0)

HeaderWait = Callable[[Mapping[str, str]], float | None]

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
_RESETS = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")


class Wait(NamedTuple):
    """One pause. ``attempt`` counts pauses from 1; ``seconds`` may be 0."""

    attempt: int
    seconds: float
    reason: str

    @property
    def milliseconds(self) -> int:
        return round(self.seconds * 1000)


class Backoff:
    """The pauses of one call: a header's value wins over the schedule."""

    def __init__(self, header_wait: HeaderWait) -> None:
        self._header_wait = header_wait
        self._attempt = 0
        self._waited = 0.0

    def next(self, headers: Mapping[str, str]) -> Wait | None:
        """The pause after another 429 with these headers; None when the call must give up."""
        if self._attempt >= MAX_ATTEMPTS - 1:
            return None
        told = self._header_wait(headers)
        seconds = SCHEDULE[self._attempt] if told is None else told
        if self._waited + seconds > MAX_TOTAL_WAIT:
            return None
        self._attempt += 1
        self._waited += seconds
        reason = "exponential backoff" if told is None else "retry-after header"
        return Wait(self._attempt, seconds, reason)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` as whole seconds; the HTTP-date form and malformed values are ignored."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isascii() and value.isdigit() else None


def retry_after_or_reset(headers: Mapping[str, str]) -> float | None:
    """``Retry-After``, else the smallest positive ``x-ratelimit-reset-*`` duration."""
    seconds = retry_after(headers)
    if seconds is not None:
        return seconds
    resets = [parse_duration(headers.get(name, "")) for name in _RESETS]
    positive = [reset for reset in resets if reset is not None and reset > 0]
    return min(positive, default=None)


def parse_duration(text: str) -> float | None:
    """Seconds of a duration such as ``120ms``, ``12.5s`` or ``1m30s``; None when malformed."""
    text = text.strip()
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
