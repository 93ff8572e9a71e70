"""Queues lost and journals damaged: runs finish, damage is named, nothing wrong is folded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from events.embedded import EmbeddedServer
from events.log import EventStore, Message
from events.streams import stream_of
from tests.bench.deployment import Deployment, eventually, wait_for
from tests.chaos.clients import Clients
from tests.chaos.invariants import settle, violations
from tests.chaos.scene import all_kept, command, complete, deployment, long_runs, raw_api

pytestmark = pytest.mark.integration

Edit = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as made:
        yield made


async def test_runs_finish_though_queues_timers_and_views_are_deleted_again_and_again(
    made: Deployment,
) -> None:
    server = made.start()
    clients = Clients(lambda: [server.port], seed=3)
    clients.start(8)
    store = await made.store()
    for _ in range(12):
        reached = len(clients.runs) + 2
        await eventually(partial(have_begun, clients, reached), "more runs", 20.0)
        await store.starts.clear()
        await store.wakes.clear()
        await store.timers.clear()
        for file in (made.data / "views").iterdir():
            with suppress(OSError):
                file.unlink()
    await store.close()
    assert await all_kept(made, clients) == []
    assert (await asyncio.to_thread(command, made, "projections", "verify")).returncode == 0


def have_begun(clients: Clients, count: int) -> bool:
    return len(clients.runs) >= count


def flipped(stored: list[bytes]) -> list[bytes]:
    """One character of a body is another."""
    return [*stored[:2], stored[2][:-8] + stored[2][-8:].swapcase(), *stored[3:]]


def dropped(stored: list[bytes]) -> list[bytes]:
    return [*stored[:2], *stored[3:]]


def swapped(stored: list[bytes]) -> list[bytes]:
    return [*stored[:2], stored[3], stored[2], *stored[4:]]


def doubled(stored: list[bytes]) -> list[bytes]:
    return [*stored[:3], stored[2], *stored[3:]]


def cut(stored: list[bytes]) -> list[bytes]:
    """The middle is gone: the beginning and the last commit are there."""
    return [stored[0], stored[-1]]


def hole(stored: list[bytes]) -> list[bytes]:
    """Like dropped, but nothing else is touched: the rest keeps its sequences."""
    return dropped(stored)


EDITS = [hole, flipped, dropped, swapped, doubled, cut]


async def edit_journal(made: Deployment, store: EventStore, run_id: str, edit: Edit) -> int:
    """Store another journal in the place of a run's; the first sequence that is wrong."""
    subject = store.subjects.journal("", run_id)
    messages: list[Message] = await store.log.read(subject)
    stored = [message.data for message in messages]
    changed = edit(stored)
    first = next(i for i, (a, b) in enumerate(zip(stored, changed, strict=False)) if a != b)
    stream = f"loom-{stream_of(store.subjects, subject).name}"
    async with raw_api(made) as api:
        if edit is hole:
            assert await api.delete_message(stream, messages[first].seq)
            return messages[first + 1].seq
        for message in messages[first:]:
            assert await api.delete_message(stream, message.seq)
    return next(iter([await store.log.append(subject, data) for data in changed[first:]]))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
async def test_verify_names_the_sequence_of_a_damaged_commit(made: Deployment, edit: Edit) -> None:
    server = made.start()
    clients = Clients(lambda: [server.port], seed=4, agents=["steps"])
    await clients.start_one_each(1, calls=2)
    await clients.finish()
    run_id, intact = clients.runs[0].run_id, await asyncio.to_thread(complete, server)
    store = await made.store()
    wrong = await edit_journal(made, store, run_id, edit)
    await store.close()
    refuted = await asyncio.to_thread(command, made, "replay", "verify", run_id)
    assert refuted.returncode == 1
    assert f"sequence {wrong}" in refuted.stdout + refuted.stderr
    proven = await asyncio.to_thread(command, made, "replay", "verify", intact)
    assert proven.returncode == 0, proven.stdout + proven.stderr


@pytest.mark.parametrize("edit", [hole, flipped, swapped], ids=lambda edit: edit.__name__)
async def test_recovery_leaves_a_damaged_run_alone_and_names_the_sequence(
    made: Deployment, edit: Edit
) -> None:
    servers = [made.start()]
    victims = Clients(lambda: [server.port for server in servers], seed=5, agents=["long"])
    await victims.start_one_each(1, calls=4)
    run_id = victims.runs[0].run_id
    async with long_runs(servers, 3) as clients:
        await victims.abandon()
        await asyncio.to_thread(made.kill_everything)
        wrong = await while_stopped(made, run_id, edit)
        servers[0] = await asyncio.to_thread(lambda: made.start(port=servers[0].port))
        await asyncio.to_thread(wait_for, lambda: f"sequence {wrong}" in said(made), "a word", 20.0)
        await clients.finish()
        store = await made.store()
        log = await settle(store, limit_s=1.0)
        found = await violations(store, log, clients.runs)
        assert [text for text in found if run_id not in text and f"{wrong}" not in text] == []
        written = len(await store.log.read(store.subjects.journal("", run_id)))
        await asyncio.to_thread(complete, servers[0])
        assert len(await store.log.read(store.subjects.journal("", run_id))) == written
        await store.close()


def said(made: Deployment) -> str:
    """What an operator can read of damage: the server's log, and the views' problems."""
    status = command(made, "projections", "status")
    return made.servers[-1].tail(500) + status.stdout + status.stderr


async def while_stopped(made: Deployment, run_id: str, edit: Edit) -> int:
    """:func:`edit_journal` with only nats-server running."""
    embedded = await EmbeddedServer.start(made.data)
    store = await made.store()
    try:
        return await edit_journal(made, store, run_id, edit)
    finally:
        await store.close()
        await embedded.stop()
