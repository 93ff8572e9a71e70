"""The load generator: a process of its own that keeps N runs under way and reads each to its end.

``python -m tests.bench.load '<json of Job>'`` prints one JSON ``Window`` a line. Raw sockets, no
HTTP library: a request costs it some 30 µs, so that the server is the bottleneck.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

from tests.bench.deployment import eventually
from tests.bench.usage import busy_seconds, cpu_seconds

_END_OF_CHUNKS = b"0\r\n\r\n"
_DONE = b"\nevent: done\n"
_RETRY_S = 0.01


class Job(Struct, kw_only=True):
    """``groups``: process ids by name, whose processor time is taken with each window.

    With ``runs`` the windows end when so many runs are done, ``window_s`` is then not used.
    """

    port: int
    concurrency: int
    windows: int = 5
    window_s: float = 3.0
    warmup_s: float = 1.0
    runs: int = 0
    agent: str = "plain"
    groups: dict[str, list[int]] = {}


class Window(Struct, kw_only=True):
    """``cpu``: seconds by group; ``errors``: answers that were no complete run, by kind.

    ``others``: processor seconds of everything else on the machine.
    """

    seconds: float
    runs: int
    p50_ms: float
    p99_ms: float
    cpu: dict[str, float]
    generator_cpu: float
    others: float
    errors: dict[str, int]


class _Tally:
    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.total = 0


class _Client(asyncio.Protocol):
    """One keep-alive connection with one run at a time."""

    def __init__(self, generator: _Generator) -> None:
        self._generator = generator
        self._transport: asyncio.WriteTransport | None = None
        self._parts: list[bytes] = []
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        end = data if len(data) >= len(_END_OF_CHUNKS) else b"".join(self._parts)
        if not end.endswith(_END_OF_CHUNKS) and not self._is_refusal():
            return
        answer = b"".join(self._parts)
        self._parts.clear()
        if answer.startswith(b"HTTP/1.1 200") and _DONE in answer:
            tally = self._generator.tally
            tally.latencies.append(time.perf_counter() - self._began)
            tally.total += 1
            self._next()
            return
        self._generator.tally.errors[answer[9:12].decode("ascii", "replace")] += 1
        asyncio.get_running_loop().call_later(_RETRY_S, self._next)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._generator.over:
            self._generator.tally.errors["connection lost"] += 1
            self._generator.open_later()

    def _is_refusal(self) -> bool:
        """Whether a whole answer with a known length is here: it is no stream."""
        if self._parts[0].startswith(b"HTTP/1.1 200"):
            return False
        head, found, body = b"".join(self._parts).partition(b"\r\n\r\n")
        if not found:
            return False
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return len(body) >= int(line.partition(b":")[2])
        return False

    def _next(self) -> None:
        if self._transport is not None and not self._generator.over:
            self._began = time.perf_counter()
            self._transport.write(self._generator.request)


class _Generator:
    def __init__(self, job: Job) -> None:
        body = json.dumps({"agent": job.agent, "prompt": "hi"}).encode()
        self.request = (
            b"POST /v1/runs HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.job = job
        self.tally = _Tally()
        self.over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def open_later(self) -> None:
        task = asyncio.get_running_loop().create_task(self._open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.over:
            try:
                await loop.create_connection(lambda: _Client(self), "127.0.0.1", self.job.port)
                return
            except OSError:
                await asyncio.sleep(_RETRY_S)

    async def run(self) -> None:
        job = self.job
        await asyncio.gather(*(self._open() for _ in range(job.concurrency)))
        if not job.runs:
            await asyncio.sleep(job.warmup_s)
        for number in range(job.windows):
            window = await self._window((job.runs * (number + 1)) // job.windows)
            sys.stdout.write(msgspec.json.encode(window).decode() + "\n")
            sys.stdout.flush()
        self.over = True

    async def _window(self, until_total: int) -> Window:
        self.tally.latencies, self.tally.errors = [], Counter()
        before, own, began = self._cpu(), time.process_time(), time.perf_counter()
        busy = busy_seconds()
        if until_total:
            await eventually(lambda: self.tally.total >= until_total, "runs", 3600)
        else:
            await asyncio.sleep(self.job.window_s)
        latencies, errors = self.tally.latencies, self.tally.errors
        after, seconds = self._cpu(), time.perf_counter() - began
        generator_cpu = time.process_time() - own
        cpu = {name: after[name] - before[name] for name in after}
        latencies.sort()
        return Window(
            seconds=seconds,
            runs=len(latencies),
            p50_ms=quantile(latencies, 0.50) * 1e3,
            p99_ms=quantile(latencies, 0.99) * 1e3,
            cpu=cpu,
            generator_cpu=generator_cpu,
            others=max(0.0, busy_seconds() - busy - generator_cpu - sum(cpu.values())),
            errors=dict(errors),
        )

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_seconds(pids) for name, pids in self.job.groups.items()}


def quantile(ordered: Sequence[float], q: float) -> float:
    """The value below which ``q`` of the sorted values lie; 0 for none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(_Generator(msgspec.json.decode(sys.argv[1], type=Job)).run())
