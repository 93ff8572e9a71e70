"""Approvals: what exactly a person allowed, as a hash, and what an answer means.

An approval binds tool, canonical arguments, principal, definition and expiry; whatever changes
one of them afterwards (a hook, a fork, a replay elsewhere) needs another one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Raw

from events.vocabulary import InterruptClosed

APPROVE = "approve"
DENY = "deny"

_canonical = msgspec.json.Encoder(order="sorted").encode


def bound(tool: str, arguments: Raw, principal: str, definition: str, until_ns: int) -> str:
    """Hex SHA-256 of what an approval allows. Raises msgspec.DecodeError for broken JSON."""
    value = msgspec.json.decode(arguments)
    return sha256(_canonical([tool, value, principal, definition, until_ns])).hexdigest()


def edited(closed: InterruptClosed) -> Raw | None:
    """The arguments that the person gave instead of the model's; None when there are none."""
    text = closed.answer.strip()
    if not text.startswith("{"):
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return Raw(text.encode()) if isinstance(value, dict) else None


def allows(closed: InterruptClosed) -> bool:
    """Whether the answer lets the call run."""
    if closed.status != "resolved":
        return False
    return closed.answer.strip() == APPROVE or edited(closed) is not None
