"""A process killed while a summary is written: the next one asks again and goes on with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.wire.vendors import (
    FakeVendor,
    Reply,
    Stall,
    anthropic_text,
    anthropic_tool_call,
    environment,
)

pytestmark = pytest.mark.integration

CONFIG = """
runtime: {reader_grace_ms: 60000}
agents:
  worker:
    provider: anthropic
    model: m-1
    allowed_tools: [Context]
    max_tokens: 100
    max_tokens_total: 500000
    compaction: {keep_last_n: 0}
"""


async def test_a_summary_that_a_crash_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    async with FakeVendor() as vendor:
        vendor.script(
            anthropic_tool_call("Context", {"op": "compact"}),
            Reply([Stall()]),
            anthropic_text("where we are"),
            anthropic_text("done"),
        )
        environ = settings(tmp_path, **environment(vendor))
        client = Client()
        async with replicas(tmp_path, CONFIG, environ, "only") as (replica,):
            body = {"agent": "worker", "prompt": "go"}
            reading = asyncio.create_task(client.start(replica.http, body))
            await vendor.wait_for(lambda v: len(v.requests) == 2)
            replica.kill()
            await replica.gone()
            await asyncio.gather(reading, return_exceptions=True)
            await replica.start(environ)
            await client.insist(replica.http)
        assert [f.event for f in client.frames].count("context_compaction") == 1
        assert client.frames[-1].event == "done"
        assert vendor.requests[1].json["messages"] == vendor.requests[2].json["messages"]
        assert "where we are" in str(vendor.last.json["messages"])
        async with open_log(tmp_path / "data") as store:
            await prove_everything(store)
