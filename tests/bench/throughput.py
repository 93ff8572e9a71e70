"""Figures of many short runs: rates, latencies, processor time and memory under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from events.commit import decode
from tests.bench.bench import Bench, Unavailable
from tests.bench.deployment import ROOT, Deployment, Server
from tests.bench.load import Job, Window
from tests.bench.nats_server import NatsServer
from tests.bench.usage import cpu_seconds, resident_mb

MEMORY_DISK = Path("/dev/shm")
FLUSH_DELAY_US = 1000


class Row(Struct, kw_only=True):
    """Medians over the windows of one load; processor time in milliseconds a run.

    ``others``: share of the machine that processes took which are no part of the measurement.
    """

    concurrency: int
    runs_s: float
    p50_ms: float
    p99_ms: float
    python_ms: float
    nats_ms: float
    generator_ms: float
    others: float
    errors: dict[str, int]

    @property
    def cpu_ms(self) -> float:
        return self.python_ms + self.nats_ms


def config(**more: Any) -> dict[str, Any]:
    """Slots and queue as the measurement asks for, everything else at its default."""
    return {
        "concurrency": {"max_concurrent_runs": 256, "max_queue_depth": 1024},
        "agents": {
            "plain": {
                "provider": "mock",
                "model": "mock-generic",
                "system_prompt": "Answer briefly.",
            }
        },
        **more,
    }


def apply_load(
    bench: Bench, server: Server, nats: int, concurrency: int, *, runs: int = 0, windows: int = 0
) -> tuple[Row, list[Window]]:
    """Load ``server`` from another process; with ``runs`` as long as they take, in one window.

    ``windows``: so many instead of the bench's.
    """
    job = Job(
        port=server.port,
        concurrency=concurrency,
        windows=1 if runs else windows or bench.windows,
        window_s=bench.window_s,
        runs=runs,
        groups={"python": server.python_pids(), "nats": [nats]},
    )
    command = [sys.executable, "-m", "tests.bench.load", msgspec.json.encode(job).decode()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    measured = [msgspec.json.decode(line, type=Window) for line in done.stdout.splitlines()]
    if not measured or not all(window.runs for window in measured):
        raise AssertionError(f"no runs: {done.stderr}\n{server.tail()}")
    return _summary(concurrency, measured), measured


def _summary(concurrency: int, windows: list[Window]) -> Row:
    def median(of: Any) -> float:
        return float(statistics.median(of(window) for window in windows))

    errors: Counter[str] = Counter()
    for window in windows:
        errors.update(window.errors)
    return Row(
        concurrency=concurrency,
        runs_s=median(lambda w: w.runs / w.seconds),
        p50_ms=median(lambda w: w.p50_ms),
        p99_ms=median(lambda w: w.p99_ms),
        python_ms=median(lambda w: w.cpu["python"] / w.runs * 1e3),
        nats_ms=median(lambda w: w.cpu["nats"] / w.runs * 1e3),
        generator_ms=median(lambda w: w.generator_cpu / w.runs * 1e3),
        others=median(lambda w: w.others / w.seconds / (os.cpu_count() or 1)),
        errors=dict(errors),
    )


@contextlib.contextmanager
def deployment(
    bench: Bench,
    parent: Path | None = None,
    environ: Mapping[str, str] | None = None,
    nats_url: str = "",
    **more: Any,
) -> Iterator[Deployment]:
    """A fresh deployment whose files are gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=parent or bench.directory))
    try:
        with Deployment(folder, config(**more), environ, nats_url=nats_url) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rates(bench: Bench) -> None:
    """The main table: concurrency 1, 8, 32, 128."""
    with deployment(bench) as made:
        server = made.start()
        nats = made.nats_pid()
        for concurrency in (1, 8, 32, 128):
            row, _ = apply_load(bench, server, nats, concurrency)
            bench.row("default", row)
            if concurrency == 1:
                bench.figure("p50_1", row.p50_ms)
            if concurrency == 32:
                bench.figure("cpu_32", row.cpu_ms)
            if concurrency in (32, 128):
                bench.figure(f"runs_{concurrency}", row.runs_s)
                bench.figure(f"p99_{concurrency}", row.p99_ms)


def memory_disk(bench: Bench) -> None:
    """The same at 32 with the log in memory: what the processors allow, flushes aside."""
    if not MEMORY_DISK.is_dir():
        raise Unavailable(f"no memory disk at {MEMORY_DISK}")
    with deployment(bench, MEMORY_DISK) as made:
        row, _ = apply_load(bench, made.start(), made.nats_pid(), 32)
        bench.row("log on a memory disk", row)
        bench.figure("memory_runs_32", row.runs_s)
        bench.figure("memory_cpu_32", row.cpu_ms)


