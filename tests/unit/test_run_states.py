"""What a watcher of run states is told, and what it may miss."""

from __future__ import annotations

import asyncio

from events import vocabulary as v
from events.memory_store import MemoryServer
from loomcycle.run_states import BUFFERED, RunStates, RunTransition, only
from tests.integration.journals import Journal, ending, opening, plain_run


def everything(transition: RunTransition) -> bool:
    return True


async def told(states: RunStates, server: MemoryServer, *runs: str) -> list[tuple[str, str]]:
    """(run, status) of what a watcher sees while these runs are played."""
    store = server.connect("writer")
    watcher = await states.watch(everything)
    for run in runs:
        journal, commits = plain_run(run)
        for data in commits:
            await store.log.append(journal.subject(store.subjects), data)
    found: list[tuple[str, str]] = []
    while transitions := await watcher.next(0.05):
        found += ((t.run_id, t.status) for t in transitions)
    states.leave(watcher)
    return found


async def test_starts_and_ends_of_all_streams_are_told() -> None:
    server = MemoryServer()
    states = RunStates(server.connect("p"))
    runs = ("r_00000000000000a1", "r_ff000000000000b2")
    found = await told(states, server, *runs)
    assert sorted(found) == [(run, status) for run in runs for status in ("completed", "running")]
    await states.close()


async def test_there_is_no_history_and_a_later_watcher_starts_anew() -> None:
    server = MemoryServer()
    states = RunStates(server.connect("p"))
    await told(states, server, "r_00000000000000a1")
    assert await told(states, server) == []
    assert len(await told(states, server, "r_00000000000000a2")) == 2
    await states.close()


async def test_a_withdrawn_start_is_no_run() -> None:
    server = MemoryServer()
    store = server.connect("p")
    states = RunStates(store)
    watcher = await states.watch(everything)
    tombstone = Journal("r_00000000000000a1")
    await tombstone.append(store.log, store.subjects, v.RunWithdrawn(reason="queue timeout"))
    assert await watcher.next(0.05) == []
    await states.close()


async def test_a_slow_watcher_loses_what_it_has_no_room_for_and_delays_nobody() -> None:
    server = MemoryServer()
    store = server.connect("p")
    states = RunStates(store)
    slow, quick = await states.watch(everything), await states.watch(everything)
    seen = 0
    for n in range(BUFFERED):
        journal = Journal(f"r_{n:016x}")
        await journal.append(store.log, store.subjects, *opening(journal.run))
        await journal.append(store.log, store.subjects, *ending())
        seen += len(await quick.next(1))
    while seen < 2 * BUFFERED:
        seen += len(await quick.next(1))
    kept = await slow.next(1)
    assert len(kept) == BUFFERED
    assert kept[0].run_id == f"r_{0:016x}"
    await states.close()


async def test_wishes() -> None:
    transition = RunTransition(
        seq=1,
        run_id="r_1",
        tenant="acme",
        agent_id="a_1",
        agent="writer",
        user_id="u1",
        parent_agent_id="",
        parent_context=None,
        status="failed",
        ts_ns=1,
    )
    wanted = only(user_id="u1", tenant=None, statuses=(), agent="")
    assert wanted(transition)
    for changed in (
        {"user_id": "u2"},
        {"tenant": "other"},
        {"statuses": ["completed"]},
        {"agent": "reader"},
    ):
        wish = {"user_id": "u1", "tenant": "acme", "statuses": ["failed"], "agent": "writer"}
        assert only(**wish)(transition)  # type: ignore[arg-type]
        assert not only(**(wish | changed))(transition)  # type: ignore[arg-type]


async def test_a_watcher_that_comes_while_the_first_one_opens_waits_for_it() -> None:
    server = MemoryServer()
    states = RunStates(server.connect("p"))
    watchers = await asyncio.gather(*(states.watch(everything) for _ in range(3)))
    store = server.connect("writer")
    journal = Journal("r_00000000000000a1")
    await journal.append(store.log, store.subjects, *opening(journal.run))
    for watcher in watchers:
        assert [t.status for t in await watcher.next(1)] == ["running"]
    await states.close()
