"""Runs whose owner dies or leaves while its model speaks (design.md 10, kernel.md 2, 10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from events.embedded import EmbeddedServer
from loomcycle import worker as worker_module
from tests.e2e.proofs import open_log, prove_everything, rows, text_of, whole_texts
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.e2e.turns import asked, reply
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


async def speaks(client: Client, http: httpx.AsyncClient, text: str) -> asyncio.Task[None]:
    """Start a run and return once ``text`` was heard; the reading goes on."""
    reading = asyncio.create_task(client.start(http, {"agent": "speaker", "prompt": "go"}))
    await until(lambda: heard(client, text))
    return reading


async def heard(client: Client, text: str) -> bool | None:
    return text in text_of(client.frames) or None


def resets(client: Client) -> list[int]:
    return [f.data["attempt"] for f in client.frames if f.event == "text_reset"]


@asynccontextmanager
async def server_beside(data: Path, *, apart: bool) -> AsyncIterator[None]:
    """``apart``: the log's server outlives the replicas; else the first one owns it."""
    server = await EmbeddedServer.start(data) if apart else None
    yield
    if server is not None:
        await server.stop()


@pytest.mark.parametrize("apart", [True, False], ids=["server-lives", "server-dies-too"])
async def test_text_starts_again_after_the_owner_was_killed(tmp_path: Path, apart: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with FakeVendor() as vendor, server_beside(data, apart=apart):
        environ = settings(tmp_path, **environment(vendor))
        vendor.script(
            reply("anthropic", "It was ", "a dark and st", asyncio.Event()),
            reply("anthropic", "It was a bri", "ght day. 🌞 ", "And so on."),
        )
        client, observer = Client(), Client()
        async with replicas(tmp_path, CONFIG, environ, "owner") as (owner,):
            reading = await speaks(client, owner.http, FIRST)
            async with replicas(tmp_path, CONFIG, environ, "survivor") as (survivor,):
                observer.run = client.run
                observing = asyncio.create_task(observer.insist(survivor.http))
                await until(lambda: heard(observer, FIRST))
                owner.kill()
                await owner.gone()
                await asyncio.gather(reading, return_exceptions=True)
                assert text_of(client.frames) == FIRST
                assert client.last_id.endswith(f".1.{len(FIRST)}")

                await client.insist(survivor.http)
                await observing
                for reader in (client, observer):
                    assert text_of(reader.frames) == SECOND
                    assert resets(reader) == [2]
                stored = await transcript(survivor.http, client.session)
                said = [row for row in rows(stored) if row[0] == "text"]
                assert said == [("text", {"type": "text", "text": SECOND})]
                assert len(asked(vendor)) == 2
                late = Client(client.run, client.session)
                await late.attach(survivor.http)
                assert whole_texts(late.frames) == rows(stored)
        async with open_log(data) as store:
            await prove_everything(store)


async def test_text_starts_again_after_the_owner_was_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LEAVE_GRACE_S", 0.1)
    data = tmp_path / "data"
    data.mkdir()
    async with FakeVendor() as vendor, server_beside(data, apart=True):
        vendor.script(
            reply("anthropic", "It was ", "a dark and st", asyncio.Event()),
            reply("anthropic", "It was a bri", "ght day. 🌞 ", "And so on."),
        )
        client, observer = Client(), Client()
        async with serving(tmp_path, CONFIG, environment(vendor), proven=False) as owner:
            reading = await speaks(client, owner.http, FIRST)
            async with serving(tmp_path, CONFIG, environment(vendor)) as survivor:
                observer.run = client.run
                observing = asyncio.create_task(observer.insist(survivor.http))
                await until(lambda: heard(observer, FIRST))
                owner.stop.set()
                await owner.task
                await owner.runtime.close()
                await asyncio.gather(reading, return_exceptions=True)
                await client.insist(survivor.http)
                await observing
                for reader in (client, observer):
                    assert text_of(reader.frames) == SECOND
                    assert resets(reader) == [2]
                stored = await transcript(survivor.http, client.session)
                said = [row for row in rows(stored) if row[0] == "text"]
                assert said == [("text", {"type": "text", "text": SECOND})]
                await prove_everything(survivor.runtime.store)
