"""A scope under several processes, lost answers and crashes: each write happens exactly once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events import state
from events.log import EventStore, Message
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from loomcycle.memory import writes
from loomcycle.memory.errors import MemoryRefused, MemoryUnavailable
from loomcycle.memory.rows import Address
from loomcycle.memory.scope import PATIENCE_S, READ_PAGE
from loomcycle.memory.store import RowStore
from loomcycle.memory.writes import Limits, Write

T = TypeVar("T")

ADDRESS = Address("t", "user", "ada")
NOW = 1_000
NO_LIMITS = Limits()


class JumpingLoop(asyncio.SelectorEventLoop):
    """When everybody waits, the clock jumps to whoever wakes first."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self._loop.now += timeout
        return ready


def play(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(story())


class Faulty:
    """Hands out one fault after another to the appends of a client, and notes all operations."""

    def __init__(self, faults: Sequence[Fault | None] = ()) -> None:
        self.pending = list(faults)
        self.operations: list[str] = []
        self.at: dict[str, Callable[[], Any]] = {}

    async def __call__(self, client: str, operation: str) -> Fault | None:
        if client == "reader":
            return None
        self.operations.append(operation)
        if operation in self.at:
            await self.at.pop(operation)()
        if operation == "log.append" and self.pending:
            return self.pending.pop(0)
        return None


def rows_of(store: EventStore, **options: Any) -> RowStore:
    return RowStore(store.log, store.subjects, **options)


def write_of(effect_id: str, key: str = "k", limits: Limits = NO_LIMITS) -> Write:
    return Write(address=ADDRESS, key=key, now_ns=NOW, effect_id=effect_id, limits=limits)


async def incr(rows: RowStore, effect_id: str, *, since: int | None = None) -> bytes:
    write = write_of(effect_id)
    return await rows.write(write, writes.incr(write, 1), recovering_since_ns=since)


async def stored(server: MemoryServer) -> list[Message]:
    return await server.connect("reader").log.read(server.subjects.memory_scope(*ADDRESS))


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("times", [1, 3])
def test_a_faulty_append_counts_once(fault: Fault, times: int) -> None:
    async def story() -> None:
        server = MemoryServer(Faulty([None, *[fault] * times]))
        rows = rows_of(server.connect("a"))
        assert await incr(rows, "e1") == b'{"value":1}'
        assert await incr(rows, "e2") == b'{"value":2}'
        assert await incr(rows, "e3") == b'{"value":3}'
        await asyncio.sleep(10)
        assert len(await stored(server)) == 3

    play(story)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([None, *Fault]), max_size=25),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
)
def test_every_effect_of_several_processes_counts_once(
    faults: list[Fault | None], callers: list[str]
) -> None:
    async def story() -> None:
        server = MemoryServer(Faulty(faults))
        processes = {name: rows_of(server.connect(name)) for name in "abc"}
        results = await asyncio.gather(
            *(incr(processes[name], f"e{number}") for number, name in enumerate(callers))
        )
        expected = {b'{"value":%d}' % number for number in range(1, len(callers) + 1)}
        assert set(results) == expected
        await asyncio.sleep(10)
        assert len(await stored(server)) == len(callers)
        for rows in processes.values():
            row = await rows.get(ADDRESS, "k", NOW)
            assert row is not None
            assert row.value == b"%d" % len(callers)

    play(story)


def test_a_recovered_call_answers_with_what_it_did_before() -> None:
    async def story() -> None:
        server = MemoryServer()
        first = rows_of(server.connect("a"))
        other = rows_of(server.connect("b"))
        await incr(other, "x1")
        assert await incr(first, "mine") == b'{"value":2}'
        server.disconnect("a")
        await incr(other, "x2")
        for recovering in (rows_of(server.connect("c")), other):
            assert await incr(recovering, "mine", since=0) == b'{"value":2}'
        assert len(await stored(server)) == 3

    play(story)


def test_a_recovered_delete_still_says_that_there_was_a_row() -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        write = write_of("gone")
        for since in (None, 0):
            decide = writes.delete(write)
            result = await rows.write(write, decide, recovering_since_ns=since)
            assert result == b'{"deleted":true}'

    play(story)


