"""Figures of beginnings: a start on warm files, and going on after everything was killed."""

from __future__ import annotations

import asyncio
import statistics
import time

from events.commit import decode
from events.log import EventStore, LogError
from tests.bench.bench import Bench
from tests.bench.deployment import Deployment, eventually
from tests.bench.sse import BrokenOff, Refused, frames
from tests.bench.throughput import apply_load, deployment

RUNS = 100
LATENCY_MS = 200
STEPS = 2000
PLAIN = {"agent": "plain", "prompt": "hi"}


def starts(bench: Bench) -> None:
    """From the start of the process to the first answer, with some runs in the log."""
    healthy, answered = [], []
    with deployment(bench) as made:
        server = made.start()
        apply_load(bench, server, made.nats_pid(), 8, runs=500)
        server.stop()
        for _ in range(2 if bench.quick else 5):
            server = made.launch()
            healthy.append(server.wait_healthy())
            asyncio.run(_complete(server.port))
            answered.append(time.perf_counter() - server.began)
            server.stop()
    bench.figure("start_healthy", statistics.median(healthy))
    bench.figure("start_run", statistics.median(answered))


async def _complete(port: int) -> None:
    """One run, tried until the server takes it."""
    while True:
        try:
            events = [frame.event async for frame in frames(port, "POST", "/v1/runs", PLAIN)]
        except (BrokenOff, Refused):
            await asyncio.sleep(0.005)
            continue
        assert events[-1] == "done", events
        return


def recovery(bench: Bench) -> None:
    """SIGKILL to server and nats-server with 100 runs in the middle of model calls."""
    agents = {
        "long": {
            "provider": "mock",
            "model": f"mock-steps-{STEPS}",
            "unbounded_iterations": True,
            "allowed_tools": ["Context"],
        }
    }
    environ = {"LOOMCYCLE_MOCK_LATENCY_MS": str(LATENCY_MS)}
    with deployment(bench, environ=environ, agents=agents) as made:
        made.start()
        bench.figure("recovery", asyncio.run(_kill_and_restart(made)))


async def _kill_and_restart(made: Deployment) -> float:
    """Seconds from the restart to the moment when the last run has a new commit."""
    port = made.servers[-1].port
    under_way: dict[str, int] = {}
    readers = [asyncio.create_task(_watch(port, under_way)) for _ in range(RUNS)]
    await eventually(
        lambda: len(under_way) == RUNS and min(under_way.values()) >= 3, "100 runs", 60
    )
    made.kill_everything()
    await asyncio.gather(*readers)
    began = time.time()
    server = made.launch(port=port)
    await asyncio.to_thread(server.wait_healthy)
    store = await made.store()
    try:
        taken = [await _continued(store, run, began) for run in under_way]
    finally:
        await store.close()
    return max(taken)


async def _watch(port: int, under_way: dict[str, int]) -> None:
    run = ""
    body = {"agent": "long", "prompt": "count"}
    try:
        async for frame in frames(port, "POST", "/v1/runs", body):
            if frame.event == "agent":
                run = frame.json()["run_id"]
                under_way[run] = 0
            elif frame.event == "tool_result":
                under_way[run] += 1
    except BrokenOff:
        pass


async def _continued(store: EventStore, run: str, since: float) -> float:
    """Seconds from ``since`` to the first commit of ``run`` after it."""
    async with asyncio.timeout(30):
        while True:
            try:
                for message in await store.log.read(store.subjects.journal("", run)):
                    at = decode(message.data, message.seq).header.events[0].ts / 1e9
                    if at > since:
                        return at - since
            except LogError:
                pass
            await asyncio.sleep(0.02)
