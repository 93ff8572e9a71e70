"""The owner of a run is killed in the middle of a callback: verdicts stand, tools run once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from events.embedded import EmbeddedServer
from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.e2e.turns import Call, asked, conversation, reply
from tests.wire.vendors import FakeVendor, Reply, Stall, environment, json_reply

pytestmark = pytest.mark.integration

CONFIG = """
concurrency: {max_concurrent_runs: 8}
agents:
  counter: {provider: openai, model: m-1, allowed_tools: [Memory], memory_scopes: [user]}
"""

COUNT = Call("call_0", "Memory", {"op": "incr", "scope": "user", "key": "total"})
BY_TEN = {**COUNT.input, "delta": 10}


@pytest.mark.parametrize(("killed_in", "asked_before"), [("guard", 2), ("audit", 1)])
async def test_the_next_owner_goes_on_behind_the_last_verdict(
    tmp_path: Path, killed_in: str, asked_before: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with FakeVendor() as vendor, FakeVendor() as app:
        server = await EmbeddedServer.start(data)
        environ = settings(tmp_path, **environment(vendor))
        answers = {"guard": json_reply({"input": BY_TEN}), "audit": Reply()}
        for name, answer in answers.items():
            app.route("POST", f"/{name}", answer)
        app.route("POST", f"/{killed_in}", Reply([b" ", Stall()]))
        vendor.script(reply("openai", calls=[COUNT]), reply("openai", "counted"))
        client = Client()
        async with replicas(tmp_path, CONFIG, environ, "owner") as (owner,):
            for name, phase in (("guard", "pre"), ("audit", "post")):
                hook = {"owner": "app", "name": name, "phase": phase, "timeout_ms": 60_000}
                body = {**hook, "callback_url": f"{app.url}/{name}", "fail_mode": "closed"}
                assert (await owner.http.post("/v1/hooks", json=body)).status_code == 200
            start = {"agent": "counter", "prompt": "go", "user_id": "u1"}
            reading = asyncio.create_task(client.start(owner.http, start))
            await app.wait_for(lambda app: f"/{killed_in}" in asked_paths(app))
            async with replicas(tmp_path, CONFIG, environ, "survivor") as (survivor,):
                owner.kill()
                await owner.gone()
                await asyncio.gather(reading, return_exceptions=True)
                app.route("POST", f"/{killed_in}", answers[killed_in])
                await client.insist(survivor.http)
        assert asked_paths(app).count("/guard") == asked_before
        assert json.loads(conversation("openai", asked(vendor)[-1])[-1].results[0]) == {"value": 10}
        async with open_log(data) as store:
            await prove_everything(store)
        await server.stop()


def asked_paths(app: FakeVendor) -> list[str]:
    return [request.target for request in app.requests]
