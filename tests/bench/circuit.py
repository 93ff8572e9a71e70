"""The circuit benchmark of operations.md section 16: ``python -m tests.bench.circuit``.

A circuit is three runs of one user that start together, write into memory, and hand over to each
other on channels. The driver starts them over HTTP and afterwards asks the server what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct, field

from tests.bench.circuit_config import AUDITOR, PROBE, ROLES, configuration
from tests.bench.deployment import Deployment, Server
from tests.bench.fairness import allow_open_files
from tests.bench.load import quantile
from tests.bench.sse import BrokenOff, Refused, frames
from tests.bench.usage import cpu_seconds, resident_mb

RAMP = (1, 10, 100, 1000)
CIRCUITS_PER_USER = 15
LAUNCH_CAP = 500
CIRCUIT_LIMIT_S = 300.0
CONNECTIONS_EACH = len(ROLES)
OPEN_FILES_SPARE = 500

NO_CHANNEL = """\
The circuits cannot run: this server has no tool "Channel".
Two kinds of mock steps need it, subscribe and publish: mock-editor waits on research-done/cN for
mock-researcher, mock-evaluator waits on editing-done/cN for mock-editor and learns there which
run it is to judge.
--without-channel measures what is left: the driver starts the three runs of a circuit one after
the other, their Channel calls fail at once, memory is checked, and nothing is evaluated. Such
figures compare with no published ones."""


class Ended(Struct, kw_only=True):
    """How one run ended; ``status`` is the name of its last frame."""

    role: str
    run_id: str = ""
    status: str = ""
    tokens: int = 0
    error: str = ""


class Circuit(Struct, kw_only=True):
    """``outcome``: completed, failed or timeout; ``seconds`` from the first request to the end."""

    number: int
    user: str
    outcome: str = ""
    error: str = ""
    seconds: float = 0.0
    runs: list[Ended] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)


class Found(Struct):
    """What the server had of one circuit; ``left``: rows that deleting them left behind."""

    rows: int
    left: int
    scores: list[float]


class Driver:
    """Runs circuits against one server. ``channel``: whether its runs hand over by themselves."""

    def __init__(self, port: int, *, channel: bool, launch_cap: int) -> None:
        self._port = port
        self._channel = channel
        self._slots = asyncio.Semaphore(launch_cap)

    async def wave(self, first: int, count: int) -> list[Circuit]:
        """Circuits ``first`` and on, all launched as fast as the cap allows."""
        users = [f"user-{number // CIRCUITS_PER_USER:03}" for number in range(first, first + count)]
        circuits = [Circuit(number=first + i, user=user) for i, user in enumerate(users)]
        await asyncio.gather(*(self._limited(circuit) for circuit in circuits))
        return circuits

    async def audit(self, circuit: Circuit) -> Found:
        """Ask the server for what the circuit should have left, and remove its rows."""
        editor = next((run.run_id for run in circuit.runs if run.role == "editor"), "")
        question = {"circuit": f"c{circuit.number}", "editor": editor if self._channel else ""}
        answer = await self._ask(AUDITOR, json.dumps(question), circuit.user)
        return Found(answer["rows"], answer["left"], answer["scores"])

    async def has_channel(self) -> bool:
        return "Channel" in await self._ask(PROBE, "which tools?", "probe")

    async def _ask(self, program: str, question: str, user: str) -> Any:
        """What one of the driver's own programs says."""
        text, ended = await self._run(program, question, user)
        assert ended.status == "done", f"{program}: {ended.error}"
        return json.loads(text)

    async def _limited(self, circuit: Circuit) -> None:
        async with self._slots:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(CIRCUIT_LIMIT_S):
                    await self._roles(circuit)
                done = len(circuit.runs) == len(ROLES) and all(
                    run.status == "done" for run in circuit.runs
                )
                circuit.outcome = "completed" if done else "failed"
            except TimeoutError:
                circuit.outcome = "timeout"
            except (BrokenOff, Refused) as cause:
                circuit.outcome, circuit.error = "failed", str(cause)
            circuit.seconds = time.perf_counter() - began
            ends = (run.error for run in circuit.runs if run.error)
            circuit.error = circuit.error or next(ends, "")

    async def _roles(self, circuit: Circuit) -> None:
        if self._channel:
            await asyncio.gather(*(self._role(circuit, role) for role in ROLES))
        else:
            for role in ROLES:
                await self._role(circuit, role)

    async def _role(self, circuit: Circuit, role: str) -> None:
        token = f"c{circuit.number}"
        _, ended = await self._run(
            role, f"Do your part of circuit {token}.", circuit.user, f"{role}-{token}"
        )
        circuit.runs.append(ended)

    async def _run(
        self, agent: str, prompt: str, user: str, agent_id: str = ""
    ) -> tuple[str, Ended]:
        body: dict[str, Any] = {"agent": agent, "prompt": prompt, "user_id": user}
        if agent_id:
            body["agent_id"] = agent_id
        text, ended = "", Ended(role=agent)
        async for frame in frames(self._port, "POST", "/v1/runs", body, silence_s=CIRCUIT_LIMIT_S):
            ended.status = frame.event
            match frame.event:
                case "agent":
                    ended.run_id = frame.json()["run_id"]
                case "text":
                    text += frame.json()["text"]
                case "error":
                    ended.error = frame.data.decode()
                case "usage":
                    usage = frame.json()["usage"]
                    ended.tokens += usage["input_tokens"] + usage["output_tokens"]
        return text, ended


