"""Figures of journals: fold, rebuild of views, a run of ten thousand calls, a program's calls."""

from __future__ import annotations

import asyncio
import shutil
import signal
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from events.commit import Commit, decode
from events.embedded import EmbeddedServer
from events.log import EventStore
from events.nats_store import connect
from events.seals import load_master_key
from events.streams import RUN_STREAM_NAMES, RUNS
from loomcycle.loading import Plans, load, opening
from projections.views import Views, ViewSettings
from replay.fold import fold
from tests.bench.bench import Bench
from tests.bench.deployment import Deployment, Server, send
from tests.bench.sse import BrokenOff, frames
from tests.bench.throughput import apply_load, deployment
from tests.bench.usage import cpu_seconds

EARLY, LATE = (100, 1_000), (9_000, 10_000)
QUICK_EARLY, QUICK_LATE = (10, 100), (900, 1_000)
PROGRAM_CALLS = 1000
LONG_PROGRAM_CALLS = 5000
PROGRAM = """
function run(input) {
  for (let i = 0; i < CALLS; i++) Memory.incr({ scope: "user", key: "count" });
  return "counted";
}
"""
REPEATS = 5


def long_run(bench: Bench) -> None:
    """A model-driven run: log bytes and processor time a turn, cold resume, speed of the fold."""
    early, late = (QUICK_EARLY, QUICK_LATE) if bench.quick else (EARLY, LATE)
    agents = {
        "long": {
            "provider": "mock",
            "model": f"mock-steps-{2 * late[1]}",
            "unbounded_iterations": True,
            "allowed_tools": ["Memory"],
            "memory_scopes": ["user"],
        }
    }
    with deployment(bench, agents=agents) as made:
        made.start()
        run, costs = asyncio.run(_drive(made, [*early, *late]))
        made.kill_everything()
        bench.figure("long_turn", costs[early] * 1e3)
        bench.figure("long_cost", costs[late] / costs[early])
        server = made.launch()
        healthy = server.since + server.wait_healthy()
        asyncio.run(_after(bench, made, run, healthy, early, late))


async def _drive(made: Deployment, marks: list[int]) -> tuple[str, dict[tuple[int, int], float]]:
    """Run up to the last mark; processor seconds a turn between each two marks."""
    pids = [*made.servers[-1].python_pids(), made.nats_pid()]
    spent: dict[int, float] = {}
    run, calls = "", 0
    body = {"agent": "long", "prompt": "count", "user_id": "bench"}
    async for frame in frames(made.servers[-1].port, "POST", "/v1/runs", body):
        if frame.event == "agent":
            run = frame.json()["run_id"]
        if frame.event != "tool_result":
            continue
        calls += 1
        if calls in marks:
            spent[calls] = cpu_seconds(pids)
        if calls == marks[-1]:
            break
    return run, {(a, b): (spent[b] - spent[a]) / (b - a) for a, b in pairwise(marks)}


async def _after(
    bench: Bench,
    made: Deployment,
    run: str,
    healthy: float,
    early: tuple[int, int],
    late: tuple[int, int],
) -> None:
    store = await made.store()
    try:
        commits = await _commits_after(store, run, healthy)
        resumed = next(c for c in commits if c.header.events[0].ts / 1e9 > made.servers[-1].since)
        bench.figure("long_resume", max(0.0, resumed.header.events[0].ts / 1e9 - healthy))
        for pid in made.servers[-1].python_pids():
            send(pid, signal.SIGSTOP)  # what follows is about the journal alone
        sizes = await _bytes_of_turns(store, run)
        bench.figure("long_bytes", _mean(sizes, late) / _mean(sizes, early))
        started = opening(commits[0])
        assert started is not None
        plan = await Plans(store).get(started.plan)
        began = time.perf_counter()
        await load(store, Plans(store), "", run)
        bench.figure("long_load", time.perf_counter() - began)
    finally:
        await store.close()
    speeds = []
    for _ in range(REPEATS):
        fresh = [_again(commit) for commit in commits]
        events = sum(len(commit.bodies) for commit in fresh)
        began = time.perf_counter()
        fold(plan, fresh)
        speeds.append(events / (time.perf_counter() - began))
    bench.figure("fold", statistics.median(speeds))


def _again(commit: Commit) -> Commit:
    """The same commit with nothing decoded yet."""
    return Commit(commit.header, commit.hash, commit.bodies, commit.seq)


async def _commits_after(store: EventStore, run: str, moment: float) -> list[Commit]:
    """The journal once it holds a commit made after ``moment`` (seconds since 1970)."""
    async with asyncio.timeout(30):
        while True:
            messages = await store.log.read(store.subjects.journal("", run))
            last = decode(messages[-1].data, messages[-1].seq)
            if last.header.events[-1].ts / 1e9 > moment:
                return [decode(m.data, m.seq) for m in messages]
            await asyncio.sleep(0.01)


