"""One suite for every implementation of ``events/log.py``: JetStream and its twin in memory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from events.log import (
    EventStore,
    LogError,
    Message,
    QueueFull,
    SealError,
    UserCapReached,
    WorkSource,
    WrongSequence,
)
from events.memory_store import MemoryServer
from events.nats_queue import NatsWakeQueue
from events.streams import LEASE_TTL_S, RUN_SEQ_SPAN, WAKE_REQUEST_S
from events.subjects import LANES, lane_of

pytestmark = pytest.mark.integration

Connect = Callable[..., Awaitable[EventStore]]

ACK_WAIT_S = 1.0
RUN = "r_0000000000000001"
LAST_SLOT = "r_ff00000000000001"


@pytest.fixture(params=["memory", "nats"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """``await connect("name")`` adds one client to the same log."""
    if request.param == "nats":
        opener = request.getfixturevalue("open_store")

        async def connect_nats(name: str = "a", master_key: bytes = b"k" * 32) -> EventStore:
            store: EventStore = await opener(name, ack_wait_s=ACK_WAIT_S, master_key=master_key)
            return store

        return connect_nats
    servers: list[MemoryServer] = []

    async def connect_memory(name: str = "a", master_key: bytes = b"k" * 32) -> EventStore:
        if not servers:
            servers.append(MemoryServer(ack_wait_s=ACK_WAIT_S))
        return servers[0].connect(name, master_key)

    return connect_memory


@pytest.fixture
def stand_still() -> Callable[[EventStore], None]:
    """Make a client do nothing more, as a stopped process does, its connection left open."""

    def stop(store: EventStore) -> None:
        wakes: Any = store.wakes
        if isinstance(wakes, NatsWakeQueue):
            wakes._link._transport._io_writer.transport.pause_reading()
        else:
            wakes._client.still = True

    return stop


@pytest_asyncio.fixture
async def store(connect: Connect) -> EventStore:
    return await connect("a")


def journal(store: EventStore, run_id: str = RUN) -> str:
    return store.subjects.journal("t", run_id)


def inbox(store: EventStore, run_id: str = RUN) -> str:
    return store.subjects.inbox("t", run_id)


async def bodies(store: EventStore, subject: str) -> list[bytes]:
    return [message.data for message in await store.log.read(subject)]


async def take(source: WorkSource, count: int) -> list[bytes]:
    """Bodies of the next items, acknowledged."""
    taken = []
    for _ in range(count):
        item = await asyncio.wait_for(source.get(), 5)
        item.ack()
        taken.append(item.data)
    return taken


async def nothing_comes(source: WorkSource, seconds: float = 0.15) -> bool:
    try:
        await asyncio.wait_for(source.get(), seconds)
    except TimeoutError:
        return True
    return False


async def eventually(condition: Callable[[], Awaitable[bool]], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.005)


async def _after(moment: float) -> bool:
    return time.monotonic() > moment


class TestAppend:
    async def test_sequences_of_a_stream_rise(self, store: EventStore) -> None:
        seqs = [await store.log.append(journal(store), b"%d" % i) for i in range(5)]
        assert seqs == list(range(seqs[0], seqs[0] + 5))

    async def test_each_run_stream_has_its_own_range_of_sequences(self, store: EventStore) -> None:
        assert await store.log.append(journal(store, RUN), b"") == 1
        assert await store.log.append(journal(store, LAST_SLOT), b"") == 3 * RUN_SEQ_SPAN

    async def test_it_stores_only_after_the_expected_sequence(self, store: EventStore) -> None:
        first = await store.log.append(journal(store), b"a", after=0)
        second = await store.log.append(journal(store), b"b", after=first)
        for wrong in (0, first, second + 1):
            with pytest.raises(WrongSequence):
                await store.log.append(journal(store), b"c", after=wrong)
        assert await bodies(store, journal(store)) == [b"a", b"b"]

    async def test_another_subject_does_not_disturb_the_expectation(
        self, store: EventStore
    ) -> None:
        first = await store.log.append(journal(store), b"a", after=0)
        await store.log.append(inbox(store), b"m", after=0)
        await store.log.append(journal(store), b"b", after=first)

    async def test_a_scope_is_compared_instead_of_the_subject(self, store: EventStore) -> None:
        scope = store.subjects.run("t", RUN)
        first = await store.log.append(journal(store), b"a", after=0, scope=scope)
        steered = await store.log.append(inbox(store), b"m")
        with pytest.raises(WrongSequence):
            await store.log.append(journal(store), b"park", after=first, scope=scope)
        await store.log.append(journal(store), b"park", after=steered, scope=scope)
        assert await bodies(store, journal(store)) == [b"a", b"park"]

    async def test_a_scope_may_be_another_subject_altogether(self, store: EventStore) -> None:
        session = store.subjects.session("t", f"s_{RUN.removeprefix('r_')}")
        await store.log.append(journal(store), b"a", after=0)
        await store.log.append(journal(store), b"b", after=0, scope=session)
        note = await store.log.append(session, b"n", after=0)
        with pytest.raises(WrongSequence):
            await store.log.append(journal(store), b"c", after=0, scope=session)
        await store.log.append(journal(store), b"d", after=note, scope=session)
        assert await bodies(store, journal(store)) == [b"a", b"b", b"d"]

    async def test_a_repeated_message_id_stores_once_and_answers_the_same(
        self, store: EventStore
    ) -> None:
        first = await store.log.append(inbox(store), b"m", msg_id="x:1")
        assert await store.log.append(inbox(store), b"m", msg_id="x:1") == first
        assert await store.log.append(inbox(store), b"m", msg_id="x:2") == first + 1

    async def test_a_wrong_expectation_wins_over_a_repeated_message_id(
        self, store: EventStore
    ) -> None:
        await store.log.append(inbox(store), b"m", after=0, msg_id="x")
        with pytest.raises(WrongSequence):
            await store.log.append(inbox(store), b"m", after=0, msg_id="x")

    async def test_one_of_many_writers_at_the_same_place_wins(self, connect: Connect) -> None:
        stores = [await connect(name) for name in "abc"]
        outcomes = await asyncio.gather(
            *(s.log.append(journal(s), b"%d" % i, after=0) for i, s in enumerate(stores)),
            return_exceptions=True,
        )
        assert sorted(isinstance(o, WrongSequence) for o in outcomes) == [False, True, True]


class TestReads:
    async def test_last_is_the_newest_of_a_subject_or_filter(self, store: EventStore) -> None:
        assert await store.log.last(journal(store)) is None
        await store.log.append(journal(store), b"a")
        seq = await store.log.append(inbox(store), b"m")
        last = await store.log.last(store.subjects.run("t", RUN))
        assert last is not None
        assert (last.subject, last.seq, last.data) == (inbox(store), seq, b"m")
        assert abs(time.time_ns() - last.time_ns) < 60e9

    async def test_first_is_the_oldest_of_a_subject_or_filter_behind_a_sequence(
        self, store: EventStore
    ) -> None:
        scope = store.subjects.run("t", RUN)
        assert await store.log.first(scope) is None
        one = await store.log.append(journal(store), b"1")
        await store.log.append(journal(store, "r_0000000000000002"), b"other")
        two = await store.log.append(inbox(store), b"2")
        found = await store.log.first(scope)
        assert found is not None
        assert (found.subject, found.seq, found.data) == (journal(store), one, b"1")
        assert abs(found.time_ns - time.time_ns()) < 60_000_000_000
        behind = await store.log.first(scope, after=one)
        assert behind is not None
        assert (behind.seq, behind.data) == (two, b"2")
        assert await store.log.first(journal(store), after=one) is None
        assert await store.log.first(scope, after=two) is None

    async def test_read_gives_what_lies_behind_a_sequence_oldest_first(
        self, store: EventStore
    ) -> None:
        seqs = [await store.log.append(journal(store), b"%d" % i) for i in range(5)]
        await store.log.append(inbox(store), b"other")
        assert await bodies(store, journal(store)) == [b"0", b"1", b"2", b"3", b"4"]
        behind = await store.log.read(journal(store), after=seqs[1])
        assert [m.seq for m in behind] == seqs[2:]
        assert [m.data for m in await store.log.read(journal(store), limit=2)] == [b"0", b"1"]
        assert await store.log.read(journal(store), after=seqs[-1]) == []
        assert await store.log.read(store.subjects.journal("t", "r_00ffffffffffffff")) == []

    async def test_read_takes_filters(self, store: EventStore) -> None:
        subjects = store.subjects
        for key in ("a", "b.c", "*"):
            await store.log.append(subjects.memory("t", "user", "u", key), key.encode())
        await store.log.append(subjects.memory("t", "user", "u2", "a"), b"else")
        assert await bodies(store, subjects.memory_scope("t", "user", "u")) == [b"a", b"b.c", b"*"]
        assert await bodies(store, subjects.memory("t", "user", "u", "*")) == [b"*"]
        assert await bodies(store, subjects.memory("t", "user", "u", ">")) == []

    async def test_read_returns_all_of_a_long_subject(self, store: EventStore) -> None:
        async def some(start: int) -> None:
            for i in range(start, 4200, 100):
                await store.log.append(journal(store), b"%d" % i)

        await asyncio.gather(*(some(start) for start in range(100)))
        messages = await store.log.read(journal(store))
        assert [m.seq for m in messages] == list(range(1, 4201))
        assert {int(m.data) for m in messages} == set(range(4200))
        assert len(await store.log.read(journal(store), limit=3000)) == 3000

    async def test_stored_bytes_come_back_unchanged(self, store: EventStore) -> None:
        for data in (b"", b"\r\n", bytes(range(256)), os.urandom(300_000)):
            await store.log.append(journal(store), data)
            last = await store.log.last(journal(store))
            assert last is not None
            assert last.data == data
            assert (await store.log.read(journal(store)))[-1].data == data

    async def test_ends_are_the_last_sequences_of_streams(self, store: EventStore) -> None:
        assert await store.log.ends(["RUNS-0", "RUNS-2", "STATE"]) == {
            "RUNS-0": 0,
            "RUNS-2": 2 * RUN_SEQ_SPAN - 1,
            "STATE": 0,
        }
        seq = await store.log.append(journal(store), b"")
        answers = await asyncio.gather(*(store.log.ends(["RUNS-0"]) for _ in range(50)))
        assert answers == [{"RUNS-0": seq}] * 50

    async def test_ends_never_miss_what_was_stored_before_the_question(
        self, store: EventStore
    ) -> None:
        async def write_then_ask(index: int) -> bool:
            seq = await store.log.append(journal(store), b"%d" % index)
            return (await store.log.ends(["RUNS-0"]))["RUNS-0"] >= seq

        assert all(await asyncio.gather(*(write_then_ask(i) for i in range(200))))

    async def test_purge_removes_the_messages_of_its_subject_only(self, store: EventStore) -> None:
        await store.log.append(journal(store), b"a")
        await store.log.append(inbox(store), b"m")
        await store.log.purge(journal(store))
        assert await bodies(store, journal(store)) == []
        assert await bodies(store, inbox(store)) == [b"m"]
        assert await store.log.append(journal(store), b"b", after=0) == 3

    async def test_a_foreign_subject_is_an_error(self, store: EventStore) -> None:
        with pytest.raises(ValueError, match="prefix"):
            await store.log.append("elsewhere.run.00.t.r", b"")
        with pytest.raises(ValueError, match="slot"):
            await store.log.read(f"{store.subjects.prefix}.run.*.t.>")


async def collect(tail: AsyncIterator[list[Message]], count: int) -> list[Message]:
    got: list[Message] = []
    async with asyncio.timeout(10):
        while len(got) < count:
            batch = await anext(tail)
            assert batch
            got += batch
    return got


class TestTail:
    async def test_it_gives_all_subjects_of_a_stream_and_then_what_comes(
        self, connect: Connect
    ) -> None:
        writer, reader = await connect("a"), await connect("b")
        await writer.log.append(journal(writer), b"0")
        await writer.log.append(inbox(writer), b"1")
        tail = reader.log.tail("RUNS-0")
        assert [m.data for m in await collect(tail, 2)] == [b"0", b"1"]
        await writer.log.append(journal(writer, "r_0100000000000000"), b"2")
        assert [m.data for m in await collect(tail, 1)] == [b"2"]

    async def test_it_begins_behind_the_given_sequence(self, store: EventStore) -> None:
        seqs = [await store.log.append(journal(store), b"%d" % i) for i in range(10)]
        tail = store.log.tail("RUNS-0", after=seqs[6])
        assert [m.seq for m in await collect(tail, 3)] == seqs[7:]

    async def test_a_tail_from_the_end_of_an_empty_stream_waits(self, store: EventStore) -> None:
        tail = store.log.tail("RUNS-3", after=0)
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await store.log.append(journal(store, LAST_SLOT), b"x")
        assert [m.data for m in await asyncio.wait_for(waiting, 5)] == [b"x"]

    async def test_it_agrees_with_read_while_others_write(self, store: EventStore) -> None:
        async def write(writer: int) -> None:
            for i in range(100):
                await store.log.append(journal(store), b"%d.%d" % (writer, i))

        reading = asyncio.ensure_future(collect(store.log.tail("RUNS-0"), 3000))
        await asyncio.gather(*(write(writer) for writer in range(30)))
        assert await reading == await store.log.read(journal(store))

    async def test_a_tail_ends_with_its_store(self, connect: Connect) -> None:
        store = await connect("a")
        tail = store.log.tail("RUNS-0")
        await store.log.append(journal(store), b"x")
        await collect(tail, 1)
        waiting = asyncio.ensure_future(anext(tail, None))
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.wait_for(waiting, 2) is None

    async def test_two_tails_both_see_everything(self, store: EventStore) -> None:
        tails = [store.log.tail("STATE"), store.log.tail("STATE")]
        subject = store.subjects.memory("t", "user", "u", "k")
        await store.log.append(subject, b"v")
        for tail in tails:
            assert [m.data for m in await collect(tail, 1)] == [b"v"]


class TestStarts:
    async def test_a_posted_start_is_delivered_with_its_data(self, store: EventStore) -> None:
        source = store.starts.source()
        source.allow(1)
        seq = await store.starts.post("t", "u", RUN, b"start")
        item = await asyncio.wait_for(source.get(), 5)
        assert (item.seq, item.data, item.deliveries) == (seq, b"start", 1)
        parsed = store.subjects.parse(item.subject)
        assert (parsed.tenant, parsed.user_id) == ("t", "u")
        assert await store.starts.holds(seq)
        item.ack()
        await eventually(lambda: _gone(store, seq))

    async def test_the_run_id_of_a_start_de_duplicates(self, store: EventStore) -> None:
        first = await store.starts.post("t", "u", RUN, b"start")
        assert await store.starts.post("t", "u", RUN, b"start") == first
        assert (await store.starts.stats()).total == 1

    async def test_a_full_queue_refuses_until_an_item_is_acked(self, store: EventStore) -> None:
        await store.starts.limit(2, 0)
        await store.starts.post("t", "u", "r_1", b"1")
        await store.starts.post("t", "u", "r_2", b"2")
        with pytest.raises(QueueFull):
            await store.starts.post("t", "v", "r_3", b"3")
        source = store.starts.source()
        source.allow(1)
        await take(source, 1)
        await eventually(lambda: _posted(store, "v", "r_3"))

    async def test_the_cap_of_a_user_counts_only_that_user(self, store: EventStore) -> None:
        await store.starts.limit(100, 2)
        await store.starts.post("t", "u", "r_1", b"")
        await store.starts.post("t", "u", "r_2", b"")
        with pytest.raises(UserCapReached):
            await store.starts.post("t", "u", "r_3", b"")
        await store.starts.post("t", "v", "r_4", b"")
        await store.starts.post("t2", "u", "r_5", b"")

    async def test_a_repeated_start_is_no_second_one_for_the_bounds(
        self, store: EventStore
    ) -> None:
        await store.starts.limit(1, 1)
        seq = await store.starts.post("t", "u", "r_1", b"")
        assert await store.starts.post("t", "u", "r_1", b"") == seq

    async def test_starts_of_no_user_are_exempt_from_the_cap(self, store: EventStore) -> None:
        await store.starts.limit(4, 1)
        for index in range(4):
            await store.starts.post("t", "", f"r_{index}", b"")
        with pytest.raises(QueueFull):
            await store.starts.post("t", "", "r_9", b"")

    async def test_bounds_can_be_lifted(self, store: EventStore) -> None:
        await store.starts.limit(1, 1)
        await store.starts.post("t", "u", "r_1", b"")
        await store.starts.limit(0, 0)
        for index in range(2, 6):
            await store.starts.post("t", "u", f"r_{index}", b"")
        assert (await store.starts.stats()).total == 5

    async def test_stats_count_named_users(self, store: EventStore) -> None:
        await store.starts.post("t", "u", "r_1", b"")
        await store.starts.post("t", "u", "r_2", b"")
        await store.starts.post("", "v.*", "r_3", b"")
        await store.starts.post("t", "", "r_4", b"")
        stats = await store.starts.stats()
        assert stats.total == 4
        assert stats.per_user == {("t", "u"): 2, ("", "v.*"): 1}

    async def test_a_withdrawn_start_is_not_delivered(self, store: EventStore) -> None:
        seq = await store.starts.post("t", "u", "r_1", b"1")
        assert await store.starts.holds(seq)
        assert await store.starts.withdraw(seq)
        assert not await store.starts.holds(seq)
        assert not await store.starts.withdraw(seq)
        source = store.starts.source()
        source.allow(5)
        assert await nothing_comes(source)

    async def test_an_item_in_flight_can_be_withdrawn_too(self, store: EventStore) -> None:
        source = store.starts.source()
        source.allow(1)
        seq = await store.starts.post("t", "u", "r_1", b"1")
        item = await asyncio.wait_for(source.get(), 5)
        assert await store.starts.withdraw(seq)
        item.ack()
        assert not await store.starts.holds(seq)

    async def test_lanes_are_served_in_turn(self, store: EventStore) -> None:
        busy, calm = _users_of_different_lanes()
        source = store.starts.source()
        await store.starts.post("t", busy, "r_first", b"first")
        source.allow(1)
        await take(source, 1)  # an item came, so every lane is open
        for index in range(6):
            await store.starts.post("t", busy, f"r_b{index}", b"busy")
        await store.starts.post("t", calm, "r_c", b"calm")
        source.allow(7)
        assert b"calm" in await take(source, 3)

    async def test_no_more_items_come_than_allowed(self, store: EventStore) -> None:
        for index in range(40):
            await store.starts.post("t", f"user {index}", f"r_{index}", b"")
        source = store.starts.source()
        assert await nothing_comes(source)
        source.allow(3)
        await take(source, 3)
        assert await nothing_comes(source)
        source.allow(37)
        await take(source, 37)

    async def test_what_one_worker_has_no_room_for_another_gets(self, connect: Connect) -> None:
        full, idle = await connect("a"), await connect("b")
        first = full.starts.source()
        first.allow(1)
        for index in range(40):
            await full.starts.post("t", f"user {index}", f"r_{index}", b"%d" % index)
        (mine,) = await take(first, 1)
        second = idle.starts.source()
        second.allow(39)
        others = await take(second, 39)
        assert sorted([mine, *others]) == sorted(b"%d" % i for i in range(40))

    async def test_two_workers_share_without_repetition(self, connect: Connect) -> None:
        stores = [await connect(name) for name in "ab"]
        taken: list[bytes] = []

        async def work(store: EventStore) -> None:
            source = store.starts.source()
            while True:
                source.allow(2)
                item = await source.get()
                taken.append(item.data)
                item.ack()

        workers = [asyncio.create_task(work(store)) for store in stores]
        for index in range(200):
            await stores[0].starts.post("t", f"u{index % 7}", f"r_{index}", b"%d" % index)

        async def all_taken() -> bool:
            return len(taken) >= 200

        await eventually(all_taken, 10)
        for worker in workers:
            worker.cancel()
        assert sorted(taken) == sorted(b"%d" % i for i in range(200))

    async def test_clear_removes_all(self, store: EventStore) -> None:
        await store.starts.post("t", "u", "r_1", b"")
        await store.starts.post("t", "", "r_2", b"")
        await store.starts.clear()
        assert (await store.starts.stats()).total == 0


class TestDeliveries:
    async def test_a_refused_item_comes_again_and_counts(self, store: EventStore) -> None:
        source = store.wakes.source()
        source.allow(10)
        await store.wakes.post(RUN, "1", b"w")
        for expected in (1, 2, 3):
            item = await asyncio.wait_for(source.get(), 5)
            assert item.deliveries == expected
            item.nak()

    async def test_a_refusal_can_ask_for_a_delay(self, store: EventStore) -> None:
        source = store.wakes.source()
        source.allow(10)
        await store.wakes.post(RUN, "1", b"w")
        item = await asyncio.wait_for(source.get(), 5)
        since = time.monotonic()
        item.nak(0.3)
        await asyncio.wait_for(source.get(), 5)
        assert time.monotonic() - since >= 0.25

    async def test_an_item_of_a_silent_holder_comes_back_and_a_worked_on_one_does_not(
        self, connect: Connect
    ) -> None:
        holder, other = await connect("a"), await connect("b")
        source = holder.starts.source()
        source.allow(2)
        await holder.starts.post("t", "silent", "r_1", b"silent")
        await holder.starts.post("t", "busy", "r_2", b"busy")
        items = {item.data: item for item in [await source.get(), await source.get()]}
        since = time.monotonic()
        spare = other.starts.source()
        spare.allow(2)

        async def keep_working() -> None:
            while True:
                items[b"busy"].working()
                await asyncio.sleep(ACK_WAIT_S / 4)

        working = asyncio.create_task(keep_working())
        back = await asyncio.wait_for(spare.get(), 5)
        assert back.data == b"silent"
        assert back.deliveries > 1
        assert time.monotonic() - since >= ACK_WAIT_S * 0.9
        assert await nothing_comes(spare, ACK_WAIT_S * 0.6)
        working.cancel()

    async def test_a_closed_source_hands_its_items_to_others(self, connect: Connect) -> None:
        leaving, staying = await connect("a"), await connect("b")
        source = leaving.wakes.source()
        source.allow(4)
        await leaving.wakes.post(RUN, "1", b"w")
        await asyncio.sleep(0.05)
        await source.close()
        spare = staying.wakes.source()
        spare.allow(1)
        assert await take(spare, 1) == [b"w"]


class TestWakes:
    async def test_a_wake_names_its_run(self, store: EventStore) -> None:
        source = store.wakes.source()
        source.allow(1)
        await store.wakes.post(RUN, "input 1", b"why")
        item = await asyncio.wait_for(source.get(), 5)
        assert store.subjects.parse(item.subject).run_id == RUN
        assert item.data == b"why"

    async def test_the_same_cause_wakes_once(self, store: EventStore) -> None:
        source = store.wakes.source()
        source.allow(10)
        for cause in ("1", "1", "2"):
            await store.wakes.post(RUN, cause, cause.encode())
        await store.wakes.post("r_other", "1", b"other")
        assert sorted(await take(source, 3)) == [b"1", b"2", b"other"]
        assert await nothing_comes(source)

    async def test_a_process_that_stands_still_is_given_no_wakes(
        self, connect: Connect, stand_still: Callable[[EventStore], None]
    ) -> None:
        still, moving = await connect("a"), await connect("b")
        held = still.wakes.source()
        held.allow(64)
        taken = asyncio.create_task(held.get())
        await still.wakes.post(RUN, "served", b"served")
        (await asyncio.wait_for(taken, 5)).ack()
        other = moving.wakes.source()
        other.allow(64)
        stand_still(still)
        since = time.monotonic()
        await eventually(lambda: _after(since + WAKE_REQUEST_S))
        posted = [b"%d" % index for index in range(8)]
        for index, data in enumerate(posted):
            await moving.wakes.post(f"r_{index}", "orphan", data)
        came = [await asyncio.wait_for(other.get(), ACK_WAIT_S / 2) for _ in posted]
        assert sorted(item.data for item in came) == posted
        assert {item.deliveries for item in came} == {1}

    async def test_a_moving_process_asks_again_for_as_much_as_it_has_room_for(
        self, store: EventStore
    ) -> None:
        source = store.wakes.source()
        source.allow(8)
        since = time.monotonic()
        for index in range(3):  # each taken item leaves another request standing
            await store.wakes.post(f"r_{index}", "c", b"w")
        await take(source, 3)
        source.allow(8)
        await eventually(lambda: _after(since + 2.2 * WAKE_REQUEST_S), 10)
        for index in range(20):
            await store.wakes.post(f"r_{index}", "d", b"w")
        assert len(await take(source, 8)) == 8
        assert await nothing_comes(source)
        source.allow(12)
        for _ in range(12):
            item = await asyncio.wait_for(source.get(), 5)
            assert item.deliveries == 1, "it came before there was room for it"

    async def test_waiting_runs_can_be_listed_until_acked(self, store: EventStore) -> None:
        await store.wakes.post("r_1", "c")
        await store.wakes.post("r_1", "d")
        await store.wakes.post("odd run.*", "c")
        assert await store.wakes.waiting() == {"r_1", "odd run.*"}
        source = store.wakes.source()
        source.allow(3)
        await take(source, 3)

        async def none_waits() -> bool:
            return not await store.wakes.waiting()

        await eventually(none_waits)

    async def test_clear_removes_all(self, store: EventStore) -> None:
        await store.wakes.post("r_1", "c")
        await store.wakes.clear()
        assert await store.wakes.waiting() == set()


class TestLeases:
    async def test_a_name_has_one_holder(self, connect: Connect) -> None:
        a, b = await connect("a"), await connect("b")
        assert await a.leases.acquire("worker/1", "a", b"x")
        assert await a.leases.acquire("worker/1", "a", b"y")
        assert not await b.leases.acquire("worker/1", "b")
        assert await b.leases.acquire("projector", "b", b"z")
        held = await b.leases.held()
        assert {n: (lease.holder, lease.data) for n, lease in held.items()} == {
            "worker/1": ("a", b"y"),
            "projector": ("b", b"z"),
        }
        assert all(0 <= lease.age_s < LEASE_TTL_S for lease in held.values())
        assert set(await a.leases.held("worker/")) == {"worker/1"}

    async def test_a_released_name_is_free_at_once(self, connect: Connect) -> None:
        a, b = await connect("a"), await connect("b")
        assert await a.leases.acquire("n", "a")
        await b.leases.release("n", "b")
        assert not await b.leases.acquire("n", "b")
        await a.leases.release("n", "a")
        assert await b.leases.acquire("n", "b")
        assert not await a.leases.acquire("n", "a")

    async def test_a_silent_holder_loses_its_name_and_a_renewing_one_does_not(
        self, connect: Connect
    ) -> None:
        a, b = await connect("a"), await connect("b")
        assert not await a.leases.settled()
        since = time.monotonic()
        assert await a.leases.acquire("silent", "a")
        assert await a.leases.acquire("renewed", "a")
        while not await b.leases.acquire("silent", "b"):
            assert time.monotonic() - since < LEASE_TTL_S + 1
            assert await a.leases.acquire("renewed", "a")
            await asyncio.sleep(0.1)
        assert time.monotonic() - since > LEASE_TTL_S - 0.5
        assert set(await a.leases.held()) == {"silent", "renewed"}
        assert not await a.leases.acquire("silent", "a")
        await eventually(b.leases.settled)

    async def test_one_of_many_takers_wins(self, connect: Connect) -> None:
        stores = [await connect(name) for name in "abcd"]
        won = await asyncio.gather(*(s.leases.acquire("n", f"{i}") for i, s in enumerate(stores)))
        assert sorted(won) == [False, False, False, True]


class TestBlobs:
    @pytest.mark.parametrize("size", [0, 1, 300_000, 1_048_576, 3_500_000])
    async def test_a_blob_comes_back_under_its_hash(self, connect: Connect, size: int) -> None:
        writer, reader = await connect("a"), await connect("b")
        data = os.urandom(size)
        name = await writer.blobs.put(data)
        assert await reader.blobs.get(name) == data
        assert await reader.blobs.put(data) == name

    async def test_many_writers_of_one_blob_agree(self, connect: Connect) -> None:
        stores = [await connect(name) for name in "abc"]
        data = os.urandom(2_500_000)
        names = await asyncio.gather(*(s.blobs.put(data) for s in stores))
        assert len(set(names)) == 1
        assert await (await connect("d")).blobs.get(names[0]) == data

    async def test_a_known_blob_is_not_sent_again(self, store: EventStore) -> None:
        await store.blobs.put(b"x" * 1000)
        ends = await store.log.ends(["BLOBS"])
        await store.blobs.put(b"x" * 1000)
        assert await store.log.ends(["BLOBS"]) == ends

    async def test_an_absent_blob_is_a_key_error(self, store: EventStore) -> None:
        for name in ("0" * 64, "no hash", ""):
            with pytest.raises(KeyError):
                await store.blobs.get(name)

    async def test_content_that_does_not_fit_its_hash_is_refused(self, store: EventStore) -> None:
        name = "ab" * 32
        await store.log.append(store.subjects.blob(name, "z"), b"something else")
        with pytest.raises(LogError, match="SHA-256"):
            await store.blobs.get(name)


class TestSeals:
    async def test_a_sealed_value_opens_until_deleted(self, connect: Connect) -> None:
        a, b = await connect("a"), await connect("b")
        await a.seals.put(RUN, "token/*", b"s3cret")
        await a.seals.put(RUN, "token/*", b"s3cret2")
        await a.seals.put("r_other", "x", b"kept")
        assert await b.seals.get(RUN, "token/*") == b"s3cret2"
        assert await b.seals.get(RUN, "never") is None
        await b.seals.delete(RUN)
        assert await a.seals.get(RUN, "token/*") is None
        assert await a.seals.get("r_other", "x") == b"kept"

    async def test_what_is_sealed_can_be_walked_through_until_deleted(
        self, store: EventStore
    ) -> None:
        assert await store.seals.next() is None
        for run_id, name in ((RUN, "a"), ("odd run.*", "b"), (RUN, "c")):
            await store.seals.put(run_id, name, b"s3cret")

        async def walk() -> list[str]:
            found: list[str] = []
            after = 0
            while (sealed := await store.seals.next(after)) is not None:
                assert sealed.seq > after
                assert abs(sealed.time_ns - time.time_ns()) < 60_000_000_000
                found.append(sealed.run_id)
                after = sealed.seq
            return found

        assert await walk() == [RUN, "odd run.*", RUN]
        await store.seals.delete(RUN)
        assert await walk() == ["odd run.*"]

    async def test_no_plaintext_is_stored(self, store: EventStore) -> None:
        await store.seals.put(RUN, "n", b"s3cret")
        message = await store.log.last(store.subjects.seal(RUN, "n"))
        assert message is not None
        assert b"s3cret" not in message.data

    async def test_another_master_key_is_named_and_refused(self, connect: Connect) -> None:
        a, b = await connect("a"), await connect("b", master_key=b"w" * 32)
        await a.seals.put(RUN, "n", b"s3cret")
        with pytest.raises(SealError, match="master key") as caught:
            await b.seals.get(RUN, "n")
        assert "s3cret" not in str(caught.value)
        assert "wwww" not in str(caught.value)

    async def test_a_seal_opens_only_in_its_own_place(self, store: EventStore) -> None:
        await store.seals.put(RUN, "n", b"s3cret")
        message = await store.log.last(store.subjects.seal(RUN, "n"))
        assert message is not None
        await store.log.append(store.subjects.seal(RUN, "other"), message.data)
        with pytest.raises(SealError, match="damaged"):
            await store.seals.get(RUN, "other")


class TestTimers:
    async def test_a_timer_is_delivered_when_due(self, store: EventStore) -> None:
        source = store.timers.due()
        source.allow(1)
        at = time.time_ns() + 200_000_000
        await store.timers.set("deadline", "r_1 *", at, b"data")
        assert set(await store.timers.pending()) == {("deadline", "r_1 *")}
        item = await asyncio.wait_for(source.get(), 5)
        assert time.time_ns() >= at
        parsed = store.subjects.parse(item.subject)
        assert (parsed.kind, parsed.key, parsed.name) == ("due", "deadline", "r_1 *")
        assert item.data == b"data"
        item.ack()
        assert set(await store.timers.pending()) == set()

    async def test_a_timer_in_the_past_fires_soon(self, store: EventStore) -> None:
        source = store.timers.due()
        source.allow(1)
        await store.timers.set("k", "i", time.time_ns() - 10**9, b"late")
        assert await take(source, 1) == [b"late"]

    async def test_setting_again_moves_the_timer(self, store: EventStore) -> None:
        source = store.timers.due()
        source.allow(5)
        await store.timers.set("k", "i", time.time_ns() + 100_000_000, b"first")
        await store.timers.set("k", "i", time.time_ns() + 400_000_000, b"second")
        assert await take(source, 1) == [b"second"]
        assert await nothing_comes(source)

    async def test_a_cancelled_timer_never_fires(self, store: EventStore) -> None:
        source = store.timers.due()
        source.allow(5)
        await store.timers.set("k", "i", time.time_ns() + 150_000_000, b"")
        await store.timers.set("k", "j", time.time_ns() + 150_000_000, b"j")
        await store.timers.cancel("k", "i")
        await store.timers.cancel("k", "unknown")
        assert await take(source, 1) == [b"j"]
        assert await nothing_comes(source)

    async def test_a_due_timer_comes_again_until_acked(self, store: EventStore) -> None:
        source = store.timers.due()
        source.allow(5)
        await store.timers.set("k", "i", time.time_ns(), b"x")
        item = await asyncio.wait_for(source.get(), 5)
        item.nak()
        again = await asyncio.wait_for(source.get(), 5)
        assert (again.data, again.deliveries) == (b"x", 2)

    async def test_clear_removes_all(self, store: EventStore) -> None:
        await store.timers.set("k", "i", time.time_ns() + 10**12, b"")
        await store.timers.clear()
        assert set(await store.timers.pending()) == set()


class TestLive:
    async def test_followers_of_a_run_get_its_messages_until_they_stop(
        self, connect: Connect
    ) -> None:
        owner, gateway = await connect("a"), await connect("b")
        got: list[bytes] = []
        others: list[bytes] = []
        stop = await gateway.live.follow(RUN, got.append)
        await gateway.live.follow("r_other", others.append)
        for data in (b"1", b"", b"3"):
            owner.live.publish(RUN, data)

        async def all_there() -> bool:
            return len(got) == 3

        await eventually(all_there)
        stop()
        owner.live.publish(RUN, b"4")
        owner.live.publish("r_other", b"5")

        async def other_there() -> bool:
            return others == [b"5"]

        await eventually(other_there)
        assert got == [b"1", b"", b"3"]

    async def test_following_given_up_at_any_moment_leaves_the_connection_alone(
        self, connect: Connect
    ) -> None:
        a = await connect("a")
        got: list[bytes] = []
        for turns in range(8):
            following = asyncio.create_task(a.live.follow(RUN, got.append))
            for _ in range(turns):
                await asyncio.sleep(0)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if not following.cancelled():
                following.result()()
        assert await a.log.last(a.subjects.journal("", RUN)) is None
        a.live.publish(RUN, b"to nobody")
        assert await a.log.last(a.subjects.journal("", RUN)) is None
        assert got == []

    async def test_pokes_reach_everybody_with_the_run_id(self, connect: Connect) -> None:
        a, b = await connect("a"), await connect("b")
        got: list[tuple[str, bytes]] = []
        stop = await b.live.pokes(lambda run_id, data: got.append((run_id, data)))
        a.live.poke("odd *.>", b"x")

        async def poked() -> bool:
            return got == [("odd *.>", b"x")]

        await eventually(poked)
        stop()


async def test_a_closed_store_is_not_connected(store: EventStore) -> None:
    assert store.connected()
    await store.close()
    assert not store.connected()
    with pytest.raises(LogError):
        await store.log.append(journal(store), b"")


async def _gone(store: EventStore, seq: int) -> bool:
    return not await store.starts.holds(seq)


async def _posted(store: EventStore, user: str, run_id: str) -> bool:
    try:
        await store.starts.post("t", user, run_id, b"")
    except QueueFull:
        return False
    return True


def _users_of_different_lanes() -> tuple[str, str]:
    by_lane = {lane_of("t", f"u{i}", ""): f"u{i}" for i in range(10 * LANES)}
    first, second, *_ = by_lane.values()
    return first, second
