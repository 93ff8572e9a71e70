"""Timers that are due become wakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest_asyncio

from events.log import EventStore
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from loomcycle.timers import DueTimers
from loomcycle.wakes import PARK_TIMER, read_wake, wake_data


class Faulty:
    """A log that refuses a number of wakes."""

    def __init__(self) -> None:
        self.refuses = 0
        self.server = MemoryServer(self._fault)
        self.store = self.server.connect("p")

    async def _fault(self, client: str, operation: str) -> Fault | None:
        if operation == "wakes.post" and self.refuses:
            self.refuses -= 1
            return Fault.FAIL_BEFORE
        return None


@pytest_asyncio.fixture
async def log() -> AsyncIterator[Faulty]:
    log = Faulty()
    timers = DueTimers(log.store)
    timers.start()
    yield log
    await timers.stop()


async def next_wake(store: EventStore) -> tuple[str, str]:
    """(run, tenant) of the next wake."""
    source = store.wakes.source()
    source.allow(1)
    async with asyncio.timeout(5):
        item = await source.get()
    item.ack()
    await source.close()
    return store.subjects.parse(item.subject).run_id, read_wake(item.data).tenant


async def test_a_due_timer_wakes_its_run_at_once(log: Faulty) -> None:
    soon = time.time_ns() + 5_000_000
    await log.store.timers.set(PARK_TIMER, "r_1", soon, wake_data("acme"))
    assert await next_wake(log.store) == ("r_1", "acme")
    assert time.time_ns() - soon < 500_000_000
    assert not log.server.due.stream.counts(log.store.subjects.any("due"))


async def test_a_timer_whose_wake_could_not_be_posted_comes_again(log: Faulty) -> None:
    log.refuses = 1
    await log.store.timers.set(PARK_TIMER, "r_1", time.time_ns(), wake_data("t"))
    assert await next_wake(log.store) == ("r_1", "t")


async def test_many_timers_at_the_same_time_all_wake_their_runs(log: Faulty) -> None:
    now = time.time_ns()
    for n in range(40):
        await log.store.timers.set(PARK_TIMER, f"r_{n}", now, wake_data("t"))
    assert {(await next_wake(log.store))[0] for _ in range(40)} == {f"r_{n}" for n in range(40)}


async def test_a_timer_of_an_unknown_kind_is_left_to_others(log: Faulty) -> None:
    await log.store.timers.set("newer", "r_1", time.time_ns(), b"")
    await log.store.timers.set(PARK_TIMER, "r_2", time.time_ns(), wake_data("t"))
    assert (await next_wake(log.store))[0] == "r_2"
    assert log.server.due.stream.counts(log.store.subjects.any("due")) == {
        log.store.subjects.due("newer", "r_1"): 1
    }
