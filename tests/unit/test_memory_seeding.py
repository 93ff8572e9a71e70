"""Seed rows of the configuration: which are written, and what the boot log hears."""

from __future__ import annotations

import math

from events.memory_store import MemoryServer
from loomcycle.config.schema import MemorySeed
from loomcycle.memory.rows import Address
from loomcycle.memory.seeding import apply_seeds, read_seeds
from loomcycle.memory.store import RowStore

NOW = 1_000


def test_entries_without_a_usable_scope_or_key_are_skipped_with_a_note() -> None:
    seeds, notes = read_seeds(
        [
            MemorySeed(scope="tenant", key="a", value=1),
            MemorySeed(scope="user", key="  ", value=1),
            MemorySeed(scope="agent", scope_id="notes", key="b", value={"x": [1, None]}),
            MemorySeed(scope="", key="c", value=math.nan),
            MemorySeed(scope="user", key="d", value=object()),
        ],
        tenant="t",
    )
    assert [(seed.address, seed.key, seed.value) for seed in seeds] == [
        (Address("t", "agent", "notes"), "b", b'{"x":[1,null]}'),
        (Address("t", "global", ""), "c", b"null"),
    ]
    assert [note.split(":")[0] for note in notes] == [
        "memory.entries[0].scope",
        "memory.entries[1].key",
        "memory.entries[4].value",
    ]


async def test_a_seed_never_overwrites_a_live_row() -> None:
    store = MemoryServer().connect("a")
    rows = RowStore(store.log, store.subjects)
    address = Address("", "user", "ada")
    seeds, _ = read_seeds([MemorySeed(scope="user", scope_id="ada", key="k", value="seed")])
    assert await apply_seeds(rows, seeds, NOW) == []
    await rows.put(address, "k", b'"mine"', now_ns=NOW, effect_id="e1", ttl_s=1)
    await apply_seeds(rows, seeds, NOW)
    row = await rows.get(address, "k", NOW)
    assert row is not None
    assert row.value == b'"mine"'
    later = NOW + 2_000_000_000
    await apply_seeds(rows, seeds, later)
    row = await rows.get(address, "k", later)
    assert row is not None
    assert (row.value, row.expires_at_ns) == (b'"seed"', None)


async def test_an_embedding_of_a_seed_is_only_noted() -> None:
    store = MemoryServer().connect("a")
    rows = RowStore(store.log, store.subjects)
    seeds, _ = read_seeds([MemorySeed(key="k", value=1, embed=True)])
    notes = await apply_seeds(rows, seeds, NOW)
    assert notes == ["memory.entries[0].embed: ignored, no embedder configured"]
    assert await rows.get(Address("", "global", ""), "k", NOW) is not None