def test_a_recovered_call_that_never_happened_happens() -> None:
    async def story() -> None:
        rows = rows_of(MemoryServer().connect("a"))
        assert await incr(rows, "mine", since=0) == b'{"value":1}'

    play(story)


def test_recovery_skips_what_was_stored_long_before() -> None:
    async def story() -> None:
        clock = [0]
        server = MemoryServer(now_ns=lambda: clock[0])
        rows = rows_of(server.connect("a"))
        for number in range(30):
            clock[0] += 20_000_000_000
            await incr(rows, f"e{number}")
        fresh = rows_of(server.connect("b"))
        assert await incr(fresh, "e25", since=clock[0] - 200_000_000_000) == b'{"value":26}'
        assert await incr(fresh, "e2", since=clock[0] - 200_000_000_000) == b'{"value":31}'

    play(story)


def test_a_crash_between_two_takers_of_one_call_leaves_one_effect() -> None:
    async def story() -> None:
        server = MemoryServer(Faulty([Fault.LATE]))
        old, new = rows_of(server.connect("a")), rows_of(server.connect("b"))
        dying = asyncio.create_task(incr(old, "mine"))
        await asyncio.sleep(0)
        result = await incr(new, "mine", since=0)
        assert result == b'{"value":1}'
        assert await dying == b'{"value":1}'
        await asyncio.sleep(10)
        assert len(await stored(server)) == 1

    play(story)