async def _bytes_of_turns(store: EventStore, run: str) -> list[int]:
    """Bytes in the log for each turn: its commits, and the memory row that its call wrote."""
    turns = [0]
    for message in await store.log.read(store.subjects.journal("", run)):
        turns[-1] += len(message.data)
        types = [event.type for event in decode(message.data, message.seq).header.events]
        if "tool_result" in types:
            turns.append(0)
    rows = await store.log.read(store.subjects.memory_scope("", "user", "bench"))
    return [size + len(row.data) for size, row in zip(turns, rows, strict=False)]


def _mean(sizes: list[int], turns: tuple[int, int]) -> float:
    return statistics.fmean(sizes[turns[0] : turns[1]])


def program(bench: Bench) -> None:
    """A code-js run of 1 000 calls into memory."""
    with deployment(bench, agents={"program": _program(PROGRAM_CALLS)}) as made:
        server = made.start()
        took = asyncio.run(_timed(server.port))
        bench.figure("code_total", took)
        bench.figure("code_call", took / PROGRAM_CALLS * 1e3)


def _program(calls: int) -> dict[str, object]:
    return {
        "provider": "code-js",
        "code": PROGRAM.replace("CALLS", str(calls)),
        "allowed_tools": ["Memory"],
        "memory_scopes": ["user"],
    }


def long_program(bench: Bench) -> None:
    """A code-js run of 5 000 calls: the last thousand against the first."""
    calls = LONG_PROGRAM_CALLS // (5 if bench.quick else 1)
    part = calls // 5
    with deployment(bench, agents={"program": _program(calls)}) as made:
        server = made.start()
        first, last = asyncio.run(_ends_of_program(made, server, calls, part))
    bench.figure("code_long_first", first.cpu_s / part * 1e3)
    bench.figure("code_long_last", last.cpu_s / part * 1e3)
    bench.figure("code_long_cost", last.cpu_s / first.cpu_s)
    bench.figure("code_long_time", last.seconds / first.seconds)


class _Spent(NamedTuple):
    """``cpu_s`` of all processes, the program's own one included."""

    seconds: float
    cpu_s: float

    def since(self, before: _Spent) -> _Spent:
        return _Spent(self.seconds - before.seconds, self.cpu_s - before.cpu_s)


async def _ends_of_program(
    made: Deployment, server: Server, calls: int, part: int
) -> tuple[_Spent, _Spent]:
    """What the first and the last ``part`` of ``calls`` took."""

    def now() -> _Spent:
        pids = [*server.python_pids(), made.nats_pid()]
        return _Spent(time.perf_counter(), cpu_seconds(pids))

    marks = {0: now()}
    done = 0
    body = {"agent": "program", "prompt": "count", "user_id": "bench"}
    async for frame in frames(server.port, "POST", "/v1/runs", body):
        assert frame.event != "error", frame.data
        done += frame.event == "tool_result"
        if frame.event == "tool_result" and done in (part, calls - part, calls):
            marks[done] = now()
    assert done == calls, f"{done} of {calls} calls"
    return marks[part].since(marks[0]), marks[calls].since(marks[calls - part])


async def _timed(port: int) -> float:
    began = time.perf_counter()
    body = {"agent": "program", "prompt": "count", "user_id": "bench"}
    last = ""
    try:
        async for frame in frames(port, "POST", "/v1/runs", body):
            last = frame.event
            if frame.event == "error":
                raise AssertionError(frame.data.decode())
    except BrokenOff as cause:
        raise AssertionError(f"after {last}: {cause}") from None
    return time.perf_counter() - began


def rebuild(bench: Bench) -> None:
    """Fold everything in the log into new SQLite tables, with no server beside."""
    with deployment(bench) as made:
        server = made.start()
        apply_load(bench, server, made.nats_pid(), 32, runs=2_000 if bench.quick else 20_000)
        server.stop()
        bench.figure("rebuild", asyncio.run(_rebuild(made)))


async def _rebuild(made: Deployment) -> float:
    """Events folded in a second."""
    embedded = await EmbeddedServer.start(made.data)
    folder = Path(tempfile.mkdtemp(dir=made.directory))

    async def open_store() -> EventStore:
        return await connect(
            embedded.url,
            token=embedded.token,
            master_key=load_master_key(made.data),
            name="rebuild",
        )

    try:
        events, ends = await _events_in_log(await open_store())
        began = time.perf_counter()
        views = await Views.open(ViewSettings(path=str(folder)), open_store)
        try:
            await views.barrier(ends, timeout=600.0)
            return events / (time.perf_counter() - began)
        finally:
            await views.close()
    finally:
        await embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _events_in_log(store: EventStore) -> tuple[int, dict[str, int]]:
    """Events in all journals, and the last sequence of each stream that holds some."""
    count = 0
    try:
        ends = await store.log.ends(RUN_STREAM_NAMES)
        ends = {spec.name: ends[spec.name] for spec in RUNS if ends[spec.name] >= spec.first}
        for stream, end in ends.items():
            async for batch in store.log.tail(stream):
                count += sum(
                    len(decode(m.data, m.seq).bodies)
                    for m in batch
                    if m.subject.endswith(".journal")
                )
                if batch[-1].seq >= end:
                    break
    finally:
        await store.close()
    return count, ends
