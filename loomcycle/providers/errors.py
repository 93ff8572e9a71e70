"""Error classes of provider calls: what may be retried, what may fall back, what is final.

A table over the error's text (providers.md section 3), evaluated in order. It must not import
an HTTP client: transport failures arrive as :class:`TransportFailure`.
"""

from __future__ import annotations

import asyncio
import re
from enum import Enum

from loomcycle.providers.base import ProviderError


class ErrorClass(Enum):
    """Retry applies to RETRYABLE; fallback to RETRYABLE and DEPRECATED; nothing to the rest."""

    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    DEPRECATED = "deprecated"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNKNOWN = "unknown"


class TransportFailure(ProviderError):
    """The network failed: no connection, no response headers, a stalled or a cut stream."""


STALL = "stream read: context deadline exceeded"

_STATUS = re.compile(r"[a-z][a-z0-9_-]* (\d{3}):")
_RETIRED = (
    "no longer available",
    "has been deprecated",
    "model is deprecated",
    "model retired",
    "update your code to use",
)


def status_of(text: str) -> int | None:
    """The HTTP status that an error text starts with (``openai 503: …``), or None."""
    match = _STATUS.match(text)
    return int(match[1]) if match else None


def is_rate_limit(failure: str | BaseException) -> bool:
    """Whether the failure is an HTTP 429 (a 429 later in the text does not count)."""
    return status_of(str(failure)) == 429


def classify(failure: str | BaseException) -> ErrorClass:
    """Class of a failed call, from its text or, better, from the exception itself."""
    text = str(failure)
    if STALL in text:
        return ErrorClass.RETRYABLE
    if isinstance(failure, asyncio.CancelledError) or text == "context canceled":
        return ErrorClass.CANCELLED
    if isinstance(failure, TimeoutError) or text == "context deadline exceeded":
        return ErrorClass.DEADLINE_EXCEEDED
    status = status_of(text)
    if status is not None and 400 <= status < 600:
        return _of_status(status, text)
    if text.startswith("http: ") or isinstance(failure, (TransportFailure, OSError)):
        return ErrorClass.RETRYABLE
    return ErrorClass.UNKNOWN


def _of_status(status: int, text: str) -> ErrorClass:
    if status == 429 or status >= 500:
        return ErrorClass.RETRYABLE
    if status == 404:
        body = text.split(":", 1)[1].lower()
        if any(phrase in body for phrase in _RETIRED):
            return ErrorClass.DEPRECATED
    return ErrorClass.PERMANENT
