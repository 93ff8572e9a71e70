"""Seals of runs that are over do not stay, whoever died before deleting them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from events.commit import encode_commit, new_event
from events.log import EventStore
from events.memory_store import MemoryServer
from events.vocabulary import Event, RunFinished
from loomcycle import leftover_seals
from loomcycle.cluster import Cluster, Member
from loomcycle.journal import withdraw
from loomcycle.leftover_seals import ABANDONED_S, LOOKS, LeftoverSeals
from loomcycle.sweeper import Sweeper
from tests.stories import opens

DAY_NS = int(ABANDONED_S * 1e9)


@pytest.fixture
async def store() -> EventStore:
    return MemoryServer().connect("p")


async def seals_of(
    store: EventStore, process: str = "p", now_ns: Callable[[], int] = time.time_ns
) -> LeftoverSeals:
    return LeftoverSeals(store, await cluster_of(store, process), now_ns=now_ns)


async def cluster_of(store: EventStore, process: str) -> Cluster:
    cluster = Cluster(store, process, Member(slots=1), alone_at_boot=True)
    await cluster.start()
    return cluster


async def journal(store: EventStore, run_id: str, *events: Event, tenant: str = "t") -> None:
    """One commit with what a run began with and ``events``."""
    data, _, _, _ = encode_commit(
        run=run_id,
        c=1,
        prev="",
        epoch=1,
        writer="w",
        first_n=1,
        ts=1,
        events=[new_event(event) for event in [*opens(run=run_id), *events]],
    )
    await store.log.append(store.subjects.journal(tenant, run_id), data)


async def sealed(store: EventStore, *run_ids: str) -> list[str]:
    return [run_id for run_id in run_ids if await store.seals.get(run_id, "n") is not None]


async def test_seals_of_ended_runs_go_and_those_of_others_stay(store: EventStore) -> None:
    ended, withdrawn, alive, starting = (f"r_{n:016x}" for n in range(4))
    for run_id in (ended, withdrawn, alive, starting):
        await store.seals.put(run_id, "n", b"s3cret")
        await store.seals.put(run_id, "commit-1", b"s3cret")
    await journal(store, ended, RunFinished(status="completed"), tenant="some tenant")
    await withdraw(store, "", withdrawn, "queue timeout", writer="w", ts=1)
    await journal(store, alive)
    seals = await seals_of(store)
    assert await seals.sweep() == 2
    assert await sealed(store, ended, withdrawn, alive, starting) == [alive, starting]
    assert await seals.sweep() == 0


async def test_a_seal_whose_start_was_never_made_goes_after_a_day(store: EventStore) -> None:
    await store.seals.put("r_1", "n", b"s3cret")
    early = await seals_of(store, now_ns=lambda: time.time_ns() + DAY_NS // 2)
    assert await early.sweep() == 0
    late = await seals_of(store, now_ns=lambda: time.time_ns() + 2 * DAY_NS)
    assert await late.sweep() == 1
    assert await sealed(store, "r_1") == []


async def test_a_journal_that_cannot_be_read_keeps_its_seals(store: EventStore) -> None:
    await store.seals.put("r_1", "n", b"s3cret")
    await store.log.append(store.subjects.journal("t", "r_1"), b"\x00 not a commit")
    assert await (await seals_of(store)).sweep() == 0
    assert await sealed(store, "r_1") == ["r_1"]


async def test_few_are_looked_at_each_time_and_all_in_the_end(store: EventStore) -> None:
    runs = [f"r_{n:016x}" for n in range(2 * LOOKS + 10)]
    for run_id in runs:
        await store.seals.put(run_id, "n", b"s3cret")
    last = runs[-1]
    await journal(store, last, RunFinished(status="completed"))
    seals = await seals_of(store)
    assert [await seals.sweep() for _ in range(3)] == [0, 0, 1]
    await journal(store, runs[0], RunFinished(status="completed"))
    assert await seals.sweep() == 1
    assert await sealed(store, *runs) == runs[1:-1]


async def test_one_process_of_several_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover_seals, "EVERY_S", 0.001)
    looks: Counter[str] = Counter()
    looked_often = asyncio.Event()

    async def count(client: str, operation: str) -> None:
        if operation == "log.first":
            looks[client] += 1
            if looks[client] > 20:
                looked_often.set()

    server = MemoryServer(count)
    stores = [server.connect(name) for name in ("a", "b")]
    clusters = [await cluster_of(store, name) for store, name in zip(stores, "ab", strict=True)]
    await clusters[0]._renew()
    assert [cluster.leads() for cluster in clusters] == [True, False]
    work = [
        asyncio.create_task(LeftoverSeals(s, c, now_ns=time.time_ns).keep_sweeping())
        for s, c in zip(stores, clusters, strict=True)
    ]
    await asyncio.wait_for(looked_often.wait(), 5)
    assert looks["b"] == 0
    for task in work:
        task.cancel()


async def test_the_sweeper_keeps_doing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover_seals, "EVERY_S", 0.001)
    deleted = asyncio.Event()

    async def watch(client: str, operation: str) -> None:
        if operation == "log.purge:after":
            deleted.set()

    store = MemoryServer(watch).connect("p")
    await store.seals.put("r_1", "n", b"s3cret")
    await journal(store, "r_1", RunFinished(status="completed"))
    sweeper = Sweeper(
        store,
        _NoRuns(),
        await cluster_of(store, "p"),
        process="p",
        owns=lambda run: False,
        now_ns=time.time_ns,
    )
    sweeper.start()
    await asyncio.wait_for(deleted.wait(), 5)
    assert await sealed(store, "r_1") == []
    await sweeper.stop()


class _NoRuns:
    async def running(self) -> list[object]:
        return []
