"""Which runs the sweeper wakes, and when it wakes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from events.log import EventStore, LogUnavailable
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from loomcycle.cluster import Cluster, Member
from loomcycle.sweeper import RunningRun, Sweeper
from loomcycle.wakes import read_wake, wake_data

NOW_NS = 1_800_000_000_000_000_000


@dataclass(frozen=True)
class LostRun:
    """A row of the view of running runs."""

    id: str
    owner: str = "dead"
    last_commit: int = 3
    last_commit_ns: int = NOW_NS
    last_seq: int = 7
    tenant: str = "t"


class Rows:
    def __init__(self, *runs: LostRun) -> None:
        self.runs: list[LostRun] = list(runs)

    async def running(self) -> Sequence[RunningRun]:
        return self.runs


async def sweeper_of(store: EventStore, rows: Rows, process: str = "p") -> Sweeper:
    cluster = Cluster(store, process, Member(slots=1), alone_at_boot=True)
    await cluster.start()
    return Sweeper(
        store, rows, cluster, process=process, owns=lambda run: False, now_ns=lambda: NOW_NS
    )


async def waking(store: EventStore) -> list[str]:
    """Runs of the wakes that can be taken now, one entry for each."""
    source = store.wakes.source()
    source.allow(100)
    found: list[str] = []
    while True:
        try:
            item = await asyncio.wait_for(source.get(), 0.01)
        except TimeoutError:
            return sorted(found)
        found.append(store.subjects.parse(item.subject).run_id)


async def test_a_run_whose_owner_is_gone_is_woken_and_the_wake_tells_what_was_seen() -> None:
    store = MemoryServer().connect("p")
    sweeper = await sweeper_of(store, Rows(LostRun("r_1"), LostRun("r_2", owner="p")))
    assert await sweeper.sweep() == 1
    source = store.wakes.source()
    source.allow(1)
    item = await source.get()
    assert store.subjects.parse(item.subject).run_id == "r_1"
    assert read_wake(item.data).seen == (3, 7)


async def hold_a_wake_and_die(server: MemoryServer) -> None:
    """A wake of r_1 is in the hand of a worker that is gone."""
    dead = server.connect("dead")
    hand = dead.wakes.source()
    hand.allow(1)
    await dead.wakes.post("r_1", "an earlier owner died", wake_data("t"))
    await hand.get()
    server.disconnect("dead")


async def test_a_wake_in_the_hand_of_the_dead_worker_is_not_waited_for() -> None:
    server = MemoryServer()
    store = server.connect("p")
    await hold_a_wake_and_die(server)
    assert await store.wakes.waiting() == {"r_1"}
    sweeper = await sweeper_of(store, Rows(LostRun("r_1")))
    assert await sweeper.sweep() == 1
    assert await waking(store) == ["r_1"]


async def test_a_run_with_a_wake_is_woken_once_however_often_it_is_looked_at() -> None:
    store = MemoryServer().connect("p")
    rows = Rows(LostRun("r_1"))
    sweeper = await sweeper_of(store, rows)
    assert await sweeper.sweep() == 1
    assert await sweeper.sweep() == 0
    assert await waking(store) == ["r_1"]


async def test_a_lost_wake_is_posted_again() -> None:
    store = MemoryServer().connect("p")
    sweeper = await sweeper_of(store, Rows(LostRun("r_1")))
    await sweeper.sweep()
    await store.wakes.clear()
    assert await sweeper.sweep() == 1
    assert await waking(store) == ["r_1"]


async def test_a_run_that_moved_and_was_lost_again_is_woken_again() -> None:
    store = MemoryServer().connect("p")
    rows = Rows(LostRun("r_1"))
    sweeper = await sweeper_of(store, rows)
    await sweeper.sweep()
    rows.runs = [LostRun("r_1", owner="dead too", last_commit=4)]
    assert await sweeper.sweep() == 1
    assert await waking(store) == ["r_1", "r_1"]


async def test_several_sweepers_wake_a_run_once() -> None:
    server = MemoryServer()
    stores = [server.connect(name) for name in "pqr"]
    for store, process in zip(stores, "pqr", strict=True):
        await (await sweeper_of(store, Rows(LostRun("r_1")), process)).sweep()
    assert await waking(stores[0]) == ["r_1"]


async def test_what_could_not_be_posted_is_posted_next_time() -> None:
    refuse = False

    async def faults(client: str, operation: str) -> Fault | None:
        return Fault.FAIL_BEFORE if refuse and operation == "wakes.post" else None

    server = MemoryServer(faults)
    store = server.connect("p")
    await hold_a_wake_and_die(server)
    refuse = True
    sweeper = await sweeper_of(store, Rows(LostRun("r_1")))
    with pytest.raises(LogUnavailable):
        await sweeper.sweep()
    refuse = False
    assert await sweeper.sweep() == 1
    assert await waking(store) == ["r_1"]


async def test_it_stops_although_it_was_told_to_hurry_in_the_same_moment() -> None:
    sweeper = await sweeper_of(MemoryServer().connect("p"), Rows())
    sweeper.start()
    for _ in range(20):
        await asyncio.sleep(0)
    sweeper.hurry()
    async with asyncio.timeout(5):
        await sweeper.stop()
