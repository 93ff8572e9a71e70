"""How a process learns of a pause, and what it tells the others while it drains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from events.control import PauseChanged, RuntimeState, decode, encode, pause_subject
from events.log import EventStore
from events.memory_store import MemoryServer
from loomcycle.cluster import Cluster, Member
from loomcycle.pause import Pause, Word


class Runs:
    """The runs of a process: so many advance, and some park when they are told to."""

    def __init__(self, unparked: int) -> None:
        self.unparked = unparked
        self.told: list[str] = []

    def pause(self, *, force: bool) -> int:
        self.told.append("force" if force else "pause")
        return 1 if force and self.unparked else 0

    def resume(self) -> None:
        self.told.append("resume")


@asynccontextmanager
async def process(
    server: MemoryServer, name: str, unparked: int = 0
) -> AsyncIterator[tuple[Pause, Cluster, Runs]]:
    store = server.connect(name)
    cluster = Cluster(store, name, Member(slots=1), alone_at_boot=True)
    pause = Pause(store, cluster, now_ns=time.time_ns)
    runs = pause.runs = Runs(unparked)
    await pause.open()
    await cluster.start()
    pause.start()
    try:
        yield pause, cluster, runs
    finally:
        await pause.stop()
        await cluster.stop()


async def say(store: EventStore, state: RuntimeState, until_ns: int = 0) -> int:
    word = PauseChanged(id=state, state=state, at_ns=1, until_ns=until_ns)
    return await store.log.append(pause_subject(store.subjects), encode(word))


async def becomes(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)


async def says(cluster: Cluster, expected: set[tuple[int, int]]) -> None:
    """Wait until the leases tell this of (last word heard, unparked runs)."""

    async def told() -> bool:
        return {(m.control, m.unparked) for m in (await cluster.look()).values()} == expected

    async with asyncio.timeout(5):
        while not await told():  # noqa: ASYNC110  (leases have no event)
            await asyncio.sleep(0.001)


async def test_every_process_hears_a_word_and_says_so_in_its_lease_at_once() -> None:
    server = MemoryServer()
    async with AsyncExitStack() as stack:
        (one, cluster, runs), (other, _, _) = [
            await stack.enter_async_context(process(server, name, 2)) for name in "pq"
        ]
        assert not one.paused()
        began = time.monotonic()
        seq = await say(server.connect("operator"), "pausing", time.time_ns() + 10**12)
        async with asyncio.timeout(5):
            await one.reaches(seq)
            await other.reaches(seq)
        assert one.paused()
        assert other.paused()

        await says(cluster, {(seq, 2)})
        assert runs.told == ["pause"]
        runs.unparked = 0
        await says(cluster, {(seq, 2), (seq, 0)})
        assert time.monotonic() - began < 0.9, "no lease waited for its time"


async def test_calls_have_until_the_runtime_is_paused() -> None:
    server = MemoryServer()
    store = server.connect("operator")
    async with process(server, "p", 1) as (pause, cluster, runs):
        resumed: list[int] = []
        pause.resumed = lambda: resumed.append(1)
        await say(store, "pausing", time.time_ns() + 10**12)
        paused = await say(store, "paused")
        await becomes(lambda: pause.seq == paused)
        assert runs.told[-1] == "force"
        await becomes(lambda: cluster.members["p"].forced == 1)
        assert not resumed
        running = await say(store, "running")
        await becomes(lambda: pause.seq == running)
        assert not pause.paused()
        assert (runs.told[-1], resumed) == ("resume", [1])


async def test_a_process_that_starts_knows_of_the_pause_before_it_takes_anything() -> None:
    server = MemoryServer()
    await say(server.connect("operator"), "paused")
    store = server.connect("p")
    pause = Pause(
        store, Cluster(store, "p", Member(slots=1), alone_at_boot=True), now_ns=time.time_ns
    )
    await pause.open()
    assert pause.paused()


async def test_what_is_not_readable_changes_nothing() -> None:
    server = MemoryServer()
    store = server.connect("operator")
    async with process(server, "p") as (pause, _, _):
        await store.log.append(pause_subject(store.subjects), b'{"type":"of a later version"}')
        seq = await say(store, "paused")
        await becomes(lambda: pause.seq == seq)
        assert pause.paused()


def test_nobody_drains_for_ever() -> None:
    pausing = Word(1, PauseChanged(id="x", state="pausing", at_ns=1, until_ns=100))
    assert pausing.state(100) == "pausing"
    assert pausing.state(101) == "paused"
    assert Word(0, None).state(101) == "running"
    assert decode(encode(pausing.changed)) == pausing.changed
