"""The projector stopped at any await, and started again, writes every row exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from events import evaluations, hooks, inbox, state
from events import vocabulary as v
from events.commit import NewEvent
from events.log import EventStore, Message
from events.memory_store import MemoryServer
from projections.database import Backend, Row
from projections.feed import Feed
from projections.framework import PositionMoved
from projections.postgres import PostgresBackend
from projections.sources import sources_of
from projections.sqlite import SqliteBackend
from projections.views import PROJECTIONS
from tests.integration.journals import (
    Journal,
    answered,
    called,
    ending,
    finished,
    opening,
    plain_run,
    usage,
)
from tests.integration.postgres import fresh_database, running_server

pytestmark = pytest.mark.integration

Dump = dict[str, list[Row]]


def messages(store: EventStore) -> list[tuple[str, bytes]]:
    """A log that touches every table, in an order that mixes its runs and streams."""
    plain = [plain_run(f"r_{i * 60:02x}0000000000000c", user_id=f"u{i}") for i in range(4)]
    waiting = Journal("r_00000000000000a1")
    call = called("t1", "Channel", '{"op":"subscribe","channel":"c"}')
    waits = [
        waiting.commit(*opening(waiting.run)),
        waiting.commit(call, usage(7, 7)),
        waiting.commit(answered("t1", "Channel"), usage(5, 5)),
        waiting.commit(call, finished("cancelled")),
    ]
    parent = Journal("r_40000000000000d4")
    inbox_of_parent = store.subjects.inbox("", parent.run)
    child = v.ChildStarted(
        tool_use_id="t2", index=0, run="r_90000000000000e5", session="s", agent="a", agent_id="a"
    )
    parks = [
        (parent.subject(store.subjects), parent.commit(*opening(parent.run))),
        (
            parent.subject(store.subjects),
            parent.commit(child, v.RunParked(reason="calls", until_ns=5)),
        ),
        (inbox_of_parent, inbox.encode(inbox.CancelMessage(id="i_1", reason="enough"))),
        (parent.subject(store.subjects), parent.commit(v.RunClaimed(worker="w2"))),
        (parent.subject(store.subjects), parent.commit(v.RunParked(reason="calls"))),
        (inbox_of_parent, b"not a message"),
    ]
    asker = Journal("r_c0000000000000f6")
    body = v.InterruptionBody(interrupt_id="q", kind="question", priority="normal")
    asked = v.InterruptionPending(interruption=body)
    answer = inbox.AnswerMessage(id="i_2", interrupt_id="q", answer="yes", at_ns=3)
    closed = v.InterruptClosed(interrupt_id="q", status="resolved", answer="yes", resolved_ns=3)
    call_waits = v.CallWaiting(tool_use_id="t3", kind="approval", ref="q")
    told = v.InterruptNotified(interrupt_id="n", message="half done")
    questions = [
        (asker.subject(store.subjects), asker.commit(*opening(asker.run), asked, call_waits)),
        (store.subjects.inbox("", asker.run), inbox.encode(answer)),
        (asker.subject(store.subjects), asker.commit(closed, told)),
    ]
    broken = Journal("r_ff000000000000b2")
    broken_first = broken.commit(*opening(broken.run))
    broken.commit(v.Text(text="lost"))
    held = Journal("r_80000000000000c3")
    future = NewEvent(type="future", body=b"{}", v=2)
    lists: list[list[tuple[str, bytes]]] = [
        *([(j.subject(store.subjects), d) for d in commits] for j, commits in plain),
        [(waiting.subject(store.subjects), d) for d in waits],
        parks,
        questions,
        [
            (broken.subject(store.subjects), broken_first),
            (broken.subject(store.subjects), broken.commit(*ending())),
            (broken.subject(store.subjects), b"not a commit"),
        ],
        [
            (held.subject(store.subjects), held.commit(*opening(held.run))),
            (held.subject(store.subjects), held.commit(future)),
            (held.subject(store.subjects), held.commit(*ending())),
        ],
        [_memory(store, f"k{i % 3}", None if i == 4 else str(i)) for i in range(7)],
        [_evaluation(store, f"eval_{i % 3}", i) for i in range(4)],
        [_hook(store, f"h{i % 3}", f"hook_{i}", gone=i == 4) for i in range(7)],
    ]
    mixed: list[tuple[str, bytes]] = []
    while any(lists):
        mixed += [part.pop(0) for part in lists if part]
    return mixed


def _memory(store: EventStore, key: str, value: str | None) -> tuple[str, bytes]:
    changed: dict[str, Any] = {} if value is None else {"value": Raw(value.encode())}
    event = state.MemoryWritten(
        scope="agent", scope_id="a", key=key, op="set", created_at_ns=1, updated_at_ns=2, **changed
    )
    return store.subjects.memory("", "agent", "a", key), state.encode(event)


def _hook(store: EventStore, name: str, ident: str, *, gone: bool) -> tuple[str, bytes]:
    event: hooks.HookEvent = hooks.HookRegistered(
        id=ident, owner="app", name=name, phase="pre", callback_url="http://x", registered_at_ns=1
    )
    if gone:
        event = hooks.HookDeleted(id=ident, owner="app", name=name)
    return store.subjects.state("hook", "", "app", name), hooks.encode(event)


def _evaluation(store: EventStore, ident: str, score: float) -> tuple[str, bytes]:
    event = evaluations.EvaluationSubmitted(
        eval_id=ident,
        run_id="r_00000000000000a1",
        score=score,
        dimensions={"tone": score, "facts": 1.0},
        emitter_role="self",
        created_at_ns=1,
    )
    return store.subjects.state("eval", "", event.run_id, ident), evaluations.encode(event)


async def fill(store: EventStore) -> None:
    for subject, data in messages(store):
        await store.log.append(subject, data)


def starts(store: EventStore) -> dict[str, int]:
    return {s.stream: s.first - 1 for s in sources_of(store.subjects)}


async def feed_on(backend: Backend, store: EventStore) -> Feed:
    """A new feed over what the last one left."""
    return Feed(
        store=store,
        tables=await backend.open("a"),
        dialect=backend.dialect,
        projections=PROJECTIONS,
        sources=sources_of(store.subjects),
        moved=lambda _: None,
        hurried=lambda: True,
    )


async def dump(feed: Feed, backend: Backend) -> Dump:
    rows: Dump = {}
    for projection in PROJECTIONS:
        for table in projection.tables:
            query = projection.queries(backend.dialect)[f"all_of_{table}"]
            rows[table] = await feed.tables.fetch(query)
    return rows


async def fold_at_once(backend: Backend, store: EventStore) -> Dump:
    """The reference: everything in one go, undisturbed."""
    await (await backend.create("a", PROJECTIONS, starts(store), "")).close()
    feed = await feed_on(backend, store)
    task = asyncio.create_task(feed.run())
    await feed.caught_up.wait()
    await stop(task)
    rows = await dump(feed, backend)
    await feed.tables.close()
    return rows


async def stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def fold_with_kills(backend: Backend, store: EventStore, lives: Sequence[int]) -> Dump:
    """Feeds that live for so many turns of the loop each, then one that lives on."""
    await (await backend.create("a", PROJECTIONS, starts(store), "")).close()
    for life in lives:
        feed = await feed_on(backend, store)
        task = asyncio.create_task(feed.run())
        for _ in range(life):
            await asyncio.sleep(0)
        await stop(task)
        await feed.tables.close()
    feed = await feed_on(backend, store)
    task = asyncio.create_task(feed.run())
    await feed.caught_up.wait()
    await stop(task)
    rows = await dump(feed, backend)
    await feed.tables.close()
    return rows


@contextlib.contextmanager
def sqlite_backend() -> Iterator[SqliteBackend]:
    with tempfile.TemporaryDirectory() as folder:
        yield SqliteBackend(Path(folder))


@settings(max_examples=40, deadline=None)
@given(lives=st.lists(st.integers(0, 60), max_size=12))
def test_a_projector_killed_at_any_await_writes_every_row_once(lives: list[int]) -> None:
    async def scenario() -> None:
        store = MemoryServer().connect("views")
        await fill(store)
        with sqlite_backend() as backend:
            expected = await fold_at_once(backend, store)
            assert await fold_with_kills(backend, store, lives) == expected
        assert len(expected["runs"]) == 9
        assert all(expected[table] for table in ("runs", "transcripts", "memory", "evaluations"))

    asyncio.run(scenario())


def test_the_same_holds_for_postgres(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_server(tmp_path_factory.mktemp("postgres-kills")) as server:
        dsn = fresh_database(server)

        async def scenario(lives: list[int]) -> None:
            store = MemoryServer().connect("views")
            await fill(store)
            backend = PostgresBackend(dsn)
            assert await backend.lock()
            expected = await fold_at_once(backend, store)
            assert await fold_with_kills(backend, store, lives) == expected
            await backend.close()

        @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(lives=st.lists(st.integers(0, 400), max_size=6))
        def kill(lives: list[int]) -> None:
            asyncio.run(scenario(lives))

        kill()


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_rows_do_not_depend_on_how_the_log_is_cut_into_batches(cuts: list[int]) -> None:
    async def scenario() -> None:
        store = MemoryServer().connect("views")
        await fill(store)
        with sqlite_backend() as backend:
            expected = await fold_at_once(backend, store)
            await (await backend.create("a", PROJECTIONS, starts(store), "")).close()
            feed = await feed_on(backend, store)
            await feed.prepare()
            waiting: dict[str, list[Message]] = {}
            for source in sources_of(store.subjects):
                found = [m for root in source.roots for m in await store.log.read(root)]
                waiting[source.stream] = sorted(found, key=lambda m: m.seq)
            turn = 0
            while any(waiting.values()):
                for stream, left in waiting.items():
                    size = cuts[turn % len(cuts)]
                    turn += 1
                    waiting[stream] = left[size:]
                    await feed.apply({stream: left[:size]})
            assert await dump(feed, backend) == expected
            await feed.tables.close()

    asyncio.run(scenario())


def test_a_writer_that_lost_its_place_writes_nothing() -> None:
    async def scenario() -> None:
        store = MemoryServer().connect("views")
        await fill(store)
        with sqlite_backend() as backend:
            await (await backend.create("a", PROJECTIONS, starts(store), "")).close()
            slow = await feed_on(backend, store)
            await slow.prepare()
            fast = await feed_on(backend, store)
            task = asyncio.create_task(fast.run())
            await fast.caught_up.wait()
            await stop(task)
            expected = await dump(fast, backend)
            first = await store.log.read(store.subjects.any("run.00"), limit=1)
            with pytest.raises(PositionMoved):
                await slow.apply({"RUNS-0": first})
            assert await dump(fast, backend) == expected
            await slow.tables.close()
            await fast.tables.close()

    asyncio.run(scenario())
