"""Identifiers (specification: http-runs.md section 1.3) and the slot that each one carries."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable

HexSource = Callable[[], str]
"""Returns 16 lower-case hex digits; random in production, seeded in simulation."""

IDENT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NATIVE = re.compile(r"[rs]_([0-9a-f]{2})[0-9a-f]{14}(?:[0-9a-f]{16})?")


_POOL_BYTES = 4096
_pool = memoryview(b"")


def _forget_pool() -> None:
    global _pool
    _pool = memoryview(b"")


os.register_at_fork(after_in_child=_forget_pool)


def random_hex() -> str:
    """16 hex digits from the system's generator, fetched in blocks (a call costs 30 us)."""
    global _pool
    if not _pool:
        _pool = memoryview(secrets.token_bytes(_POOL_BYTES))
    taken, _pool = _pool[:8], _pool[8:]
    return taken.hex()


def is_ident(text: str) -> bool:
    """Whether ``text`` fits the ident charset ``[A-Za-z0-9_-]{1,128}``."""
    return IDENT.fullmatch(text) is not None


def first_run_of(session_id: str) -> str:
    """The first run of a session shares the session's digits."""
    return "r_" + session_id.removeprefix("s_")


def next_run_of(session_id: str, hex_source: HexSource) -> str:
    """A later run of a session: same slot, fresh digits."""
    return f"r_{slot(session_id)}{hex_source()[2:]}"


def agent_id_of(run_id: str) -> str:
    """The generated tracking handle of a run."""
    return "a_" + run_id.removeprefix("r_")


def slot(run_or_session_id: str) -> str:
    """Virtual partition, two hex digits: the id's first two, or a hash of a foreign id."""
    native = _NATIVE.fullmatch(run_or_session_id)
    if native is not None:
        return native.group(1)
    return hashlib.sha256(run_or_session_id.encode()).hexdigest()[:2]
