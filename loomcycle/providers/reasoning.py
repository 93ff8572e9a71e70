"""Opaque reasoning of one driver, kept on an assistant message and handed back unchanged.

``<driver>-reasoning:<digest>:<JSON>``. A driver reads only what it wrote itself; the digest
tells when a text was altered on its way (masked, cut), which vendors' signatures would reject.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

_SEALED = re.compile(r"[a-z]+-reasoning:[0-9a-f]{16}:")


def seal(driver: str, content: Any) -> str:
    """Reasoning text of ``driver`` holding any JSON value."""
    body = msgspec.json.encode(content).decode()
    return f"{driver}-reasoning:{_digest(body)}:{body}"


def unseal(driver: str, text: str) -> Any:
    """What :func:`seal` was given, or None for anything else (foreign, plain or altered)."""
    prefix = f"{driver}-reasoning:"
    if not text.startswith(prefix):
        return None
    digest, _, body = text.removeprefix(prefix).partition(":")
    return msgspec.json.decode(body) if digest == _digest(body) else None


def is_sealed(text: str) -> bool:
    """Whether some driver sealed this text (so it is not prose a model may be shown)."""
    return _SEALED.match(text) is not None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
