"""Figures of runs that wait: what ten thousand of them cost, and how fast one goes on."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import NamedTuple

from tests.bench.bench import Bench
from tests.bench.deployment import Deployment, Server
from tests.bench.load import quantile
from tests.bench.sse import frames, request
from tests.bench.stored import stored
from tests.bench.throughput import apply_load, deployment
from tests.bench.usage import cpu_seconds, resident_mb

PARKED = 10_000
AT_ONCE = 32
STEERED = 100
TALK = {"agent": "plain", "prompt": "hi", "interactive": True}
PLAIN = {"agent": "plain", "prompt": "hi"}
ASYNC = {"Prefer": "respond-async"}
SETTLE_S = 6.0
"""A start is over, and everything that is looked for regularly was looked for once."""


class _Start(NamedTuple):
    """Seconds to /healthz and to the first run answered, megabytes of the process and of
    nats-server, percent of a core when idle."""

    healthy_s: float
    answered_s: float
    resident_mb: float
    nats_mb: float
    idle: float


def parked(bench: Bench) -> None:
    """10 000 parked interactive runs: start, memory and idle cost as without them; steering."""
    count = PARKED // 10 if bench.quick else PARKED
    with deployment(bench) as made:
        server = made.start()
        apply_load(bench, server, made.nats_pid(), 8, runs=500)
        server.stop()
        without = _start(bench, made)
        server = made.start()
        server.wait_ready()
        before = asyncio.run(stored(made))
        runs = asyncio.run(_park(server.port, count))
        server.wait_ready()
        log_bytes, view_rows, view_bytes = asyncio.run(stored(made)).each(before, count)
        server.stop()
        loaded = _start(bench, made)
        bench.figure("parked_log_bytes", log_bytes)
        bench.figure("parked_view_rows", view_rows)
        bench.figure("parked_view_bytes", view_bytes)
        bench.figure("parked_memory", (loaded.resident_mb - without.resident_mb) / count * 1e6)
        bench.figure("parked_nats_memory", (loaded.nats_mb - without.nats_mb) / count * 1e6)
        bench.figure("parked_healthy_ratio", loaded.healthy_s / without.healthy_s)
        bench.figure("parked_start", loaded.answered_s)
        bench.figure("parked_start_ratio", loaded.answered_s / without.answered_s)
        bench.figure("parked_rss_ratio", loaded.resident_mb / without.resident_mb)
        bench.figure("parked_idle", loaded.idle - without.idle)
        server = made.start()
        server.wait_ready()
        told = asyncio.run(_steer(server.port, runs[: len(runs) : len(runs) // STEERED]))
        bench.figure("steer_p50", quantile(told, 0.50) * 1e3)
        bench.figure("steer_p99", quantile(told, 0.99) * 1e3)


def _start(bench: Bench, made: Deployment) -> _Start:
    """Medians over a few starts."""
    found = [_one_start(made) for _ in range(2 if bench.quick else 3)]
    return _Start(*(statistics.median(values) for values in zip(*found, strict=True)))


def _one_start(made: Deployment) -> _Start:
    server = made.launch()
    healthy = server.wait_healthy()
    asyncio.run(_complete(server.port))
    answered = time.perf_counter() - server.began
    time.sleep(SETTLE_S)
    size = max(resident_mb(pid) for pid in server.python_pids())
    nats = resident_mb(made.nats_pid())
    idle = _idle(made, server)
    server.stop()
    return _Start(healthy, answered, size, nats, idle)


def _idle(made: Deployment, server: Server) -> float:
    pids = [*server.python_pids(), made.nats_pid()]
    before, began = cpu_seconds(pids), time.perf_counter()
    time.sleep(SETTLE_S)
    return 100 * (cpu_seconds(pids) - before) / (time.perf_counter() - began)


async def _complete(port: int) -> None:
    events = [frame.event async for frame in frames(port, "POST", "/v1/runs", PLAIN)]
    assert events[-1] == "done", events


async def _park(port: int, count: int) -> list[str]:
    """Ids of so many runs that wait for a person."""
    runs: list[str] = []
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            status, _, body = await request(port, "POST", "/v1/runs", TALK, ASYNC)
            assert status == 202, body
            runs.append(json.loads(body)["run_id"])

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    for _ in range(2):
        await at_rest(port)
    return runs


async def at_rest(port: int) -> None:
    """Wait until the server advances no run and none waits for it."""

    async def active() -> int:
        _, _, body = await request(port, "GET", "/v1/_concurrency/stats")
        stats = json.loads(body)
        return int(stats["active"] + stats["queued"])

    async with asyncio.timeout(120):
        while await active():  # noqa: ASYNC110  (the server has no event for it)
            await asyncio.sleep(0.05)


async def _steer(port: int, runs: list[str]) -> list[float]:
    """Seconds from the answer to an input until its frame, sorted; one run after the other."""
    return sorted([await _steer_one(port, run) for run in runs])


async def _steer_one(port: int, run: str) -> float:
    waiting = asyncio.Event()

    async def seen() -> float:
        async for frame in frames(port, "GET", f"/v1/runs/{run}/stream"):
            if frame.event == "awaiting_input":
                waiting.set()
            elif frame.event == "steer" and waiting.is_set():
                return time.perf_counter()
        raise AssertionError(f"the stream of {run} ended")

    reader = asyncio.create_task(seen())
    async with asyncio.timeout(20):
        await waiting.wait()
        status, _, body = await request(port, "POST", f"/v1/runs/{run}/input", {"text": "more"})
        answered = time.perf_counter()
        assert status == 200, body
        return max(0.0, await reader - answered)
