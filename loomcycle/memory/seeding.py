"""Rows that the configuration wants to exist (specification: memory.md section 12).

Reading the entries is pure; applying them never overwrites a live row and never stops a boot:
whatever goes wrong becomes a note for the boot log. Notes never hold a value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from loomcycle.config.schema import MemorySeed
from loomcycle.memory.errors import MemoryRefused, MemoryUnavailable
from loomcycle.memory.rows import Address
from loomcycle.memory.store import RowStore

SEED_SCOPES = ("global", "agent", "user")


class Seed(Struct, frozen=True):
    """A row to write unless there is one; ``place`` is the entry's path in the configuration."""

    place: str
    address: Address
    key: str
    value: bytes
    embed: bool


def read_seeds(entries: Iterable[MemorySeed], tenant: str = "") -> tuple[list[Seed], list[str]]:
    """The seeds of ``memory.entries``, and a note for each entry that is none."""
    seeds: list[Seed] = []
    notes: list[str] = []
    for index, entry in enumerate(entries):
        place = f"memory.entries[{index}]"
        scope = entry.scope or "global"
        if scope not in SEED_SCOPES:
            notes.append(
                f"{place}.scope: skipped, unknown scope {entry.scope!r}; use one of"
                f" {', '.join(SEED_SCOPES)}"
            )
            continue
        if not entry.key.strip():
            notes.append(f"{place}.key: skipped, the key is blank; give it a name")
            continue
        try:
            value = msgspec.json.encode(entry.value)
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
            notes.append(f"{place}.value: skipped, cannot be written as JSON: {error}")
            continue
        address = Address(tenant, scope, entry.scope_id)
        seeds.append(Seed(place, address, entry.key, value, entry.embed))
    return seeds, notes


async def apply_seeds(store: RowStore, seeds: Sequence[Seed], now_ns: int) -> list[str]:
    """Write the seeds that have no live row; returns notes on what could not be done."""
    notes: list[str] = []
    for seed in seeds:
        try:
            await store.put_if_absent(
                seed.address, seed.key, seed.value, now_ns=now_ns, effect_id=_effect_id(seed)
            )
        except (MemoryRefused, MemoryUnavailable) as error:
            notes.append(f"{seed.place}: not written, {error.reason}")
            continue
        if seed.embed:
            notes.append(f"{seed.place}.embed: ignored, no embedder configured")
    return notes


def _effect_id(seed: Seed) -> str:
    """The same on every replica: of several that boot at once, one write counts for all."""
    name = msgspec.json.encode([*seed.address, seed.key])
    return "seed." + hashlib.sha256(name).hexdigest()[:32]
