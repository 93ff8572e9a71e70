"""Parked runs that are spoken to while a replica dies: its hand may hold their wakes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from events.embedded import EmbeddedServer
from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.replicas import replicas, settings
from tests.wire.gateway import Json, until

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {max_concurrent_runs: 16}
agents:
  talker: {provider: mock, model: mock-generic}
"""

TALKS = 8
LATE_S = 6.0
"""A lease ends within four seconds and is missed within one more; then the runs are woken."""


async def start(http: httpx.AsyncClient) -> Json:
    body = {"agent": "talker", "prompt": "hi", "interactive": True}
    response = await http.post("/v1/runs", json=body, headers={"Prefer": "respond-async"})
    assert response.status_code == 202, response.text
    run: Json = response.json()
    return run


async def waits(http: httpx.AsyncClient, run: Json, times: int) -> None:
    """Until the run has awaited input so many times."""

    async def waited() -> bool | None:
        path = f"/v1/sessions/{run['session_id']}/transcript"
        events = (await http.get(path)).json()["events"]
        return [event["type"] for event in events].count("awaiting_input") >= times or None

    await until(waited)


async def speak(http: httpx.AsyncClient, run: Json) -> None:
    response = await http.post(f"/v1/runs/{run['run_id']}/input", json={"text": "and?"})
    assert response.status_code == 200, response.text


async def test_what_is_said_when_a_replica_dies_is_answered_within_six_seconds(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = await EmbeddedServer.start(data)
    try:
        async with replicas(tmp_path, CONFIG, settings(tmp_path), "one", "two") as (one, two):
            runs = [await start(http) for http in (one.http, two.http) for _ in range(TALKS // 2)]
            for run in runs:
                await waits(two.http, run, 1)
            os.kill(one.pid, signal.SIGSTOP)  # what it asked for is still given to it
            for run in runs:
                await speak(two.http, run)
            one.kill()
            since = time.monotonic()
            await asyncio.gather(*(waits(two.http, run, 2) for run in runs))
            assert time.monotonic() - since < LATE_S
            await one.gone()
            for run in runs:
                await two.http.post(f"/v1/agents/{run['agent_id']}/cancel")
                await two.ended(run["agent_id"])
        async with open_log(data) as store:
            await prove_everything(store)
    finally:
        await server.stop()