async def measure(
    made: Deployment, server: Server, options: argparse.Namespace
) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, a row for each step of the ramp)."""
    channel = await Driver(server.port, channel=False, launch_cap=1).has_channel()
    if not channel and not options.without_channel:
        sys.stdout.write(NO_CHANNEL + "\n")
        return 2, []
    channel = channel and not options.without_channel
    driver = Driver(server.port, channel=channel, launch_cap=options.launch_cap)
    first, rows, wrong = 1, [], 0
    for count in options.circuits or RAMP:
        pids = [*server.python_pids(), made.nats_pid()]
        cpu, began = cpu_seconds(pids), time.perf_counter()
        circuits = await driver.wave(first, count)
        took, cpu = time.perf_counter() - began, cpu_seconds(pids) - cpu
        found = [await driver.audit(circuit) for circuit in circuits]
        row = _row(circuits, found, took, cpu, channel=channel)
        row["rss_mb"] = round(max(resident_mb(pid) for pid in server.python_pids()), 1)
        rows.append(row)
        wrong += row["silent"] + row["left"] + count - row["completed"]
        sys.stdout.write(json.dumps(row) + "\n")
        first += count
    return int(wrong > 0), rows


def _row(
    circuits: Sequence[Circuit],
    found: Sequence[Found],
    took: float,
    cpu: float,
    *,
    channel: bool,
) -> dict[str, Any]:
    """``silent``: circuits that completed and did not leave what they should."""
    outcomes = Counter(circuit.outcome for circuit in circuits)
    seconds = sorted(circuit.seconds for circuit in circuits)
    scores = [score for one in found for score in one.scores]
    silent = sum(
        circuit.outcome == "completed" and (one.rows != 3 or len(one.scores) != channel)
        for circuit, one in zip(circuits, found, strict=True)
    )
    return {
        "circuits": len(circuits),
        "hand_over": "channels" if channel else "driver",
        "completed": outcomes["completed"],
        "failed": outcomes["failed"],
        "timeout": outcomes["timeout"],
        "silent": silent,
        "left": sum(one.left for one in found),
        "error": next((circuit.error for circuit in circuits if circuit.error), ""),
        "seconds": round(took, 3),
        "circuits_s": round(len(circuits) / took, 2),
        **{f"p{q}_s": round(quantile(seconds, q / 100), 3) for q in (50, 95, 99)},
        "max_s": round(seconds[-1], 3),
        "cpu_ms": round(cpu / len(circuits) * 1e3, 2),
        "tokens": sum(circuit.tokens for circuit in circuits),
        "score": round(sum(scores) / len(scores), 3) if scores else None,
    }


def main() -> int:
    """0; 1 when circuits failed or left too little; 2 when they cannot run on this server."""
    options = _options()
    largest = max(options.circuits or RAMP)
    allow_open_files(min(largest, options.launch_cap) * CONNECTIONS_EACH + OPEN_FILES_SPARE)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="loomcycle-circuit-") as folder:
        config, environ = configuration(
            sum(options.circuits or RAMP),
            latency_ms=options.latency_ms,
            jitter_ms=options.jitter_ms,
            rate_429=options.rate_429,
            rate_500=options.rate_500,
        )
        with Deployment(Path(folder), config, environ) as made:
            server = made.start(workers=options.workers)
            server.wait_ready()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                status, rows = runner.run(measure(made, server, options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.circuit", description=__doc__)
    parser.add_argument(
        "--circuits", type=int, action="append", help=f"steps of the ramp (default: {RAMP})"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--launch-cap", type=int, default=LAUNCH_CAP, help="circuits at a time")
    parser.add_argument("--latency-ms", type=int, default=50)
    parser.add_argument("--jitter-ms", type=int, default=25)
    parser.add_argument("--rate-429", type=float, default=0.0, help="falls back to mock-stable")
    parser.add_argument("--rate-500", type=float, default=0.0, help="the same")
    parser.add_argument(
        "--without-channel", action="store_true", help="measure what needs no Channel tool"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--dir", type=Path, help="where the data directory is made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
