"""A reader that waits for a run to begin: told by the commit itself, and by the log if it was not.

In virtual time, over the log in memory.
"""

from __future__ import annotations

import asyncio

from events.commit import encode_commit, new_event
from events.log import EventStore
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from loomcycle.feed import RunFeed
from loomcycle.live import LiveRuns
from tests.stories import opens
from tests.virtual_time import play

RUN = "r_ab00000000000001"
WAIT_S = 600.0


def feed_of(store: EventStore) -> RunFeed:
    return RunFeed(store, LiveRuns(store.live), "", RUN, process="p1")


async def begin(store: EventStore) -> None:
    """The first commit, without a word to anybody."""
    data, _, _, _ = encode_commit(
        run=RUN, c=1, prev="", epoch=1, writer="p2", first_n=1, ts=1,
        events=[new_event(event) for event in opens()],
    )  # fmt: skip
    await store.log.append(store.subjects.journal("", RUN), data)


def test_a_start_that_waits_for_minutes_hardly_asks_the_log() -> None:
    reads = 0

    async def count(client: str, operation: str) -> Fault | None:
        nonlocal reads
        reads += operation == "log.read"
        return None

    async def story() -> None:
        feed = feed_of(MemoryServer(count).connect("p1"))
        await feed.open(fresh=True)
        assert await feed.next(WAIT_S) == []
        feed.close()

    play(story)
    assert 1 < reads < 30


def test_a_first_commit_that_nobody_told_of_is_found_within_a_minute() -> None:
    async def story() -> float:
        store = MemoryServer().connect("p1")
        feed = feed_of(store)
        await feed.open(fresh=True)
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(feed.next(WAIT_S))
        await asyncio.sleep(WAIT_S / 6)
        began = loop.time()
        await begin(store)
        assert await waiting
        feed.close()
        return loop.time() - began

    assert play(story) < 60


def test_one_that_begins_at_once_is_found_within_a_second() -> None:
    async def story() -> float:
        store = MemoryServer().connect("p1")
        feed = feed_of(store)
        await feed.open(fresh=True)
        waiting = asyncio.create_task(feed.next(WAIT_S))
        await asyncio.sleep(0.2)
        await begin(store)
        assert await waiting
        feed.close()
        return asyncio.get_running_loop().time()

    assert play(story) < 1
