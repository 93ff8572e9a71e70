"""What the JetStream store promises while its server hangs, dies and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from events.embedded import EmbeddedServer
from events.log import EventStore, LogFull, LogUnavailable, OutcomeUnknown, QueueFull
from events.nats_api import Api
from events.nats_link import open_link
from events.nats_store import connect

pytestmark = pytest.mark.integration

T = TypeVar("T")

RUN = "r_0000000000000001"


class Outage:
    """A server that this test may freeze and kill, and stores on it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.stores: list[EventStore] = []

    async def store(self, name: str = "a", timeout_s: float = 0.5) -> EventStore:
        store = await connect(
            self.server.url,
            token=self.server.token,
            master_key=b"k" * 32,
            name=name,
            timeout_s=timeout_s,
            ack_wait_s=1.0,
        )
        self.stores.append(store)
        return store

    def freeze(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was killed, and is not up again
            os.kill(self.server.pid, signal.SIGCONT)

    async def kill(self) -> None:
        """Kill the server and wait until it was started again."""
        before = self.server.pid
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: self.server.pid != before)


@pytest_asyncio.fixture
async def outage(tmp_path: Path) -> AsyncIterator[Outage]:
    outage = Outage(await EmbeddedServer.start(tmp_path))
    watching = asyncio.create_task(outage.server.watch())
    yield outage
    outage.thaw()
    for store in outage.stores:
        await store.close()
    await outage.server.stop()
    await watching


