"""Every wake and timer may get lost, under load, and costs seconds only (kernel.md 2 and 6)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from events import inbox
from events.log import Log, LogFull
from events.nats_api import Api
from tests.e2e.proofs import prove_everything
from tests.e2e.turns import Call, reply
from tests.wire.gateway import GatewayUnderTest, Json, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {max_concurrent_runs: 16, max_queue_depth: 200}
agents:
  writer: {provider: mock, model: mock-generic}
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true}
"""

FAMILY = """
agents:
  boss: {provider: anthropic, model: m-1, allowed_tools: [Agent]}
  helper: {provider: openai, model: m-2}
"""

TALKS, QUESTIONS, CLIENTS = 24, 6, 4
TIMEOUT_MS = 2500
LATE_S = 10.0
"""A sweep comes each five seconds, and some things take a second look."""


async def start(gateway: GatewayUnderTest, agent: str, **fields: object) -> Json:
    body = {"agent": agent, "prompt": "hi", **fields}
    response = await gateway.http.post("/v1/runs", json=body, headers={"Prefer": "respond-async"})
    assert response.status_code == 202, response.text
    run: Json = response.json()
    return run


async def parked(gateway: GatewayUnderTest, count: int) -> bool | None:
    return await gateway.runtime.lookups.parked() == count or None


async def delete_queues(gateway: GatewayUnderTest) -> None:
    """As an operator's mistake, or a disk's, would."""
    wakes: object = gateway.runtime.store.wakes
    api = Api(wakes._link)  # type: ignore[attr-defined]
    for stream in ("loom-WAKES", "loom-TIMERS"):
        await api.call(f"STREAM.DELETE.{stream}", None, dict, write=True)


@contextlib.asynccontextmanager
async def load(gateway: GatewayUnderTest) -> AsyncIterator[list[int]]:
    """Clients that start one plain run after the other; counts what they got."""
    done = [0]

    async def client() -> None:
        while True:
            await gateway.run("writer")
            done[0] += 1

    tasks = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    try:
        yield done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_lost_wakes_and_timers_cost_seconds_under_load(tmp_path: Path) -> None:
    async with FakeVendor() as vendor:
        question = {"op": "ask", "question": "Which?", "timeout_ms": TIMEOUT_MS}
        asks = reply("openai", calls=[Call("c1", "Interruption", question)])
        async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
            talks = [await start(gateway, "writer", interactive=True) for _ in range(TALKS)]
            asking = []
            for _ in range(QUESTIONS):
                vendor.script(asks)
                asking.append(await start(gateway, "asker"))
            await until(lambda: parked(gateway, TALKS + QUESTIONS))
            vendor.script(*[reply("openai", "never mind")] * QUESTIONS)
            async with load(gateway) as done:
                await delete_queues(gateway)
                await say_without_a_wake(gateway, talks)
                began, before = time.monotonic(), done[0]
                for talk in talks:
                    await until(lambda run=talk["run_id"]: answered(gateway, run))
                for run in asking:
                    assert (await gateway.ended(run["agent_id"]))["status"] == "completed"
                assert time.monotonic() - began < LATE_S
                assert done[0] > before, "the load went on"
            for talk in talks:
                await gateway.http.post(f"/v1/agents/{talk['agent_id']}/cancel")
            for talk in talks:
                await gateway.ended(talk["agent_id"])
            await prove_everything(gateway.runtime.store)


async def say_without_a_wake(gateway: GatewayUnderTest, talks: list[Json]) -> None:
    """As a gateway does that dies right after the message was stored."""
    store = gateway.runtime.store
    for n, talk in enumerate(talks):
        message = inbox.encode(inbox.InputMessage(id=f"i_{n}", text="and then?"))
        await store.log.append(store.subjects.inbox("", talk["run_id"]), message)


async def answered(gateway: GatewayUnderTest, run_id: str) -> bool | None:
    """Whether the run has said something twice, and waits again."""
    rows = await gateway.runtime.views.queries.transcript_of_run(run_id)
    return [row.type for row in rows].count("awaiting_input") == 2 or None


class FullForMessages:
    """A log that has no room for what children tell their parents."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, subject: str, data: bytes, **options: Any) -> int:
        if subject.endswith(".inbox"):
            self.refused += 1
            raise LogFull("no room")
        return await self._log.append(subject, data, **options)


async def test_a_childs_end_that_nobody_told_is_found_by_its_parked_parent(tmp_path: Path) -> None:
    told = asyncio.Event()
    async with FakeVendor() as vendor:
        spawn = Call("c1", "Agent", {"op": "spawn", "name": "helper", "prompt": "help"})
        vendor.script(reply("anthropic", calls=[spawn]), reply("openai", "helped", told))
        async with serving(tmp_path, FAMILY, environment(vendor)) as gateway:
            store = gateway.runtime.store
            parent = await start(gateway, "boss")
            await until(lambda: parked(gateway, 1))
            log, full = store.log, FullForMessages(store.log)
            store.log = full  # type: ignore[assignment]
            vendor.script(reply("anthropic", "thanks"))
            told.set()
            await until(lambda: is_refused(full))
            store.log = log
            status = await gateway.ended(parent["agent_id"])
            assert (status["status"], status["stop_reason"]) == ("completed", "end_turn")
            await prove_everything(store)


async def is_refused(log: FullForMessages) -> bool | None:
    return log.refused > 0 or None
