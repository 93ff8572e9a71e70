"""Clients of the kill loop: start runs, lose their streams, come back with the last id they saw.

A client believes only what it saw: once it had the ``agent`` frame the run is accepted, and the
stream it pieces together is kept frame by frame for the judge (``invariants.py``).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench.deployment import eventually
from tests.bench.sse import BrokenOff, Frame, Refused, frames

STEPS = 20
LONG_STEPS = 80
PROGRAM_CALLS = 15
TERMINAL = ("done", "error")
NOT_THE_END = "compaction summary failed"
PATIENCE_S = 60.0
"""A client that gets no further for so long gives its run up as lost."""

PROGRAM = f"""
function run(input) {{
  let last;
  for (let i = 0; i < {PROGRAM_CALLS}; i++) {{
    last = Memory.incr({{ scope: "user", key: "program-count" }});
  }}
  return "counted to " + last.value;
}}
"""

CONFIG: dict[str, Any] = {
    "concurrency": {"max_concurrent_runs": 64, "max_queue_depth": 256},
    "agents": {
        "plain": {"provider": "mock", "model": "mock-generic", "system_prompt": "Be brief."},
        "steps": {
            "provider": "mock",
            "model": f"mock-steps-{STEPS}",
            "unbounded_iterations": True,
            "allowed_tools": ["Memory"],
            "memory_scopes": ["user"],
        },
        "long": {
            "provider": "mock",
            "model": f"mock-steps-{LONG_STEPS}",
            "unbounded_iterations": True,
            "allowed_tools": ["Memory"],
            "memory_scopes": ["user"],
        },
        "program": {
            "provider": "code-js",
            "code": PROGRAM,
            "allowed_tools": ["Memory"],
            "memory_scopes": ["user"],
        },
    },
}

MIXED = ("plain", "steps", "program")
ENVIRON = {"LOOMCYCLE_MOCK_LATENCY_MS": "5", "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "10"}

EXPECTED_COUNTS = {"plain": 0, "steps": STEPS, "long": LONG_STEPS, "program": PROGRAM_CALLS}
"""What the run's user's counter must hold in the end; each run has a user of its own."""


@dataclass
class Tracked:
    """A run that a client was promised; ``seen`` is its stream in the order of arrival.

    ``width``: how many children each of its branches has.
    """

    agent: str
    width: int = 0
    user_id: str = ""
    run_id: str = ""
    seen: list[Frame] = field(default_factory=list)
    reconnects: int = 0
    ended: bool = False
    lost: str = ""


class Clients:
    """``ports`` are tried at random. ``tally`` counts what happened to the clients.

    ``body`` says what is asked of an agent (by name and width of its trees); ``told`` is called
    with every frame of a run.
    """

    def __init__(
        self,
        ports: Callable[[], Sequence[int]],
        seed: int | str,
        agents: Sequence[str] = MIXED,
        *,
        width: int = 0,
        body: Callable[[str, int], Mapping[str, Any]] = lambda *_: {"prompt": "count c1"},
        told: Callable[[Tracked, Frame], None] = lambda *_: None,
    ) -> None:
        self._ports = ports
        self._agents = agents
        self._width = width
        self._body = body
        self._told = told
        self._seed = seed
        self._random = random.Random(seed)
        self._deck: list[str] = []
        self._numbers = 0
        self._stopping = False
        self.runs: list[Tracked] = []
        self.tally: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, count: int) -> None:
        """Each client runs one agent after the other until :meth:`finish`."""
        self._tasks = [asyncio.create_task(self._one_after_the_other()) for _ in range(count)]

    async def start_one_each(self, count: int, calls: int) -> None:
        """Each client runs one agent; wait until each run has so many tool results behind it."""
        self._tasks = [asyncio.create_task(self._one()) for _ in range(count)]
        await eventually(
            lambda: len(self.runs) == count and min(map(results, self.runs)) >= calls,
            f"{count} runs with {calls} tool results",
            30.0,
        )

    async def finish(self) -> None:
        """Start no more runs; wait until each run's stream is complete (or given up)."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """Vanish in the middle of everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one_after_the_other(self) -> None:
        while not self._stopping:
            await self._one()

    async def _one(self) -> None:
        if not self._deck:  # every agent comes up, in whatever order
            self._deck = self._random.sample(self._agents, len(self._agents))
        await self._run(Tracked(self._deck.pop(), self._width))

    async def _run(self, run: Tracked) -> None:
        last_progress = time.monotonic()
        while not run.ended:
            before = len(run.seen)
            try:
                await self._read(run)
                continue
            except BrokenOff:
                self.tally["stream broken" if run.run_id else "start broken"] += 1
            except Refused as refusal:
                self.tally[f"refused {refusal.status}"] += 1
                if refusal.status not in (429, 503):
                    run.lost = str(refusal)
            if not run.run_id and self._stopping:
                return
            if len(run.seen) > before:
                last_progress = time.monotonic()
            elif time.monotonic() - last_progress > PATIENCE_S:
                run.lost = run.lost or f"nothing new for {PATIENCE_S:g} s"
            if run.lost and run.run_id:
                return
            await asyncio.sleep(0.02 + self._random.random() * 0.1)

    async def _read(self, run: Tracked) -> None:
        """One connection. Raises BrokenOff, Refused."""
        port = self._random.choice(self._ports())
        if not run.run_id:
            self._numbers += 1  # a start that broke may have been taken: its user is its own
            run.user_id = f"user-{self._seed}-{self._numbers}"
            body = {"agent": run.agent, "user_id": run.user_id, **self._body(run.agent, run.width)}
            stream = frames(port, "POST", "/v1/runs", body)
        else:
            run.reconnects += 1
            headers = {"last-event-id": run.seen[-1].id} if run.seen else {}
            stream = frames(port, "GET", f"/v1/runs/{run.run_id}/stream", None, headers)
        async for frame in stream:
            if frame.event == "agent":
                if not run.run_id:
                    run.run_id = frame.json()["run_id"]
                    self.runs.append(run)
            elif frame.event != "session":
                run.seen.append(frame)
                run.ended = run.ended or _is_last(frame)
                self._told(run, frame)
        if not run.ended:
            raise BrokenOff("complete without a terminal frame")


def _is_last(frame: Frame) -> bool:
    if frame.event == "error":
        return not frame.json()["error"].startswith(NOT_THE_END)
    return frame.event in TERMINAL


def results(run: Tracked) -> int:
    """Tool results that the client saw."""
    return sum(frame.event == "tool_result" for frame in run.seen)