def slow_flush(bench: Bench) -> None:
    """1 ms more for each flush of nats-server, injected by strace."""
    strace = shutil.which("strace")
    if strace is None:
        raise Unavailable("strace is not installed")
    calls = "fsync,fdatasync"
    tracer = [strace, "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={calls}"]
    tracer += ["-e", f"inject={calls}:delay_exit={FLUSH_DELAY_US}"]
    folder = Path(tempfile.mkdtemp(dir=bench.directory))
    try:
        with NatsServer(folder, tracer=tracer) as nats:
            try:
                nats.start()
            except AssertionError as cause:
                raise Unavailable(f"strace: {cause}") from None
            with deployment(bench, nats_url=nats.url) as made:
                row, _ = apply_load(bench, made.start(), nats.pid, 32)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.row("1 ms added to each flush", row)
    bench.figure("flush_runs_32", row.runs_s)


def postgres(bench: Bench) -> None:
    """Views in a real PostgreSQL on the same machine; its own processor time is not counted."""
    from tests.integration.postgres import fresh_database, running_server  # imports slowly

    folder = Path(tempfile.mkdtemp(dir=bench.directory))
    try:
        with running_server(folder / "pg") as address:
            storage = {"backend": "postgres", "pg_dsn": fresh_database(address)}
            with deployment(bench, storage=storage) as made:
                row, _ = apply_load(bench, made.start(), made.nats_pid(), 32)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.row("PostgreSQL views", row)
    bench.figure("postgres_runs_32", row.runs_s)
    bench.figure("postgres_cpu_32", row.cpu_ms)


def workers(bench: Bench) -> None:
    """Two workers against one: their windows alternate, so that they meet the same machine."""
    with deployment(bench) as one, deployment(bench) as two:
        alone, both = one.start(), two.start(workers=2)
        both.wait_listening(2)
        windows: dict[int, list[Window]] = {1: [], 2: []}
        for _ in range(bench.windows):
            windows[1] += apply_load(bench, alone, one.nats_pid(), 32, windows=1)[1]
            windows[2] += apply_load(bench, both, two.nats_pid(), 32, windows=1)[1]
        row = _summary(32, windows[2])
        writers = asyncio.run(_writers(two))
        least = min(writers.values()) if len(writers) > 1 else 0
        bench.figure("workers_share", 100 * least / max(1, writers.total()))
        bench.row("2 workers", row)
        bench.figure("workers_runs_32", row.runs_s)
        bench.figure("workers_ratio", row.cpu_ms / _summary(32, windows[1]).cpu_ms)


async def _writers(made: Deployment, stream: str = "RUNS-0") -> Counter[str]:
    """How many commits of one stream each process wrote."""
    store = await made.store()
    found: Counter[str] = Counter()
    try:
        end = (await store.log.ends([stream]))[stream]
        async for batch in store.log.tail(stream):
            for message in batch:
                if message.subject.endswith(".journal"):
                    found[decode(message.data, message.seq).header.writer] += 1
            if batch[-1].seq >= end:
                break
    finally:
        await store.close()
    return found


def memory(bench: Bench) -> None:
    """Resident memory after 20 000 and, in a full bench, 100 000 runs."""
    steps = (("rss_20k", 20_000), ("rss_100k", 80_000))
    with deployment(bench) as made:
        server = made.start()
        sizes = []
        for name, runs in steps[: 1 if bench.quick else 2]:
            apply_load(bench, server, made.nats_pid(), 32, runs=runs)
            sizes.append(max(resident_mb(pid) for pid in server.python_pids()))
            bench.figure(name, sizes[-1])
        if len(sizes) > 1:
            bench.figure("rss_growth", sizes[1] / sizes[0])
        bench.figure("rss_nats", resident_mb(made.nats_pid()))


def idle(bench: Bench) -> None:
    """Processor time of a server nobody uses, some runs behind it."""
    seconds = 3.0 if bench.quick else 30.0
    with deployment(bench) as made:
        server = made.start()
        apply_load(bench, server, made.nats_pid(), 8, runs=200)
        time.sleep(2.0)
        pids = [*server.python_pids(), made.nats_pid()]
        before, began = cpu_seconds(pids), time.perf_counter()
        time.sleep(seconds)
        used = cpu_seconds(pids) - before
        bench.figure("idle", 100 * used / (time.perf_counter() - began))
