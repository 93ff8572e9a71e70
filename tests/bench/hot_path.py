"""A profile of the hot path: which function costs what, in microseconds of a plain run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict

import msgspec

from tests.bench.bench import Bench
from tests.bench.deployment import ROOT, Deployment, Server, wait_for
from tests.bench.load import Job, Window
from tests.bench.profiler import Profile
from tests.bench.throughput import deployment

CONCURRENCY = 32
OWN_ROWS, TOTAL_ROWS = 30, 30
OURS = ("loomcycle.", "gateways.", "events.", "replay.", "projections.")


def profile(bench: Bench) -> str:
    """Markdown: cost by package, by function itself, and by function with what it calls."""
    seconds = 3.0 if bench.quick else 12.0
    with deployment(bench) as made:
        out = made.directory / "profile.json"
        command = (sys.executable, "-P", "-m", "tests.bench.profiler", str(out), "serve")
        server = made.start(command=command)
        window = _sampled_load(made, server, seconds)
        wait_for(out.exists, "the profile")
        measured = msgspec.json.decode(out.read_bytes(), type=Profile)
    return _markdown(measured, window)


def _sampled_load(made: Deployment, server: Server, seconds: float) -> Window:
    """Sample during the one window of a load."""
    job = Job(
        port=server.port,
        concurrency=CONCURRENCY,
        windows=1,
        window_s=seconds,
        warmup_s=2.0,
        groups={"python": server.python_pids(), "nats": [made.nats_pid()]},
    )
    command = [sys.executable, "-m", "tests.bench.load", msgspec.json.encode(job).decode()]
    begin = threading.Timer(2.0 + 0.3, os.kill, (server.pid, signal.SIGUSR1))
    begin.start()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    os.kill(server.pid, signal.SIGUSR2)
    return msgspec.json.decode(done.stdout, type=Window)


def _markdown(profile: Profile, window: Window) -> str:
    # sampling began a little after the window did: runs follow the share of processor time
    runs = window.runs * profile.process_s / window.cpu["python"]

    def us(seconds: float) -> str:
        return f"{seconds / runs * 1e6:.0f}"

    packages: dict[str, float] = defaultdict(float)
    for name, seconds in profile.own.items():
        packages[_package(name)] += seconds
    lines = [
        f"Concurrency {CONCURRENCY}, {window.runs / window.seconds:.0f} runs/s under the"
        f" profiler, {profile.samples} samples. Main thread {us(profile.main_s)} µs a run, other"
        f" threads of the process (projector) {us(profile.process_s - profile.main_s)} µs,"
        f" nats-server {window.cpu['nats'] / window.runs * 1e6:.0f} µs.",
        "",
        "| Package (own time) | µs a run |",
        "|---|---:|",
        *(f"| {name} | {us(seconds)} |" for name, seconds in _largest(packages, 14)),
        "",
        "| Function (own time, C calls included) | µs a run |",
        "|---|---:|",
        *(f"| `{name}` | {us(seconds)} |" for name, seconds in _largest(profile.own, OWN_ROWS)),
        "",
        "| Function of ours with all it calls | µs a run |",
        "|---|---:|",
        *(
            f"| `{name}` | {us(seconds)} |"
            for name, seconds in _largest(
                {n: s for n, s in profile.total.items() if n.startswith(OURS)}, TOTAL_ROWS
            )
        ),
    ]
    return "\n".join(lines)


def _package(name: str) -> str:
    parts = name.partition(":")[0].split(".")
    ours = f"{parts[0]}." in OURS
    return ".".join(parts[:2]) if ours and len(parts) > 1 else parts[0]


def _largest(costs: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(costs.items(), key=lambda item: -item[1])[:count]
