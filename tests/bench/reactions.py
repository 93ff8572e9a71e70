"""Figures of somebody waiting for a run to react: to an input, and to a cancel sent elsewhere.

Everything is timed from the moment before the request is sent, by a client on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from events.commit import decode
from tests.bench.bench import Bench
from tests.bench.deployment import MASTER_KEY, Deployment, Server
from tests.bench.load import quantile
from tests.bench.nats_server import NatsServer
from tests.bench.parked import ASYNC, at_rest
from tests.bench.sse import BrokenOff, frames, request
from tests.bench.throughput import deployment
from tests.bench.usage import Share
from tests.wire.vendors import FakeVendor, anthropic_text, environment

INPUTS = 400
TALKS = 40
"""Parked runs that the inputs go to in turn."""

STEERS = 200
WORKING_LATENCY_MS = 5
"""Of the model calls of a run at work: an input waits for the end of one."""

CANCELS = 200
WAVE = 10
"""Runs under way while one of them is cancelled."""

CANCELLED_LATENCY_MS = 300
LIGHT_PAUSE_S = 0.05
"""Between the plain runs that go on beside."""

MODEL = "/v1/messages"
CALLING = {"provider": "mock", "unbounded_iterations": True, "allowed_tools": ["Context"]}


class _Woken(NamedTuple):
    """Seconds from an input until the model was asked, and until the stream had it."""

    asked_s: float
    shown_s: float


class _Ended(NamedTuple):
    """Seconds from a cancel until its answer, and until the stream ended."""

    acknowledged_s: float
    ended_s: float


def inputs(bench: Bench) -> None:
    """An input until the first model call and until its frame, runs parked and at work."""
    asyncio.run(_inputs(bench))


async def _inputs(bench: Bench) -> None:
    scale = 10 if bench.quick else 1
    async with FakeVendor() as vendor:
        vendor.route("POST", MODEL, anthropic_text("ok"))
        agents = {
            "talk": {"provider": "anthropic", "model": "m-1"},
            "plain": {"provider": "mock", "model": "mock-generic"},
            "busy": {**CALLING, "model": "mock-steps-100000"},
        }
        environ = {**environment(vendor), "LOOMCYCLE_MOCK_LATENCY_MS": str(WORKING_LATENCY_MS)}
        with deployment(bench, environ=environ, agents=agents) as made:
            server = await asyncio.to_thread(made.start)
            await asyncio.to_thread(server.wait_ready)
            port = server.port
            share = Share([*server.python_pids(), made.nats_pid()])
            async with _light_load(port):
                woken = await _wake(vendor, port, INPUTS // scale, TALKS // scale)
            shown = await _steer_at_work(port, STEERS // scale)
            bench.figure("inputs_others", share.others())
    for name, values in (
        ("wake", sorted(one.asked_s for one in woken)),
        ("steer_parked", sorted(one.shown_s for one in woken)),
        ("steer_at_work", sorted(shown)),
    ):
        bench.figure(f"{name}_p50", quantile(values, 0.50) * 1e3)
        bench.figure(f"{name}_p99", quantile(values, 0.99) * 1e3)


async def _wake(vendor: FakeVendor, port: int, count: int, talks: int) -> list[_Woken]:
    """Inputs to parked runs that are being watched, one after the other."""
    runs = [await _detached(port, "talk", interactive=True) for _ in range(talks)]
    streams = [_Stream(port, run) for run in runs]
    try:
        for stream in streams:
            await stream.until("awaiting_input", 1)
        return [await _wake_one(vendor, port, streams[n % talks]) for n in range(count)]
    finally:
        for stream in streams:
            await stream.close()


async def _wake_one(vendor: FakeVendor, port: int, stream: _Stream) -> _Woken:
    await at_rest(port)
    await asyncio.sleep(random.uniform(0, LIGHT_PAUSE_S))  # at rest is always between two others
    before, waits = len(vendor.requests), stream.count("awaiting_input")
    steers = stream.count("steer")
    began = time.perf_counter()
    asked = asyncio.create_task(_asked(vendor, before))
    await _say(port, stream.run)
    shown = await stream.until("steer", steers + 1)
    reached = await asked
    await stream.until("awaiting_input", waits + 1)
    return _Woken(reached - began, shown - began)


async def _asked(vendor: FakeVendor, before: int) -> float:
    await vendor.wait_for(lambda v: len(v.requests) > before)
    return time.perf_counter()


async def _steer_at_work(port: int, count: int) -> list[float]:
    """Seconds until the frame, of inputs to a run that makes one call after the other."""
    run = await _detached(port, "busy", interactive=True)
    stream = _Stream(port, run)
    try:
        await stream.until("tool_result", 1)
        taken = []
        for _ in range(count):
            steers = stream.count("steer")
            began = time.perf_counter()
            await _say(port, run)
            taken.append(await stream.until("steer", steers + 1) - began)
            await stream.until("tool_result", stream.count("tool_result") + 5)
        return taken
    finally:
        await stream.close()


async def _say(port: int, run: str) -> None:
    status, _, body = await request(port, "POST", f"/v1/runs/{run}/input", {"text": "more"})
    assert status == 200, body


def cancels(bench: Bench) -> None:
    """A cancel sent to another process than the run's owner: acknowledged, and ended.

    A replica has its own views of the log; a worker shares them with the others of its machine.
    """
    environ = {
        "LOOMCYCLE_MOCK_LATENCY_MS": str(CANCELLED_LATENCY_MS),
        "LOOMCYCLE_MASTER_KEY": MASTER_KEY,
    }
    agents = {"slow": {**CALLING, "model": "mock-steps-2000"}}
    folder = Path(tempfile.mkdtemp(dir=bench.directory))
    try:
        with NatsServer(folder) as nats:
            nats.start()
            with deployment(bench, environ=environ, nats_url=nats.url, agents=agents) as made:
                _cancel(bench, "cancel", made, made.replica("owner"), made.replica("other"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with deployment(bench, environ=environ, agents=agents) as made:
        owner, other = made.start(), made.start()
        owner.wait_ready()
        other.wait_ready()
        _cancel(bench, "cancel_worker", made, owner, other)


def _cancel(bench: Bench, name: str, made: Deployment, owner: Server, other: Server) -> None:
    waves = CANCELS // WAVE // (5 if bench.quick else 1)
    found = asyncio.run(_cancels(made, owner.port, other.port, waves))
    for part, values in (
        ("ack", sorted(one.acknowledged_s for one in found)),
        ("end", sorted(one.ended_s for one in found)),
    ):
        bench.figure(f"{name}_{part}_p50", quantile(values, 0.50) * 1e3)
        bench.figure(f"{name}_{part}_p99", quantile(values, 0.99) * 1e3)


async def _cancels(made: Deployment, owner: int, other: int, waves: int) -> list[_Ended]:
    found: list[_Ended] = []
    cancelled: list[str] = []
    for _ in range(waves):
        runs = [await _start(owner, "slow") for _ in range(WAVE)]
        streams = [_Stream(owner, run) for run, _ in runs]
        try:
            for stream in streams:
                await stream.until("tool_result", 1)
            for stream, (run, agent_id) in zip(streams, runs, strict=True):
                found.append(await _cancel_one(other, stream, agent_id))
                cancelled.append(run)
        finally:
            for stream in streams:
                await stream.close()
    elsewhere, _ = await _start(other, "slow")
    owners, others = await _writers(made, cancelled), await _writers(made, [elsewhere])
    assert len(owners) == 1, owners
    assert owners.isdisjoint(others), "the replica that was asked owned the runs itself"
    return found


async def _cancel_one(other: int, stream: _Stream, agent_id: str) -> _Ended:
    began = time.perf_counter()
    status, _, body = await request(other, "POST", f"/v1/agents/{agent_id}/cancel", {})
    acknowledged = time.perf_counter()
    assert status == 200, body
    assert json.loads(body)["cancelled"], body
    return _Ended(acknowledged - began, await stream.ended() - began)


async def _writers(made: Deployment, runs: Sequence[str]) -> set[str]:
    """The processes that made the commits of these runs."""
    store = await made.store()
    try:
        return {
            decode(message.data, message.seq).header.writer
            for run in runs
            for message in await store.log.read(store.subjects.journal("", run))
        }
    finally:
        await store.close()


class _Stream:
    """A reader of one run's stream who notes when each frame came."""

    def __init__(self, port: int, run: str) -> None:
        self.run = run
        self._seen: Counter[str] = Counter()
        self._at: dict[tuple[str, int], float] = {}
        self._changed = asyncio.Condition()
        self._last = 0.0
        self._task = asyncio.create_task(self._read(port))

    def count(self, event: str) -> int:
        return self._seen[event]

    async def until(self, event: str, number: int) -> float:
        """When the ``number``-th frame ``event`` came. Raises TimeoutError, AssertionError."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: (event, number) in self._at or self._task.done())
        assert (event, number) in self._at, f"the stream of {self.run} ended"
        return self._at[event, number]

    async def ended(self) -> float:
        """When the last frame came, once the stream has ended as it should."""
        async with asyncio.timeout(20):
            await self._task
        return self._last

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, BrokenOff):
            await self._task

    async def _read(self, port: int) -> None:
        try:
            async for frame in frames(port, "GET", f"/v1/runs/{self.run}/stream"):
                self._last = time.perf_counter()
                self._seen[frame.event] += 1
                self._at[frame.event, self._seen[frame.event]] = self._last
                async with self._changed:
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()


@asynccontextmanager
async def _light_load(port: int) -> AsyncIterator[None]:
    """Some plain runs a second, for as long as the block takes."""

    async def keep_on() -> None:
        while True:
            await _expect_done(port, "plain")
            await asyncio.sleep(LIGHT_PAUSE_S)

    task = asyncio.create_task(keep_on())
    try:
        yield
        assert not task.done(), "the load beside ended early"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _expect_done(port: int, agent: str) -> None:
    body = {"agent": agent, "prompt": "hi"}
    events: Sequence[str] = [f.event async for f in frames(port, "POST", "/v1/runs", body)]
    assert events[-1] == "done", events


async def _detached(port: int, agent: str, *, interactive: bool) -> str:
    body = {"agent": agent, "prompt": "hi", "interactive": interactive}
    status, _, answer = await request(port, "POST", "/v1/runs", body, ASYNC)
    assert status == 202, answer
    return str(json.loads(answer)["run_id"])


async def _start(port: int, agent: str) -> tuple[str, str]:
    """(run id, agent id) of a run that nobody waits for."""
    status, _, answer = await request(
        port, "POST", "/v1/runs", {"agent": agent, "prompt": "hi"}, ASYNC
    )
    assert status == 202, answer
    ids = json.loads(answer)
    return ids["run_id"], ids["agent_id"]
