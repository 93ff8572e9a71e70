"""What each writing operation makes of the rows: an event to append, or a refusal.

Pure: a decision is taken again whenever the rows changed under it, so it may read only the rows
and the write. Checks stand in the order of memory.md sections 4 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw, Struct

from events.state import MemoryWritten
from loomcycle.memory import values
from loomcycle.memory.errors import MemoryRefused
from loomcycle.memory.rows import Address, Row, ScopeRows, key_bytes

INCR_BYTES = 32
"""What an ``incr`` is charged, whatever its digits."""

MAX_LIST_LIMIT = 10_000
MAX_QUOTA_KEYS = 1000
"""A scope with more live keys takes no write that has to keep a quota."""

LAST_INSTANT_NS = 2**63 - 1
"""A longer time to live ends here (in the year 2262): views hold 64-bit times."""

_SECOND_NS = 1_000_000_000


class Limits(NamedTuple):
    """Bytes of one value and of all live rows of a scope; 0 or less = no limit."""

    value_bytes: int = 0
    scope_bytes: int = 0


class Write(Struct, frozen=True, kw_only=True):
    """One call. ``ttl_s`` 0 or less = none given; ``effect_id`` is the same over crashes."""

    address: Address
    key: str
    now_ns: int
    effect_id: str
    ttl_s: int = 0
    limits: Limits = Limits()


class Unchanged(NamedTuple):
    """Nothing to append; ``result`` is the answer's JSON."""

    result: bytes


Decide = Callable[[ScopeRows], MemoryWritten | Unchanged]
"""Raises MemoryRefused."""


def set_value(write: Write, value: bytes, *, embedding: MemoryRefused | None = None) -> Decide:
    """``embedding``: why the embedding that was asked for cannot be had."""

    def decide(rows: ScopeRows) -> MemoryWritten:
        _check_value(write, value)
        _check_quota(write, rows, len(value))
        if embedding is not None:
            raise embedding
        return _written(write, rows, "set", value, b'{"ok":true}', _expiry(write))

    return decide


def set_if_absent(write: Write, value: bytes) -> Decide:
    """A live row wins over ``value``; no limits."""

    def decide(rows: ScopeRows) -> MemoryWritten | Unchanged:
        if rows.live(write.key, write.now_ns) is not None:
            return Unchanged(b'{"ok":false}')
        return _written(write, rows, "set", value, b'{"ok":true}', _expiry(write))

    return decide


def delete(write: Write) -> Decide:
    def decide(rows: ScopeRows) -> MemoryWritten | Unchanged:
        row = rows.present(write.key, write.now_ns)
        if row is None:
            return Unchanged(b'{"deleted":false}')
        return MemoryWritten(
            tenant=write.address.tenant,
            scope=write.address.scope,
            scope_id=write.address.scope_id,
            key=write.key,
            op="delete",
            created_at_ns=row.created_at_ns,
            updated_at_ns=max(write.now_ns, row.updated_at_ns),
            effect_id=write.effect_id,
            result=Raw(b'{"deleted":true}'),
        )

    return decide


def incr(write: Write, delta: int) -> Decide:
    def decide(rows: ScopeRows) -> MemoryWritten:
        _check_quota(write, rows, INCR_BYTES)
        row = rows.live(write.key, write.now_ns)
        total = values.incremented(_value(row), delta)
        result = b'{"value":%b}' % total
        return _written(write, rows, "incr", total, result, _kept_expiry(write, row))

    return decide


def merge(write: Write, incoming: bytes) -> Decide:
    def decide(rows: ScopeRows) -> MemoryWritten:
        values.require_object(incoming)
        _check_value(write, incoming)
        row = rows.live(write.key, write.now_ns)
        value = values.merged(_value(row), incoming)
        result = b'{"value":%b}' % value
        return _reduced(write, rows, row, "merge", value, result)

    return decide


def append_dedupe(write: Write, item: bytes) -> Decide:
    def decide(rows: ScopeRows) -> MemoryWritten:
        row = rows.live(write.key, write.now_ns)
        value, appended = values.appended_once(_value(row), item)
        result = b'{"appended":%b,"value":%b}' % (b"true" if appended else b"false", value)
        return _reduced(write, rows, row, "append_dedupe", value, result)

    return decide


def bounded_list(write: Write, item: bytes, limit: int) -> Decide:
    def decide(rows: ScopeRows) -> MemoryWritten:
        if not 1 <= limit <= MAX_LIST_LIMIT:
            raise MemoryRefused(f"limit must be between 1 and {MAX_LIST_LIMIT}, got {limit}")
        row = rows.live(write.key, write.now_ns)
        value, dropped = values.appended_bounded(_value(row), item, limit)
        result = b'{"dropped":%d,"value":%b}' % (dropped, value)
        return _reduced(write, rows, row, "bounded_list", value, result)

    return decide


def _reduced(
    write: Write, rows: ScopeRows, row: Row | None, op: str, value: bytes, result: bytes
) -> MemoryWritten:
    _check_value(write, value)
    _check_quota(write, rows, len(value))
    return _written(write, rows, op, value, result, _kept_expiry(write, row))


def _written(
    write: Write, rows: ScopeRows, op: str, value: bytes, result: bytes, expires_ns: int | None
) -> MemoryWritten:
    before = rows.present(write.key, write.now_ns)
    return MemoryWritten(
        tenant=write.address.tenant,
        scope=write.address.scope,
        scope_id=write.address.scope_id,
        key=write.key,
        op=op,
        value=Raw(value),
        expires_at_ns=expires_ns,
        created_at_ns=before.created_at_ns if before is not None else write.now_ns,
        updated_at_ns=max(write.now_ns, before.updated_at_ns if before is not None else 0),
        effect_id=write.effect_id,
        result=Raw(result),
    )


def _value(row: Row | None) -> bytes | None:
    return row.value if row is not None else None


def _expiry(write: Write) -> int | None:
    if write.ttl_s <= 0:
        return None
    return min(write.now_ns + write.ttl_s * _SECOND_NS, LAST_INSTANT_NS)


def _kept_expiry(write: Write, row: Row | None) -> int | None:
    """Reducers without a time to live keep the one that the row has."""
    if write.ttl_s <= 0 and row is not None:
        return row.expires_at_ns
    return _expiry(write)


def _check_value(write: Write, value: bytes) -> None:
    cap = write.limits.value_bytes
    if 0 < cap < len(value):
        raise MemoryRefused(
            f"value of {len(value)} bytes exceeds max of {cap} bytes", "value_too_large"
        )


def _check_quota(write: Write, rows: ScopeRows, new_bytes: int) -> None:
    quota = write.limits.scope_bytes
    if quota <= 0:
        return
    keys = rows.live_keys(write.now_ns)
    if keys > MAX_QUOTA_KEYS:
        raise MemoryRefused(
            f"quota cannot be kept: the scope has {keys} live keys, a scope with a quota at most"
            f" {MAX_QUOTA_KEYS}; delete keys, or keep several values under one",
            "quota_exceeded",
        )
    total = rows.used(write.now_ns, without=write.key) + key_bytes(write.key) + new_bytes
    if total > quota:
        raise MemoryRefused(
            f"quota exceeded: the scope would hold {total} bytes of keys and values, its quota is"
            f" {quota}; delete keys or shorten values",
            "quota_exceeded",
        )
