"""Figures of children: 32 of them side by side against the same 32 one after the other."""

from __future__ import annotations

import asyncio
import statistics
import time

from tests.bench.bench import Bench
from tests.bench.sse import frames
from tests.bench.throughput import deployment

CHILDREN = 32
LATENCY_MS = 50
SIDE_BY_SIDE = """
function run(input) {
  const spawns = [];
  for (let i = 0; i < COUNT; i++) spawns.push({ name: "plain", prompt: "part " + i });
  const found = Agent.spawn({ op: "parallel_spawn", spawns: spawns }).results;
  return String(found.filter((child) => child.ok).length);
}
"""
IN_TURN = """
function run(input) {
  let done = 0;
  for (let i = 0; i < COUNT; i++) {
    Agent.spawn({ name: "plain", prompt: "part " + i });
    done += 1;
  }
  return String(done);
}
"""


def fan_out(bench: Bench) -> None:
    """A program with 32 children whose model calls take 50 ms, side by side and in turn."""
    agents = {
        "plain": {"provider": "mock", "model": "mock-generic"},
        "side-by-side": _parent(SIDE_BY_SIDE),
        "in-turn": _parent(IN_TURN),
    }
    environ = {"LOOMCYCLE_MOCK_LATENCY_MS": str(LATENCY_MS)}
    repeats = 2 if bench.quick else 5
    with deployment(bench, environ=environ, agents=agents) as made:
        server = made.start()
        server.wait_ready()
        for agent in agents:
            asyncio.run(_timed(server.port, agent))  # modules loaded, plans cached
        pairs = [
            (
                asyncio.run(_timed(server.port, "side-by-side")),
                asyncio.run(_timed(server.port, "in-turn")),
            )
            for _ in range(repeats)
        ]
    bench.figure("fan_out", statistics.median(slow / fast for fast, slow in pairs))
    bench.figure("fan_out_together", statistics.median(fast for fast, _ in pairs))
    bench.figure("fan_out_in_turn", statistics.median(slow for _, slow in pairs))


def _parent(code: str) -> dict[str, object]:
    return {
        "provider": "code-js",
        "code": code.replace("COUNT", str(CHILDREN)),
        "allowed_tools": ["Agent"],
        "max_concurrent_children": CHILDREN,
    }


async def _timed(port: int, agent: str) -> float:
    """Seconds of a run from its request to its end."""
    began = time.perf_counter()
    text, last = "", ""
    async for frame in frames(port, "POST", "/v1/runs", {"agent": agent, "prompt": "go"}):
        last = frame.event
        if last == "text":
            text += frame.json()["text"]
    took = time.perf_counter() - began
    assert last == "done", last
    assert agent == "plain" or text == str(CHILDREN), f"{text} of {CHILDREN} children succeeded"
    return took