async def eventually(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def succeeds(action: Callable[[], Awaitable[T]], limit_s: float = 10.0) -> T:
    """Repeat an action until the log is there again."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return await action()
        except LogUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


def journal(store: EventStore, run_id: str = RUN) -> str:
    return store.subjects.journal("t", run_id)


async def test_no_answer_in_time_means_outcome_unknown(outage: Outage) -> None:
    store = await outage.store(timeout_s=0.3)
    outage.freeze()
    since = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        await store.log.append(journal(store), b"late")
    assert 0.25 < time.monotonic() - since < 1.5
    with pytest.raises(LogUnavailable):
        await store.log.last(journal(store))
    with pytest.raises(LogUnavailable):
        await store.log.read(journal(store))
    outage.thaw()
    last = await succeeds(lambda: store.log.last(journal(store)))
    assert last is not None
    assert last.data == b"late"  # stored after its writer gave up: unknown means unknown


async def test_a_broken_connection_fails_what_waits_at_once(outage: Outage) -> None:
    store = await outage.store(timeout_s=30)
    outage.freeze()
    appending = asyncio.create_task(store.log.append(journal(store), b"?"))
    await asyncio.sleep(0.05)
    os.kill(outage.server.pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(appending, 5)


async def test_an_append_refused_while_disconnected_is_never_sent_later(outage: Outage) -> None:
    store = await outage.store()
    await store.log.append(journal(store), b"before")
    before = outage.server.pid
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: not store.connected())
    refused = 0
    while not store.connected():
        try:
            await store.log.append(journal(store), b"refused")
        except LogUnavailable:
            refused += 1
        await asyncio.sleep(0.002)
    assert refused > 0
    await succeeds(lambda: store.log.append(journal(store), b"after"))
    messages = await store.log.read(journal(store))
    assert [m.data for m in messages] == [b"before", b"after"]


async def test_a_tail_goes_on_over_outages_without_gap_or_repetition(outage: Outage) -> None:
    store, reader = await outage.store("a"), await outage.store("b")
    seen: list[int] = []

    async def follow() -> None:
        async for batch in reader.log.tail("RUNS-0"):
            seen.extend(m.seq for m in batch)

    async def write() -> None:
        while True:
            try:
                await store.log.append(journal(store), b"x" * 200)
            except (LogUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.005)

    following, writing = asyncio.create_task(follow()), asyncio.create_task(write())
    for _ in range(3):
        reached = len(seen) + 100
        await eventually(lambda reached=reached: len(seen) >= reached)  # type: ignore[misc]
        await outage.kill()
    reached = len(seen) + 100
    await eventually(lambda: len(seen) >= reached)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    stored = [m.seq for m in await succeeds(lambda: store.log.read(journal(store)))]
    await eventually(lambda: len(seen) >= len(stored))
    following.cancel()
    assert seen == stored


async def test_queues_and_timers_exist_again_after_the_server_was_killed(outage: Outage) -> None:
    store = await outage.store()
    starts, wakes, due = store.starts.source(), store.wakes.source(), store.timers.due()
    for source in (starts, wakes, due):
        source.allow(3)
    await store.starts.limit(2, 1)
    await store.starts.post("t", "u", "r_1", b"first life")
    (await asyncio.wait_for(starts.get(), 5)).ack()
    await outage.kill()
    await succeeds(lambda: store.starts.post("t", "u", "r_2", b"second life"))
    await succeeds(lambda: store.wakes.post("r_3", "c", b"wake"))
    await succeeds(lambda: store.timers.set("k", "i", time.time_ns(), b"timer"))
    for source, data in ((starts, b"second life"), (wakes, b"wake"), (due, b"timer")):
        item = await asyncio.wait_for(source.get(), 5)
        assert item.data == data
        item.ack()


async def test_bounds_of_the_start_queue_survive_the_server(outage: Outage) -> None:
    store = await outage.store()
    await store.starts.limit(1, 0)
    await outage.kill()
    await succeeds(lambda: store.starts.post("t", "u", "r_1", b""))
    with pytest.raises(QueueFull):
        await succeeds(lambda: store.starts.post("t", "u", "r_2", b""))


async def test_nobody_is_judged_dead_right_after_a_restart(outage: Outage) -> None:
    store = await outage.store()
    assert await store.leases.acquire("n", "a")
    await outage.kill()
    assert await succeeds(lambda: store.leases.acquire("n", "a"))
    assert not await store.leases.settled()


async def test_followers_are_subscribed_again_after_an_outage(outage: Outage) -> None:
    store = await outage.store()
    got: list[bytes] = []
    await store.live.follow(RUN, got.append)
    await outage.kill()
    await eventually(store.connected)

    def heard() -> bool:
        store.live.publish(RUN, b"x")
        return bool(got)

    await eventually(heard)


async def test_a_message_over_the_payload_limit_is_refused_and_costs_nothing(
    outage: Outage,
) -> None:
    store = await outage.store()
    with pytest.raises(LogFull, match="max_payload"):
        await store.log.append(journal(store), b"x" * (9 * 1024 * 1024))
    await store.log.append(journal(store), b"x" * (7 * 1024 * 1024))
    assert store.connected()


async def test_a_missing_stream_is_unavailable(outage: Outage) -> None:
    store = await outage.store()
    link = await open_link(outage.server.url, name="x", token=outage.server.token)
    await Api(link).call("STREAM.DELETE.loom-RUNS-0", None, dict, write=True)
    await link.close()
    with pytest.raises(LogUnavailable):
        await store.log.append(journal(store), b"")
    with pytest.raises(LogUnavailable):
        await store.log.read(journal(store))
    with pytest.raises(LogUnavailable):
        await store.log.last(journal(store))


async def test_many_processes_may_create_the_streams_at_once(outage: Outage) -> None:
    stores = await asyncio.gather(*(outage.store(f"s{i}") for i in range(8)))
    seqs = await asyncio.gather(*(s.log.append(journal(s), b"") for s in stores))
    assert sorted(seqs) == list(range(1, 9))


async def test_what_is_held_beyond_the_room_is_handed_back_quickly(outage: Outage) -> None:
    full, idle = await outage.store("full"), await outage.store("idle")
    source = full.starts.source()
    source.allow(1)
    for index in range(12):
        await full.starts.post("t", f"user {index}", f"r_{index}", b"%d" % index)
    await asyncio.wait_for(source.get(), 5)
    since = time.monotonic()
    other = idle.starts.source()
    other.allow(11)
    for _ in range(11):
        (await asyncio.wait_for(other.get(), 5)).ack()
    assert time.monotonic() - since < 0.6  # long before any ack wait


async def test_connecting_to_nothing_fails_in_the_given_time() -> None:
    since = time.monotonic()
    with pytest.raises(LogUnavailable):
        await connect("nats://127.0.0.1:9", master_key=b"k" * 32, name="x", connect_timeout_s=0.3)
    assert time.monotonic() - since < 2
