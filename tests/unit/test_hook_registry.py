"""Every process knows the same hooks in the same order, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from events.hooks import HookRegistered, decode, encode
from events.log import EventStore, LogUnavailable, OutcomeUnknown
from events.memory_store import Fault, MemoryServer
from events.state import FutureState, UnreadableState
from loomcycle.hooks import registry as registry_module
from loomcycle.hooks.registry import HookRegistry


def hook(name: str, ident: str = "", **fields: Any) -> HookRegistered:
    given = {
        "id": ident or f"hook_{name}",
        "owner": "app",
        "phase": "pre",
        "callback_url": "http://127.0.0.1/",
        "registered_at_ns": 1,
    }
    return HookRegistered(name=name, **given | fields)  # type: ignore[arg-type]


def ids(registry: HookRegistry) -> list[str]:
    return [hook.id for hook in registry.matching("pre", "acme", "writer", "Read")]


@asynccontextmanager
async def running(store: EventStore) -> AsyncIterator[HookRegistry]:
    registry = HookRegistry(store)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (another process' memory has no event)
            await asyncio.sleep(0.001)


async def test_a_registration_counts_here_at_once() -> None:
    async with running(MemoryServer().connect("p_1")) as registry:
        assert not registry.any
        await registry.register(hook("a"))
        assert registry.any
        assert ids(registry) == ["hook_a"]


async def test_registered_again_a_hook_keeps_its_place_and_changes_its_id() -> None:
    async with running(MemoryServer().connect("p_1")) as registry:
        for name in ("a", "b", "c"):
            await registry.register(hook(name))
        await registry.register(hook("a", "hook_new"))
        assert ids(registry) == ["hook_new", "hook_b", "hook_c"]
        assert registry.with_id("hook_a") is None
        assert await registry.delete(hook("a", "hook_new"))
        await registry.register(hook("a", "hook_newer"))
        assert ids(registry) == ["hook_b", "hook_c", "hook_newer"]


async def test_namesakes_of_other_tenants_and_owners_are_other_hooks() -> None:
    async with running(MemoryServer().connect("p_1")) as registry:
        await registry.register(hook("a", "hook_1"))
        await registry.register(hook("a", "hook_2", tenant="acme"))
        await registry.register(hook("a", "hook_3", owner="b" * 300))
        await registry.register(hook("a", "hook_4", tenant="other"))
        assert ids(registry) == ["hook_1", "hook_2", "hook_3"]


async def test_a_hook_that_was_replaced_meanwhile_is_not_deleted() -> None:
    server = MemoryServer()
    async with running(server.connect("p_1")) as one, running(server.connect("p_2")) as two:
        await one.register(hook("a"))
        await two.register(hook("a", "hook_new"))
        assert not await one.delete(hook("a"))
        await one.catch_up()
        assert ids(one) == ["hook_new"]


async def test_other_processes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "CHECK_S", 60.0)
    server = MemoryServer()
    async with running(server.connect("p_1")) as one, running(server.connect("p_2")) as two:
        await one.register(hook("a"))
        await until(lambda: ids(two) == ["hook_a"])
        await two.delete(hook("a"))
        await until(lambda: not one.any)


async def test_a_lost_message_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "CHECK_S", 0.01)
    server = MemoryServer()
    silent = server.connect("p_1")
    async with running(server.connect("p_2")) as two:
        await silent.log.append(silent.subjects.state("hook", "", "app", "a"), encode(hook("a")))
        await until(lambda: two.any)


async def test_hooks_outlive_their_process_with_their_ids_and_order() -> None:
    server = MemoryServer()
    async with running(server.connect("p_1")) as registry:
        for name in ("b", "a"):
            await registry.register(hook(name))
    async with running(server.connect("p_2")) as registry:
        assert ids(registry) == ["hook_b", "hook_a"]


async def test_a_log_that_was_put_back_is_read_anew() -> None:
    server = MemoryServer()
    store = server.connect("p_1")
    async with running(store) as registry:
        await registry.register(hook("a"))
        await registry.register(hook("b"))
        server.drop("STATE", 2)
        await registry.catch_up()
        assert ids(registry) == ["hook_a"]


@pytest.mark.parametrize("how", [Fault.UNKNOWN_STORED, Fault.UNKNOWN_LOST, Fault.DOUBLE])
async def test_an_answer_of_the_log_that_is_lost_changes_nothing(how: Fault) -> None:
    strikes = [how]

    async def faults(client: str, operation: str) -> Fault | None:
        return strikes.pop() if operation == "log.append" and strikes else None

    async with running(MemoryServer(faults=faults).connect("p_1")) as registry:
        await registry.register(hook("a"))
        assert ids(registry) == ["hook_a"]
        strikes.append(how)
        assert await registry.delete(hook("a"))
        assert not registry.any


async def test_without_the_log_nothing_is_promised() -> None:
    async def faults(client: str, operation: str) -> Fault | None:
        return away[0] if operation == "log.append" else None

    away: list[Fault | None] = [Fault.FAIL_BEFORE]
    async with running(MemoryServer(faults=faults).connect("p_1")) as registry:
        with pytest.raises(LogUnavailable):
            await registry.register(hook("a"))
        away[0] = Fault.UNKNOWN_LOST
        with pytest.raises(OutcomeUnknown):
            await registry.register(hook("a"))
        assert not registry.any


async def test_what_cannot_be_read_is_left_out() -> None:
    store = MemoryServer().connect("p_1")
    subject = store.subjects.state("hook", "", "app", "x")
    for data in (b"garbage", b"{}", b'{"type":"hook.moved"}'):
        await store.log.append(subject, data)
    async with running(store) as registry:
        await registry.register(hook("a"))
        assert ids(registry) == ["hook_a"]


def test_an_event_of_a_newer_version_is_no_hook() -> None:
    assert decode(encode(hook("a"))) == hook("a")
    assert decode(b'{"type":"hook.moved","v":9,"must_understand":false}') is None
    for data in (b'{"type":"hook.moved"}', b'{"type":"hook.registered","v":2}'):
        with pytest.raises(FutureState):
            decode(data)
    for data in (b"", b"[]", b"{}", b'{"type":"hook.registered"}', b"\xff"):
        with pytest.raises(UnreadableState):
            decode(data)
