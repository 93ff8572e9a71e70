"""Which parked runs the sweeper wakes, how often, and what becomes of abandoned children."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from events.log import EventStore, LogUnavailable
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from loomcycle.cluster import Cluster, Member
from loomcycle.parked import REPEAT_S, DueRun, ParkedRuns
from loomcycle.wakes import read_wake, wake_data
from projections.rows import Due

SECOND_NS = 1_000_000_000


def due(run: str, cause: str = "inbox", mark: int = 9, last_seq: int = 7) -> Due:
    return Due(id=run, tenant="t", last_commit=3, last_seq=last_seq, cause=cause, mark=mark)


@dataclass
class Rows:
    """The view, the clock, and who was cancelled."""

    parked: list[Due] = field(default_factory=list)
    abandoned: list[Due] = field(default_factory=list)
    now_ns: int = 1_800_000_000 * SECOND_NS
    paused: bool = False
    cancelled: list[str] = field(default_factory=list)

    async def overdue(
        self, now_ns: int, *, paused: bool
    ) -> tuple[Sequence[DueRun], Sequence[DueRun]]:
        assert paused == self.paused
        return self.parked, self.abandoned

    async def cancel(self, tenant: str, run_id: str) -> None:
        self.cancelled.append(run_id)

    def later(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


async def sweep_of(store: EventStore, rows: Rows, process: str = "p") -> ParkedRuns:
    cluster = Cluster(store, process, Member(slots=1), alone_at_boot=True)
    await cluster.start()
    return ParkedRuns(
        store,
        rows,
        cluster,
        paused=lambda: rows.paused,
        cancel=rows.cancel,
        now_ns=lambda: rows.now_ns,
    )


async def woken(store: EventStore) -> list[tuple[str, bool]]:
    """(run, whether it is to look for itself) of the wakes that can be taken now."""
    source = store.wakes.source()
    source.allow(100)
    found: list[tuple[str, bool]] = []
    while True:
        try:
            item = await asyncio.wait_for(source.get(), 0.01)
        except TimeoutError:
            await source.close()
            return sorted(found)
        run = store.subjects.parse(item.subject).run_id
        found.append((run, read_wake(item.data).check))
        item.ack()


async def test_a_due_run_is_woken_once_and_children_make_it_look() -> None:
    store = MemoryServer().connect("p")
    rows = Rows([due("r_1"), due("r_2", "children", 1), due("r_2", "inbox")])
    sweep = await sweep_of(store, rows)
    assert await sweep.sweep() == 2
    assert await sweep.sweep() == 0
    assert await woken(store) == [("r_1", False), ("r_2", True)]


async def test_a_queued_wake_is_trusted_once() -> None:
    store = MemoryServer().connect("p")
    rows = Rows([due("r_1")])
    sweep = await sweep_of(store, rows)
    await store.wakes.post("r_1", "a steer", wake_data("t"))
    assert await sweep.sweep() == 0
    rows.later(REPEAT_S)
    assert await sweep.sweep() == 1, "it may be in a dead worker's hand"


async def test_a_queued_wake_is_not_believed_when_a_process_has_gone() -> None:
    server = MemoryServer()
    store = server.connect("p")
    dying = server.connect("dying")
    other = Cluster(dying, "dying", Member(slots=1), alone_at_boot=True)
    await other.start()
    rows = Rows()
    sweep = await sweep_of(store, rows)
    hand = dying.wakes.source()
    hand.allow(1)
    await store.wakes.post("r_1", "a steer", wake_data("t"))
    await hand.get()
    rows.parked = [due("r_1")]
    assert await sweep.sweep() == 0, "its wake is queued"
    await other.stop()
    await sweep._cluster.look()
    assert await sweep.sweep() == 1, "but in the hand of the dead"
    assert await sweep.sweep() == 0, "told, and nobody else has gone"
    assert await woken(store) == [("r_1", False)]


async def test_a_process_that_goes_is_not_forgotten_when_its_wakes_cannot_be_posted() -> None:
    refuse = True

    async def faults(client: str, operation: str) -> Fault | None:
        refused = refuse and client == "p" and operation == "wakes.post"
        return Fault.FAIL_BEFORE if refused else None

    server = MemoryServer(faults)
    store, dying = server.connect("p"), server.connect("dying")
    other = Cluster(dying, "dying", Member(slots=1), alone_at_boot=True)
    await other.start()
    sweep = await sweep_of(store, Rows([due("r_1")]))
    await dying.wakes.post("r_1", "a steer", wake_data("t"))
    assert await sweep.sweep() == 0
    await other.stop()
    await sweep._cluster.look()
    with pytest.raises(LogUnavailable):
        await sweep.sweep()
    refuse = False
    assert await sweep.sweep() == 1


async def test_a_wake_that_moves_nothing_is_repeated_ever_less() -> None:
    store = MemoryServer().connect("p")
    rows = Rows([due("r_1")])
    sweep = await sweep_of(store, rows)
    posts = []
    for second in range(60):
        if await sweep.sweep():
            posts.append(second)
        rows.later(1)
    assert posts == [0, 4, 12, 28]


@pytest.mark.parametrize("news", [due("r_1", mark=10), due("r_1", last_seq=20)])
async def test_news_is_told_at_once_however_often_the_run_was_told_before(news: Due) -> None:
    store = MemoryServer().connect("p")
    rows = Rows([due("r_1")])
    sweep = await sweep_of(store, rows)
    for _ in range(3):
        await sweep.sweep()
        rows.later(REPEAT_S)
    await woken(store)
    rows.parked = [news]
    assert await sweep.sweep() == 1
    assert await woken(store) == [("r_1", False)]


async def test_several_processes_wake_a_run_once() -> None:
    server = MemoryServer()
    for process in "pqr":
        store = server.connect(process)
        await (await sweep_of(store, Rows([due("r_1")]), process)).sweep()
    assert await woken(store) == [("r_1", False)]


async def test_what_could_not_be_posted_is_posted_next_time() -> None:
    refuse = True

    async def faults(client: str, operation: str) -> Fault | None:
        return Fault.FAIL_BEFORE if refuse and operation == "wakes.post" else None

    store = MemoryServer(faults).connect("p")
    sweep = await sweep_of(store, Rows([due("r_1")]))
    with pytest.raises(LogUnavailable):
        await sweep.sweep()
    refuse = False
    assert await sweep.sweep() == 1


async def test_a_child_is_cancelled_when_its_parents_own_cancel_got_lost() -> None:
    store = MemoryServer().connect("p")
    rows = Rows(abandoned=[due("r_child", "parent", 0)])
    sweep = await sweep_of(store, rows)
    await sweep.sweep()
    assert rows.cancelled == [], "the parent's cancel may be under way"
    rows.later(REPEAT_S)
    await sweep.sweep()
    await sweep.sweep()
    assert rows.cancelled == ["r_child"]


async def test_one_process_of_all_cancels_abandoned_children() -> None:
    server = MemoryServer()
    cancelled = []
    rows = [Rows(abandoned=[due("r_child", "parent", 0)]) for _ in "pqr"]
    sweeps = [
        await sweep_of(server.connect(process), row, process)
        for process, row in zip("pqr", rows, strict=True)
    ]
    for sweep, row in zip(sweeps, rows, strict=True):
        await sweep._cluster.look()
        await sweep.sweep()
        row.later(REPEAT_S)
        await sweep.sweep()
        cancelled += row.cancelled
    assert cancelled == ["r_child"]
