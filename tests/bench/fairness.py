"""Figures of a crowded queue: what one user's ten thousand runs cost another user.

The yardstick is the same server with all its slots taken by as many clients of the first user
as there are slots, so that hardly anything is queued; a server without any load stands beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.bench.bench import Bench, Unavailable
from tests.bench.deployment import Deployment
from tests.bench.load import quantile
from tests.bench.parked import ASYNC
from tests.bench.sse import BrokenOff, frames, request
from tests.bench.throughput import deployment

SLOTS = 16
LATENCY_MS = 100
QUEUED = 10_000
OTHERS = 4
"""Other users, each of whom has one run at a time."""

RUNS = 75
"""Of each other user, one after the other."""

SETTLE_S = 2.0
"""After the last of the starts was posted."""

QUEUE_LIMIT_MS = 600_000
OPEN_FILES_SPARE = 1_000


class _Waits(NamedTuple):
    """Milliseconds of other users until the first frame of a run."""

    p50: float
    p99: float


Occupy = Callable[[int, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Has a server's slots taken while a measurement runs."""


def fairness(bench: Bench) -> None:
    """Another user's wait for a first frame while one user has 10 000 starts in the queue."""
    count = QUEUED // 10 if bench.quick else QUEUED
    allow_open_files(count + OPEN_FILES_SPARE)
    idle = _measure(bench, _nobody)
    busy = _measure(bench, _as_many_as_slots)
    queued = _measure(bench, _Crowd(bench, count).occupy)
    bench.figure("fair_idle_p99", idle.p99)
    bench.figure("fair_busy_p50", busy.p50)
    bench.figure("fair_busy_p99", busy.p99)
    bench.figure("fair_queued_p50", queued.p50)
    bench.figure("fair_queued_p99", queued.p99)
    bench.figure("fair_ratio", queued.p99 / busy.p99)


def _measure(bench: Bench, occupy: Occupy) -> _Waits:
    """The others' waits on a fresh server that ``occupy`` keeps busy."""
    concurrency = {
        "max_concurrent_runs": SLOTS,
        "max_queue_depth": 2 * QUEUED,
        "queue_timeout_ms": QUEUE_LIMIT_MS,
    }
    environ = {"LOOMCYCLE_MOCK_LATENCY_MS": str(LATENCY_MS)}
    with deployment(bench, environ=environ, concurrency=concurrency) as made:
        server = made.start()
        server.wait_ready()
        try:
            return asyncio.run(_waits(server.port, occupy, RUNS // (5 if bench.quick else 1)))
        finally:
            _end_at_once(made)


def _end_at_once(made: Deployment) -> None:
    """Thousands of runs are left; nobody needs them."""
    made.kill_everything()


async def _waits(port: int, occupy: Occupy, runs: int) -> _Waits:
    taken: list[float] = []

    async def others() -> None:
        await asyncio.gather(*(_other(port, f"other-{n}", runs, taken) for n in range(OTHERS)))

    await occupy(port, others)
    taken.sort()
    return _Waits(quantile(taken, 0.50) * 1e3, quantile(taken, 0.99) * 1e3)


async def _other(port: int, user: str, runs: int, taken: list[float]) -> None:
    body = {"agent": "plain", "prompt": "hi", "user_id": user}
    for _ in range(runs):
        began = time.perf_counter()
        first = last = ""
        async for frame in frames(port, "POST", "/v1/runs", body):
            if not first:
                first = frame.event
                taken.append(time.perf_counter() - began)
            last = frame.event
        assert last == "done", last


async def _nobody(port: int, measure: Callable[[], Awaitable[None]]) -> None:
    await measure()


async def _as_many_as_slots(port: int, measure: Callable[[], Awaitable[None]]) -> None:
    over = asyncio.Event()

    async def client() -> None:
        body = {"agent": "plain", "prompt": "hi", "user_id": "many"}
        while not over.is_set():
            async for _ in frames(port, "POST", "/v1/runs", body):
                pass

    clients = [asyncio.create_task(client()) for _ in range(SLOTS)]
    await asyncio.sleep(3 * LATENCY_MS / 1e3)
    await measure()
    over.set()
    await asyncio.gather(*clients)


class _Crowd:
    """``count`` starts of one user, all of them posted before the measurement begins."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self._count = count

    async def occupy(self, port: int, measure: Callable[[], Awaitable[None]]) -> None:
        starts = [asyncio.create_task(self._start(port)) for _ in range(self._count)]
        try:
            while await _queued(port) < self._count - SLOTS - await self._begun(starts):  # noqa: ASYNC110
                await asyncio.sleep(1.0)
            await asyncio.sleep(SETTLE_S)
            await measure()
            left = await _queued(port)
            self._bench.figure("fair_left", left)
            assert left > self._count / 10, "the queue ran dry while it was measured"
        finally:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _begun(self, starts: list[asyncio.Task[None]]) -> int:
        """How many were begun meanwhile. Raises what any of them raised."""
        done = [task for task in starts if task.done()]
        for task in done:
            task.result()
        return len(done)

    async def _start(self, port: int) -> None:
        body = {"agent": "plain", "prompt": "hi", "user_id": "many"}
        while True:
            with contextlib.suppress(BrokenOff):  # so many connect at once that some are refused
                status, _, answer = await request(port, "POST", "/v1/runs", body, ASYNC)
                assert status == 202, answer
                return
            await asyncio.sleep(0.1)


async def _queued(port: int) -> int:
    _, _, body = await request(port, "GET", "/v1/_concurrency/stats")
    return int(json.loads(body)["queued"])


def allow_open_files(count: int) -> None:
    """Each start that waits is a connection; child processes inherit the bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise Unavailable(f"{count} open files are needed, the system allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
