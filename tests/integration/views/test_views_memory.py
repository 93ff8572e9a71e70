"""What the views answer about memory."""

from __future__ import annotations

import pytest

from projections.views import Views
from tests.integration.views.world import (
    World,
)

pytestmark = pytest.mark.integration


async def test_memory_rows_follow_their_writes(world: World, views: Views) -> None:
    await world.remember("k", '{"a": 1}')
    await world.remember("gone", "1")
    await world.remember("k", "null", updated_at_ns=9)
    await world.remember("gone", None)
    await world.remember("k", "2", tenant="t2")
    await world.catch_up(views)
    row = await views.queries.memory_get("", "user", "u1", "k", now_ns=10)
    assert row is not None
    assert (row.value, row.created_ns, row.updated_ns, row.expires_ns) == ("null", 1, 9, None)
    assert await views.queries.memory_get("", "user", "u1", "gone", now_ns=10) is None
    assert await views.queries.memory_usage("", "user", "u1", now_ns=10) == (1, 5)
    scopes = await views.queries.memory_scopes("user", now_ns=10)
    assert [(s.tenant, s.key_count) for s in scopes] == [("", 1), ("t2", 1)]


async def test_expiry_is_decided_by_the_reader(world: World, views: Views) -> None:
    await world.remember("k", "1", expires_at_ns=100)
    await world.catch_up(views)
    get = views.queries.memory_get
    assert await get("", "user", "u1", "k", now_ns=99) is not None
    assert await get("", "user", "u1", "k", now_ns=100) is None
    rows, truncated = await views.queries.memory_list("", "user", "u1", limit=9, now_ns=100)
    assert (rows, truncated) == ([], False)


async def test_memory_is_listed_in_byte_order_with_a_literal_prefix(
    world: World, views: Views
) -> None:
    keys = ["a%", "a_b", "ab", "aé", "a\0z", "A", "b" * 80, "", "aé\U0001f600"]
    for key in keys:
        await world.remember(key, "1")
    await world.catch_up(views)

    async def listed(prefix: str, limit: int = 100) -> tuple[list[str], bool]:
        rows, truncated = await views.queries.memory_list(
            "", "user", "u1", prefix=prefix, limit=limit, now_ns=5
        )
        return [r.key for r in rows], truncated

    assert await listed("") == (sorted(keys, key=str.encode), False)
    assert await listed("a_") == (["a_b"], False)
    assert await listed("a%") == (["a%"], False)
    assert await listed("aé") == (["aé", "aé\U0001f600"], False)
    assert await listed("a", limit=6) == (["a\0z", "a%", "a_b", "ab", "aé", "aé\U0001f600"], False)
    assert (await listed("a", limit=5))[1]
