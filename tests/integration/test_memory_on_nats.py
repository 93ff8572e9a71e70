"""Memory over a real nats-server: compare-and-set over a scope, several processes, recovery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from events.log import EventStore
from events.plan import RunPlan
from loomcycle.memory.store import RowStore
from loomcycle.tools.base import CallContext
from loomcycle.tools.memory import Memory

pytestmark = pytest.mark.integration

OpenStore = Callable[..., Awaitable[EventStore]]

NOW = 1_777_629_600_123_456_789
PLAN = RunPlan(agent="notes", provider="p", model="m", memory_scopes=("agent", "user"))


def tool_of(store: EventStore, **options: Any) -> Memory:
    return Memory(RowStore(store.log, store.subjects), **options)


async def call(
    tool: Memory, effect_id: str, op: str, *, since: int | None = None, **fields: Any
) -> Any:
    context = CallContext(
        run_id="r_1",
        session_id="s_1",
        agent_id="a_1",
        tenant="t",
        user_id="ada@example.com",
        user_tier="",
        effect_id=effect_id,
        plan=PLAN,
        started_ns=NOW,
        now_ns=NOW,
        recovering_since=since,
    )
    call_input = json.dumps({"op": op, "scope": "user", **fields}).encode()
    text, is_error, _ = await tool.call(call_input, context)
    return text if is_error else json.loads(text)


async def test_a_hundred_concurrent_incr_over_two_processes(open_store: OpenStore) -> None:
    tools = [tool_of(await open_store(name)) for name in ("a", "b")]
    results = await asyncio.gather(
        *(call(tools[n % 2], f"r_1.{n}", "incr", key="new key") for n in range(100))
    )
    assert sorted(result["value"] for result in results) == list(range(1, 101))
    for tool in tools:
        assert (await call(tool, "r_1.get", "get", key="new key"))["value"] == 100


async def test_concurrent_merges_and_deletes_of_two_processes_lose_nothing(
    open_store: OpenStore,
) -> None:
    tools = [tool_of(await open_store(name)) for name in ("a", "b")]
    await asyncio.gather(
        *(
            call(tools[n % 2], f"r_1.{n}", "merge", key="profile", value={f"f{n}": n})
            for n in range(40)
        )
    )
    merged = await call(tools[0], "r_1.get", "get", key="profile")
    assert merged["value"] == {f"f{n}": n for n in range(40)}
    answers = await asyncio.gather(
        *(call(tools[n % 2], f"r_1.d{n}", "delete", key="profile") for n in range(10))
    )
    assert sorted(answer["deleted"] for answer in answers) == [False] * 9 + [True]


async def test_each_process_reads_what_the_other_wrote(open_store: OpenStore) -> None:
    here, there = [tool_of(await open_store(name)) for name in ("a", "b")]
    for number in range(30):
        key = f"é.*.> {number} " + "k" * 100
        await call(here, f"r_1.{number}", "set", key=key, value=number)
        assert (await call(there, "r_1.get", "get", key=key))["value"] == number
    listed = await call(there, "r_1.list", "list")
    assert len(listed["entries"]) == 30


async def test_the_quota_is_exact_over_processes(open_store: OpenStore) -> None:
    tools = [tool_of(await open_store(name), max_scope_bytes=30) for name in ("a", "b", "c")]
    answers = await asyncio.gather(
        *(call(tools[n % 3], f"r_1.{n}", "set", key=f"{n:02}", value=1) for n in range(30))
    )
    assert answers.count({"ok": True}) == 10
    assert all(answer == {"ok": True} or "quota" in answer for answer in answers)


async def test_another_process_recovers_a_call_from_its_effect(open_store: OpenStore) -> None:
    first = await open_store("a")
    assert await call(tool_of(first), "r_1.7", "incr", key="k") == {"value": 1}
    await first.close()
    second = tool_of(await open_store("b"))
    assert await call(second, "r_1.8", "incr", key="k") == {"value": 2}
    assert await call(second, "r_1.7", "incr", key="k", since=0) == {"value": 1}
    assert (await call(second, "r_1.get", "get", key="k"))["value"] == 2


async def test_a_long_history_loads_in_a_new_process(open_store: OpenStore) -> None:
    writer = tool_of(await open_store("a"))
    await asyncio.gather(*(call(writer, f"r_1.{n}", "incr", key="k") for n in range(2500)))
    reader = tool_of(await open_store("b"))
    assert (await call(reader, "r_1.get", "get", key="k"))["value"] == 2500


async def test_a_value_over_the_servers_message_size_is_refused(open_store: OpenStore) -> None:
    tool = tool_of(await open_store("a"), max_value_bytes=0, max_scope_bytes=0)
    text = await call(tool, "r_1.1", "set", key="k", value="x" * 9_000_000)
    assert "nothing was stored" in text
    assert await call(tool, "r_1.2", "set", key="k", value=1) == {"ok": True}
