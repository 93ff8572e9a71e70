"""Folds memory writes into rows (specification: memory.md sections 2 to 4).

Keys are stored as UTF-8 bytes, so that order and prefixes mean the same in every database.
Expired rows stay: expiry is decided by the reader's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UnsetType

from projections.framework import Projection, Write
from projections.sources import MemoryFault, MemoryWrite


def fold(items: Sequence[Any]) -> list[Write]:
    """Rows put and deleted by ``items``; unreadable messages are noted as faults."""
    writes: list[Write] = []
    for item in items:
        match item:
            case MemoryWrite(seq, event):
                key = event.key.encode("utf-8", "surrogatepass")
                address = (event.tenant, event.scope, event.scope_id, key)
                if isinstance(event.value, UnsetType):
                    writes.append(Write("delete_memory", address, address))
                    continue
                value = bytes(event.value)
                row = (
                    *address,
                    value.decode("utf-8", "replace"),
                    event.expires_at_ns,
                    event.created_at_ns,
                    event.updated_at_ns,
                    event.effect_id,
                    len(key) + len(value),
                    seq,
                )
                writes.append(Write("put_memory", address, row))
            case MemoryFault(seq, subject, reason):
                writes.append(Write("note_fault", seq, (seq, subject, reason)))
    return writes


PROJECTION = Projection(
    name="memory",
    version=1,
    source="state",
    tables={
        "memory": ("tenant", "scope", "scope_id", "key"),
        "memory_faults": ("seq",),
    },
    fold=fold,
)
