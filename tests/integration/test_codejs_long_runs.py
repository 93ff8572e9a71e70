"""Long runs of programs over HTTP: held by child processes, which nobody can notice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.proofs import open_log, prove_everything
from tests.wire.gateway import GatewayUnderTest, SseFrame, open_stream, serving, until

pytestmark = pytest.mark.integration

COUNTER = """
function run(input) {
  const seen = [];
  for (let i = 0; i < 200; i++) {
    const at = Date.now(), key = "k" + Math.floor(Math.random() * 5);
    try {
      seen.push(Memory.incr({ scope: i % 7 ? "user" : "nowhere", key, delta: i }).value, at);
    } catch (e) {
      seen.push(e.message);
    }
  }
  return { final_text: seen.join(" ") };
}
"""
CALLS = "function run() { for (let i = 0; i < 120; i++) Memory.incr({scope: 'user', key: 'n'});"
ENDLESS = CALLS + " for (;;); }"
HUNGRY = CALLS + " const all = []; for (;;) all.push('x'.repeat(1000) + all.length); }"


def agent(code: str, **fields: object) -> dict[str, object]:
    memory = {"allowed_tools": ["Memory"], "memory_scopes": ["user"]}
    return {"provider": "code-js", "code": code, **memory, **fields}


CONFIG = json.dumps(
    {
        "agents": {
            "counter": agent(COUNTER),
            "endless": agent(ENDLESS, run_timeout_seconds=2),
            "patient": agent(ENDLESS),
            "hungry": agent(HUNGRY),
        }
    }
)


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[GatewayUnderTest]:
    """Afterwards every journal is proven and no child is left."""
    environ = {
        "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
        "LOOMCYCLE_CODE_AGENTS_DETERMINISTIC": "1",
    }
    async with serving(directory, CONFIG, environ) as gateway:
        yield gateway
    await until(no_children)
    async with open_log(directory / "data") as store:
        await prove_everything(store)


def children() -> list[int]:
    """Child processes of this one that hold a program."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"resident_host.py" in (Path("/proc") / pid / "cmdline").read_bytes():
                found.append(int(pid))
    return found


async def stream(
    gateway: GatewayUnderTest, user: str, *, kill_every: int = 0
) -> tuple[list[SseFrame], int]:
    """A run's frames, and how many children were killed: all, after each so many results."""
    frames: list[SseFrame] = []
    results = killed = 0
    body = {"agent": "counter", "prompt": "go", "user_id": user}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as reader:
        while not frames or frames[-1].event not in ("done", "error"):
            frames.append(await reader.next())
            results += frames[-1].event == "tool_result"
            if kill_every and frames[-1].event == "tool_result" and results % kill_every == 0:
                for pid in children():
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    return frames, killed


def told(frames: list[SseFrame]) -> list[Any]:
    """What differs between no two runs of one program: all but ids."""
    found = []
    for frame in frames:
        data = frame.data
        if frame.event in ("tool_call", "tool_result"):
            use = data["tool_use"]
            found.append((frame.event, use["name"], use["input"], data.get("text")))
        elif frame.event in ("text", "usage", "done"):
            found.append((frame.event, data))
    return found


async def test_runs_whose_children_are_killed_do_not_differ(tmp_path: Path) -> None:
    async with server(tmp_path) as gateway:
        undisturbed, _ = await stream(gateway, "u1")
        for every in (30, 1):
            frames, killed = await stream(gateway, f"u{every}_", kill_every=every)
            assert killed >= 1
            assert told(frames) == told(undisturbed)
    assert undisturbed[-1].event == "done"
    assert len(told(undisturbed)) == 200 * 3 + 3


async def test_a_long_run_is_held_by_a_child_and_a_cancellation_ends_it(tmp_path: Path) -> None:
    async with server(tmp_path) as gateway:
        body = {"agent": "patient", "prompt": "go", "agent_id": "a_1", "user_id": "u"}
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as reader:
            for _ in range(119):  # the last result is committed with the turn after it
                await reader.until("tool_result")
            assert len(children()) == 1
            response = await gateway.http.post("/v1/agents/a_1/cancel")
            assert response.status_code < 300, response.text
            assert (await gateway.ended("a_1"))["status"] == "cancelled"
        await until(no_children)


async def no_children() -> bool | None:
    return not children() or None


async def test_limits_are_told_in_the_same_words_as_of_a_short_run(tmp_path: Path) -> None:
    async with server(tmp_path) as gateway:
        for agent, message in (
            ("endless", "code_agent_timeout: the run used up its budget of 2s;"),
            ("hungry", "code_agent_threw: run: null (thrown, or out of memory)"),
        ):
            frames = await gateway.run(agent, user_id="u")
            assert [frame.event for frame in frames].count("tool_result") == 120
            assert frames[-1].event == "error"
            assert frames[-1].data["error"].startswith(message)