def test_a_cancelled_write_does_not_confuse_the_next() -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        for steps in range(6):
            task = asyncio.create_task(incr(rows, f"cancelled{steps}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        before = len(await stored(server))
        assert await incr(rows, "e2") == b'{"value":%d}' % (before + 1)

    play(story)


def test_refusals_are_judged_by_the_newest_rows() -> None:
    async def story() -> None:
        server = MemoryServer()
        here, there = rows_of(server.connect("a")), rows_of(server.connect("b"))
        await here.put(ADDRESS, "k", b'"text"', now_ns=NOW, effect_id="e1")
        with pytest.raises(MemoryRefused, match="not a JSON number"):
            await incr(here, "e2")
        await there.put(ADDRESS, "k", b"5", now_ns=NOW, effect_id="e3")
        assert await incr(here, "e4") == b'{"value":6}'

        assert not await here.delete(ADDRESS, "new", now_ns=NOW, effect_id="e5")
        await there.put(ADDRESS, "new", b"1", now_ns=NOW, effect_id="e6")
        assert await here.delete(ADDRESS, "new", now_ns=NOW, effect_id="e7")

        await there.put(ADDRESS, "big", b'"' + b"x" * 100 + b'"', now_ns=NOW, effect_id="e8")
        tight = write_of("e9", "small", Limits(scope_bytes=60))
        with pytest.raises(MemoryRefused, match="quota"):
            await here.write(tight, writes.set_value(tight, b"1"))
        await there.delete(ADDRESS, "big", now_ns=NOW, effect_id="e10")
        assert await here.write(tight, writes.set_value(tight, b"1")) == b'{"ok":true}'

    play(story)


def test_the_quota_holds_over_processes() -> None:
    async def story() -> None:
        server = MemoryServer()
        processes = [rows_of(server.connect(name)) for name in "abcd"]

        async def one(number: int) -> bool:
            write = write_of(f"e{number}", f"{number:02}", Limits(scope_bytes=30))
            try:
                await processes[number % 4].write(write, writes.set_value(write, b"1"))
            except MemoryRefused:
                return False
            return True

        assert sum(await asyncio.gather(*map(one, range(40)))) == 10
        assert len(await stored(server)) == 10

    play(story)


def test_a_read_sees_what_another_process_just_wrote() -> None:
    async def story() -> None:
        server = MemoryServer()
        here, there = rows_of(server.connect("a")), rows_of(server.connect("b"))
        for number in range(1, 20):
            await incr(here, f"e{number}")
            row = await there.get(ADDRESS, "k", NOW)
            assert row is not None
            assert row.value == b"%d" % number

    play(story)


def test_a_read_never_goes_back_while_a_lost_race_is_folded() -> None:
    """The writer reads again what a reader of its process has folded already."""

    async def story() -> None:
        appending, asked, released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        reading: list[asyncio.Task[bytes]] = []
        pages = [0]

        async def value() -> bytes:
            row = await here.get(ADDRESS, "k", NOW)
            return row.value if row is not None else b""

        async def steps(client: str, operation: str) -> Fault | None:
            if client == "b" or not appending.is_set():
                return None
            if operation == "log.append":
                for number in range(READ_PAGE + 1):
                    await incr(there, f"there{number}")
                appending.clear()
                await value()
                appending.set()
                reading.append(asyncio.create_task(value()))
                await asked.wait()
            if operation == "log.last:after" and not asked.is_set():
                asked.set()
                await released.wait()
            if operation == "log.read":
                pages[0] += 1
                if pages[0] == 2:
                    released.set()
                    await asyncio.wait(reading)
                    appending.clear()
            return None

        server = MemoryServer(steps)
        here, there = rows_of(server.connect("a")), rows_of(server.connect("b"))
        await incr(here, "e1")
        appending.set()
        assert await incr(here, "e2") == b'{"value":%d}' % (READ_PAGE + 3)
        assert reading[0].result() == b"%d" % (READ_PAGE + 2)

    play(story)


def test_a_warm_call_costs_one_round_trip() -> None:
    async def story() -> None:
        watched = Faulty()
        rows = rows_of(MemoryServer(watched).connect("a"))
        await incr(rows, "e1")
        watched.operations.clear()
        await incr(rows, "e2")
        await rows.get(ADDRESS, "k", NOW)
        calls = [operation for operation in watched.operations if ":" not in operation]
        assert calls == ["log.append", "log.last"]

    play(story)


def test_a_long_history_is_folded_page_by_page() -> None:
    async def story() -> None:
        watched = Faulty()
        server = MemoryServer(watched)
        writer = rows_of(server.connect("a"))
        for number in range(2 * READ_PAGE + 1):
            await incr(writer, f"e{number}")
        watched.operations.clear()
        readers = rows_of(server.connect("b"))
        found = await asyncio.gather(*(readers.get(ADDRESS, "k", NOW) for _ in range(5)))
        assert {row.value for row in found if row is not None} == {b"%d" % (2 * READ_PAGE + 1)}
        assert watched.operations.count("log.read") == 3

    play(story)


def test_a_call_waits_for_the_log_to_come_back() -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        server.cut_off("a")
        waiting = [asyncio.create_task(incr(rows, "e2"))]
        reading = asyncio.create_task(rows.get(ADDRESS, "k", NOW))
        await asyncio.sleep(PATIENCE_S / 2)
        server.restore("a")
        assert await asyncio.gather(*waiting) == [b'{"value":2}']
        assert (await reading) is not None

    play(story)


def test_calls_give_up_together_and_say_that_nothing_was_stored() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        server.cut_off("a")
        started = loop.time()
        calls = [incr(rows, f"x{number}") for number in range(20)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert loop.time() - started < PATIENCE_S + 1
        for failure in failures:
            assert isinstance(failure, MemoryUnavailable)
            assert "nothing was stored" in failure.reason
        with pytest.raises(MemoryUnavailable):
            await rows.get(ADDRESS, "k", NOW)
        server.restore("a")
        assert await incr(rows, "e2") == b'{"value":2}'

    play(story)


def test_calls_that_waited_for_others_too_long_do_not_wait_again() -> None:
    async def story() -> None:
        async def never_answers(client: str, operation: str) -> Fault | None:
            if operation != "log.append":
                return None
            await asyncio.sleep(5)
            return Fault.UNKNOWN_LOST

        loop = asyncio.get_running_loop()
        rows = rows_of(MemoryServer(never_answers).connect("a"))
        calls = [incr(rows, f"e{number}") for number in range(20)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(failure, MemoryUnavailable) for failure in failures)
        assert loop.time() < PATIENCE_S + 6

    play(story)


def test_an_unknown_outcome_is_called_unknown() -> None:
    async def story() -> None:
        watched = Faulty([None, Fault.UNKNOWN_LOST])
        server = MemoryServer(watched)
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")

        async def cut() -> None:
            server.cut_off("a")

        watched.at["log.last"] = cut
        with pytest.raises(MemoryUnavailable, match="unknown"):
            await incr(rows, "e2")

    play(story)


class LaggingLog:
    """A log whose direct reads are answered by a replica that is ``behind`` reads late."""

    def __init__(self, store: EventStore, behind: int) -> None:
        self._log = store.log
        self._behind = behind
        self.append, self.last = store.log.append, store.log.last
        self.tail, self.ends, self.purge = store.log.tail, store.log.ends, store.log.purge

    async def read(self, subject: str, *, after: int = 0, limit: int = 0) -> list[Message]:
        messages = await self._log.read(subject, after=after, limit=limit)
        if self._behind:
            self._behind -= 1
            return messages[:1] if self._behind % 2 else []
        return messages


def test_a_lagging_replica_is_waited_for() -> None:
    async def story() -> None:
        server = MemoryServer()
        writer = rows_of(server.connect("a"))
        for number in range(5):
            await incr(writer, f"e{number}")
        store = server.connect("b")
        rows = RowStore(LaggingLog(store, 4), store.subjects)
        row = await rows.get(ADDRESS, "k", NOW)
        assert row is not None
        assert row.value == b"5"

    play(story)


def test_a_scope_whose_history_was_removed_is_folded_anew() -> None:
    async def story() -> None:
        server = MemoryServer()
        store = server.connect("a")
        rows = rows_of(store)
        for number in range(3):
            await incr(rows, f"e{number}")
        await store.log.purge(server.subjects.memory_scope(*ADDRESS))
        assert await rows.get(ADDRESS, "k", NOW) is None
        await incr(rows, "f1")
        await store.log.purge(server.subjects.memory_scope(*ADDRESS))
        assert await incr(rows, "f2") == b'{"value":1}'

    play(story)


def test_an_event_from_the_future_stops_the_scope() -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        await incr(rows, "e2")
        newest = (await stored(server))[-1]
        event = state.decode(newest.data)
        assert event is not None
        server.corrupt("STATE", newest.seq, newest.data.replace(b"memory.written", b"memory.moved"))
        fresh = rows_of(server.connect("b"))
        with pytest.raises(MemoryUnavailable, match=f"sequence {newest.seq} .*upgrade"):
            await fresh.get(ADDRESS, "k", NOW)

    play(story)


def test_an_unreadable_event_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"))
        await incr(rows, "e1")
        await incr(rows, "e2")
        newest = (await stored(server))[-1]
        server.corrupt("STATE", newest.seq, b"\xff\x00")
        fresh = rows_of(server.connect("b"))
        row = await fresh.get(ADDRESS, "k", NOW)
        assert row is not None
        assert row.value == b"1"
        assert await incr(fresh, "e3") == b'{"value":2}'

    play(story)
    assert "is skipped" in caplog.text


def test_scopes_not_used_for_long_leave_the_cache_and_come_back() -> None:
    async def story() -> None:
        server = MemoryServer()
        rows = rows_of(server.connect("a"), max_scopes=3, max_cached_bytes=5_000)
        addresses = [Address("t", "user", f"u{number}") for number in range(10)]
        value = b'"' + b"x" * 1_000 + b'"'
        for turn in range(3):
            for address in addresses:
                for key in ("a", "b"):
                    effect = f"{address.scope_id}.{key}.{turn}"
                    await rows.put(address, key, value, now_ns=NOW, effect_id=effect)
            assert len(rows._scopes) <= 3
            assert rows._cached_bytes == sum(s.rows.footprint for s in rows._scopes.values())
            assert rows._cached_bytes <= 5_000
        for address in addresses:
            page = await rows.page(address, "", 10, NOW)
            assert [key for key, _ in page.entries] == ["a", "b"]

    play(story)


def test_a_scope_larger_than_the_cache_still_works() -> None:
    async def story() -> None:
        rows = rows_of(MemoryServer().connect("a"), max_cached_bytes=10)
        for number in range(1, 4):
            assert await incr(rows, f"e{number}") == b'{"value":%d}' % number

    play(story)
