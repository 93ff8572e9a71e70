"""Runs whose owner dies or leaves while its model speaks (design.md 10, kernel.md 2, 10)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from events.embedded import EmbeddedServer
from loomcycle import worker as worker_module
from tests.e2e.proofs import open_log, prove_everything, rows, text_of, whole_texts
from tests.e2e.readers import Client
from tests.e2e.replicas import Replica, replicas, settings
from tests.e2e.turns import Call, asked, reply
from tests.wire.gateway import Json, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {max_concurrent_runs: 8}
agents:
  speaker: {provider: anthropic, model: m-1}
  counter: {provider: anthropic, model: m-1, allowed_tools: [Memory], memory_scopes: [user]}
"""

FIRST = "It was a dark and st"
SECOND = "It was a bright day. 🌞 And so on."


async def transcript(http: httpx.AsyncClient, session: str) -> Json:
    found: Json = (await http.get(f"/v1/sessions/{session}/transcript")).json()
    return found


async def acquainted(*members: Replica) -> None:
    """Return once every replica may judge others dead (their boot is over)."""
    for member in members:
        assert (await member.http.get("/healthz")).status_code == 200


async def speaks(client: Client, http: httpx.AsyncClient, text: str, agent: str) -> None:
    """Start a run and read it until ``text`` was said; the connection then breaks."""
    body = {"agent": agent, "prompt": "go", "user_id": "u"}
    reading = asyncio.create_task(client.start(http, body))
    await until(lambda: _heard(client, text))
    client.reading = reading


async def _heard(client: Client, text: str) -> bool | None:
    return text in text_of(client.frames) or None


async def test_text_starts_again_after_the_owner_was_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with FakeVendor() as vendor:
        hold = asyncio.Event()
        environ = settings(tmp_path, **environment(vendor))
        server = await EmbeddedServer.start(data)
        try:
            async with replicas(tmp_path, CONFIG, environ, "a", "b") as (a, b):
                vendor.script(
                    reply("anthropic", "It was ", "a dark and st", hold),
                    reply("anthropic", "It was a bri", "ght day. 🌞 ", "And so on."),
                )
                owner, client, observer = await _owned(vendor, a, b)
                survivor = b if owner is a else a
                observing = asyncio.create_task(observer.attach(survivor.http))
                await until(lambda: _heard(observer, FIRST))
                owner.kill()
                await owner.gone()
                await asyncio.gather(client.reading, return_exceptions=True)
                assert text_of(client.frames) == FIRST
                assert client.last_id.endswith(f".1.{len(FIRST)}")

                await client.attach(survivor.http)
                await observing
                for reader in (client, observer):
                    assert text_of(reader.frames) == SECOND
                    resets = [f for f in reader.frames if f.event == "text_reset"]
                    assert [f.data for f in resets] == [{"type": "text_reset", "attempt": 2}]
                stored = await transcript(survivor.http, client.session)
                said = [row for row in rows(stored) if row[0] == "text"]
                assert said == [("text", {"type": "text", "text": SECOND})]
                assert len(asked(vendor)) == 2
                late = Client(client.run, client.session)
                await late.attach(survivor.http)
                assert whole_texts(late.frames) == rows(stored)
            async with open_log(data) as store:
                await prove_everything(store)
        finally:
            await server.stop()


async def _owned(vendor: FakeVendor, a: Replica, b: Replica) -> tuple[Replica, Client, Client]:
    """Start a run; which replica owns it shows in whose connection the vendor holds."""
    client = Client()
    await speaks(client, a.http, FIRST, "speaker")
    observer = Client(client.run, client.session)
    owner_pid = await _peer_pid(vendor, (a, b))
    return (a if owner_pid == a.pid else b), client, observer
