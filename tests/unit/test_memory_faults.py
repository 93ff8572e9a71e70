"""Faults that a simulation can ask of the log in memory."""

from __future__ import annotations

import asyncio

import pytest

from events.log import EventStore, LogError, LogUnavailable, OutcomeUnknown
from events.memory_faults import LATE_S, Fault
from events.memory_store import MemoryServer

RUN = "r_0000000000000001"


class Script:
    """Answers one operation with one fault and notes every call."""

    def __init__(self) -> None:
        self.fault: dict[str, Fault] = {}
        self.calls: list[tuple[str, str]] = []

    async def __call__(self, client: str, operation: str) -> Fault | None:
        self.calls.append((client, operation))
        return self.fault.pop(operation, None)


def journal(store: EventStore) -> str:
    return store.subjects.journal("t", RUN)


async def bodies(store: EventStore) -> list[bytes]:
    return [message.data for message in await store.log.read(journal(store))]


@pytest.mark.parametrize(
    ("fault", "error", "stored"),
    [
        (Fault.FAIL_BEFORE, LogUnavailable, []),
        (Fault.UNKNOWN_LOST, OutcomeUnknown, []),
        (Fault.UNKNOWN_STORED, OutcomeUnknown, [b"x"]),
    ],
)
async def test_a_failed_append_is_stored_or_not_as_asked(
    fault: Fault, error: type[LogError], stored: list[bytes]
) -> None:
    script = Script()
    store = MemoryServer(script).connect("a")
    script.fault["log.append"] = fault
    with pytest.raises(error):
        await store.log.append(journal(store), b"x")
    assert await bodies(store) == stored


async def test_a_late_append_is_stored_after_its_writer_gave_up() -> None:
    script = Script()
    store = MemoryServer(script).connect("a")
    script.fault["log.append"] = Fault.LATE
    loop = asyncio.get_running_loop()
    since = loop.time()
    with pytest.raises(OutcomeUnknown):
        await store.log.append(journal(store), b"late", after=0)
    assert await bodies(store) == []
    await anext(store.log.tail("RUNS-0"))
    assert loop.time() - since >= LATE_S * 0.99
    assert await bodies(store) == [b"late"]


async def test_a_doubled_append_is_stored_twice_unless_it_expected_a_sequence() -> None:
    script = Script()
    store = MemoryServer(script).connect("a")
    script.fault["log.append"] = Fault.DOUBLE
    assert await store.log.append(journal(store), b"once", after=0) == 1
    script.fault["log.append"] = Fault.DOUBLE
    assert await store.log.append(journal(store), b"twice") == 2
    assert await bodies(store) == [b"once", b"twice", b"twice"]


async def test_every_operation_passes_the_hook_before_and_after() -> None:
    script = Script()
    store = MemoryServer(script).connect("worker-1")
    await store.log.append(journal(store), b"x")
    await store.leases.acquire("n", "h")
    await store.log.last(journal(store))
    assert script.calls == [
        ("worker-1", "log.append"),
        ("worker-1", "log.append:after"),
        ("worker-1", "leases.acquire"),
        ("worker-1", "leases.acquire:after"),
        ("worker-1", "log.last"),
        ("worker-1", "log.last:after"),
    ]


async def test_an_answer_can_be_lost_afterwards() -> None:
    script = Script()
    store = MemoryServer(script).connect("a")
    script.fault["starts.post:after"] = Fault.UNKNOWN_STORED
    with pytest.raises(OutcomeUnknown):
        await store.starts.post("t", "u", RUN, b"")
    assert (await store.starts.stats()).total == 1


async def test_a_read_fails_for_any_fault() -> None:
    script = Script()
    store = MemoryServer(script).connect("a")
    script.fault["log.read"] = Fault.UNKNOWN_STORED
    with pytest.raises(LogUnavailable):
        await store.log.read(journal(store))


async def test_items_of_a_crashed_client_come_to_another_after_the_ack_wait() -> None:
    server = MemoryServer(ack_wait_s=0.05)
    crashing, other = server.connect("a"), server.connect("b")
    source = crashing.wakes.source()
    source.allow(1)
    await crashing.wakes.post(RUN, "c", b"w")
    item = await source.get()
    server.disconnect("a")
    item.ack()
    assert not crashing.connected()
    spare = other.wakes.source()
    spare.allow(1)
    again = await asyncio.wait_for(spare.get(), 5)
    assert (again.data, again.deliveries) == (b"w", 2)


async def test_a_client_that_was_cut_off_goes_on_where_it_was() -> None:
    server = MemoryServer()
    cut, other = server.connect("a"), server.connect("b")
    tail = cut.log.tail("RUNS-0")
    await other.log.append(journal(other), b"1")
    assert [m.data for m in await anext(tail)] == [b"1"]
    server.cut_off("a")
    with pytest.raises(LogUnavailable):
        await cut.log.append(journal(cut), b"no")
    await other.log.append(journal(other), b"2")
    waiting = asyncio.ensure_future(anext(tail))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    server.restore("a")
    assert [m.data for m in await waiting] == [b"2"]


async def test_a_restart_loses_queues_timers_and_leases_but_no_stream_on_disk() -> None:
    server = MemoryServer()
    store = server.connect("a")
    await store.starts.limit(1, 0)
    await store.log.append(journal(store), b"kept")
    await store.starts.post("t", "u", RUN, b"")
    await store.wakes.post(RUN, "c")
    await store.timers.set("k", "i", server.now_ns() + 10**12, b"")
    await store.leases.acquire("n", "h")
    server.restart()
    assert await bodies(store) == [b"kept"]
    assert (await store.starts.stats()).total == 0
    assert await store.wakes.waiting() == set()
    assert list(await store.timers.pending()) == []
    assert await store.leases.held() == {}
    assert not await store.leases.settled()
    source = store.starts.source()
    source.allow(1)
    await store.starts.post("t", "u", "r_2", b"again")
    assert (await source.get()).data == b"again"


async def test_stored_messages_can_be_damaged() -> None:
    server = MemoryServer()
    store = server.connect("a")
    for data in (b"1", b"2", b"3", b"4"):
        await store.log.append(journal(store), data)
    server.corrupt("RUNS-0", 1, b"?")
    server.swap("RUNS-0", 2, 3)
    server.drop("RUNS-0", 4)
    assert await bodies(store) == [b"?", b"3", b"2"]
