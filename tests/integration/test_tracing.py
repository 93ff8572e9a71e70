"""Traces over OTLP: a real collector's side of the wire, a whole server, vendors on 127.0.0.1."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from events.embedded import EmbeddedServer
from loomcycle.tracing.export import BATCH, QUEUE, OtlpSink, traces_url
from loomcycle.tracing.spans import Span
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.wire.gateway import SseFrame, open_stream, serving, until
from tests.wire.journals import runs_in
from tests.wire.vendors import (
    FakeVendor,
    Hold,
    Received,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    environment,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

CONFIG = """
agents:
  writer: &base {provider: anthropic, model: claude-fake-1, max_tokens: 100}
  keeper: {<<: *base, allowed_tools: [Memory, Read], memory_scopes: [user]}
  boss: {<<: *base, allowed_tools: [Agent]}
  forgetful:
    <<: *base
    allowed_tools: [Context]
    compaction: {enabled: true, keep_first: true, keep_last_n: 0}
"""

SECRETS = ("sesame-of-the-collector", "the-prompt-words", "the-answer-words", "the-input-words")

Attributes = dict[str, str | int]


class Collector:
    """Everything that a collector was sent."""

    def __init__(self, http: FakeVendor) -> None:
        self.http = http

    def posts(self) -> list[Received]:
        return [r for r in self.http.requests if r.target == "/v1/traces"]

    def spans(self) -> dict[str, list[Any]]:
        """By trace id, in the order in which they came."""
        traces: dict[str, list[Any]] = {}
        for post in self.posts():
            request = ExportTraceServiceRequest.FromString(post.body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        traces.setdefault(span.trace_id.hex(), []).append(span)
        return traces

    async def trace_with(self, *runs: str, size: int) -> list[Any]:
        """The one trace that holds these runs, once it has this many spans."""

        async def look() -> list[Any] | None:
            for spans in self.spans().values():
                there = {attributes(s).get("loomcycle.run_id") for s in spans}
                if set(runs) <= there and len(spans) >= size:
                    return spans
            return None

        return await until(look)


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture
async def collector() -> AsyncIterator[Collector]:
    async with FakeVendor() as http:
        http.route("POST", "/v1/traces", Reply(status=200))
        yield Collector(http)


def tracing(vendor: FakeVendor, collector: Collector, **extra: str) -> dict[str, str]:
    return environment(
        vendor,
        LOOMCYCLE_OTEL_EXPORTER_OTLP_ENDPOINT=collector.http.url,
        LOOMCYCLE_OTEL_EXPORTER_OTLP_HEADERS=f"x-api-key={SECRETS[0]},junk,tenant=blue",
        **extra,
    )


def attributes(span: Any) -> Attributes:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def tree(spans: list[Any]) -> list[str]:
    """A line for each span, by its begin, indented by its depth."""
    by_id = {span.span_id: span for span in spans}
    children: dict[bytes, list[Any]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in by_id else b""
        children.setdefault(parent, []).append(span)

    def lines(parent: bytes, depth: int) -> list[str]:
        found: list[str] = []
        for span in sorted(children.get(parent, []), key=lambda s: s.start_time_unix_nano):
            who = attributes(span)
            what = who.get("loomcycle.agent_name") or who.get("loomcycle.tool") or ""
            found.append(f"{'  ' * depth}{span.name.removeprefix('loomcycle.')} {what}".rstrip())
            found += lines(span.span_id, depth + 1)
        return found

    return lines(b"", 0)


def run_of(frames: list[SseFrame]) -> str:
    run_id: str = frames[1].data["run_id"]
    return run_id


# --- what is sent -------------------------------------------------------------------------


async def test_children_hang_under_the_call_that_spawned_them(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    spawn = {"op": "spawn", "name": "writer", "prompt": SECRETS[3]}
    vendor.script(
        anthropic_tool_call("Agent", spawn),
        anthropic_text(SECRETS[2]),
        anthropic_text(SECRETS[2]),
    )
    async with serving(
        tmp_path, CONFIG, tracing(vendor, collector, LOOMCYCLE_OTEL_SERVICE_NAME="shop")
    ) as gateway:
        frames = await gateway.run("boss", SECRETS[1], user_id="ann")
        assert frames[-1].event == "done"
        runs = [run for _, run in await runs_in(gateway.runtime.store)]
        assert len(runs) == 2
        spans = await collector.trace_with(*runs, size=9)
    assert tree(spans) == [
        "run boss",
        "  iteration",
        "    provider.call",
        "    tool.call Agent",
        "      run writer",
        "        iteration",
        "          provider.call",
        "  iteration",
        "    provider.call",
    ]
    by_name = {(s.name, attributes(s).get("loomcycle.agent_name")): s for s in spans}
    boss = attributes(by_name["loomcycle.run", "boss"])
    assert boss["loomcycle.run_id"] == run_of(frames)
    assert (boss["loomcycle.user_id"], boss["loomcycle.stop_reason"]) == ("ann", "end_turn")
    assert boss["loomcycle.input_tokens"] > 0
    child = attributes(by_name["loomcycle.run", "writer"])
    assert child["loomcycle.parent_agent_id"] == boss["loomcycle.agent_id"]
    call = attributes(by_name["loomcycle.provider.call", None])
    assert call == {"loomcycle.provider": "anthropic", "loomcycle.model": "claude-fake-1"}
    for post in collector.posts():
        request = ExportTraceServiceRequest.FromString(post.body)
        for resource in request.resource_spans:
            [name] = resource.resource.attributes
            assert (name.key, name.value.string_value) == ("service.name", "shop")
        assert (post.headers["x-api-key"], post.headers["tenant"]) == (SECRETS[0], "blue")
        assert post.headers["content-type"] == "application/x-protobuf"
        assert not any(secret.encode() in post.body for secret in SECRETS)


async def test_a_failed_tool_shows_the_first_line_of_its_error(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    vendor.script(
        anthropic_tool_call("Memory", {"op": "incr", "scope": "user", "key": SECRETS[3]}),
        anthropic_tool_call("Read", {"file_path": "/nowhere"}),
        anthropic_text("ok"),
    )
    async with serving(tmp_path, CONFIG, tracing(vendor, collector)) as gateway:
        frames = await gateway.run("keeper", SECRETS[1], user_id="ann")
        spans = await collector.trace_with(run_of(frames), size=9)
    [result] = [f.data for f in frames if f.event == "tool_result" and f.data.get("is_error")]
    [failed] = [s for s in spans if s.status.code == Status.STATUS_CODE_ERROR]
    assert attributes(failed) == {"loomcycle.tool": result["tool_use"]["name"]}
    assert failed.status.message == result["text"].splitlines()[0]
    assert sum(span.name == "loomcycle.tool.call" for span in spans) == 2
    assert not any(s.encode() in post.body for post in collector.posts() for s in SECRETS)


async def test_a_cancelled_run_is_traced_and_has_not_failed(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    never = asyncio.Event()
    begun = sse(*anthropic_events([{"type": "text", "text": "Once upon"}])[:3])
    vendor.script(Reply(parts=[begun, Hold(never)]))
    body = {"agent": "writer", "prompt": "hi"}
    async with serving(tmp_path, CONFIG, tracing(vendor, collector)) as gateway:
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
            agent = await stream.until("agent")
            await stream.until("text")
            await gateway.http.post(f"/v1/agents/{agent.data['agent_id']}/cancel")
            await stream.rest()
        [run, *others] = await collector.trace_with(agent.data["run_id"], size=3)
    assert attributes(run)["loomcycle.stop_reason"] == "cancelled"
    assert run.status.code == Status.STATUS_CODE_UNSET
    assert [span.name for span in others] == ["loomcycle.iteration", "loomcycle.provider.call"]


async def test_a_compaction_is_an_event_of_its_turn(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}),
        anthropic_text(SECRETS[2]),
        anthropic_text("ok"),
    )
    async with serving(tmp_path, CONFIG, tracing(vendor, collector)) as gateway:
        frames = await gateway.run("forgetful", SECRETS[1])
        spans = await collector.trace_with(run_of(frames), size=7)
    [(span, event)] = [(s, e) for s in spans for e in s.events]
    assert (span.name, event.name) == ("loomcycle.iteration", "context.compaction")
    told = attributes(event)
    assert told["compaction.trigger"] == "self"
    assert told["compaction.before_tokens"] > 0
    assert not any(s.encode() in post.body for post in collector.posts() for s in SECRETS)


async def test_what_waits_is_sent_when_the_process_stops(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    vendor.script(anthropic_text("ok"))
    async with serving(tmp_path, CONFIG, tracing(vendor, collector)) as gateway:
        frames = await gateway.run("writer")
    assert len(await collector.trace_with(run_of(frames), size=3)) == 3


async def test_a_run_whose_owner_was_killed_has_one_trace(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    (tmp_path / "data").mkdir()
    log = await EmbeddedServer.start(tmp_path / "data")
    vendor.script(
        anthropic_tool_call("Memory", {"op": "incr", "scope": "user", "key": "k"}),
        Reply(parts=[Hold(asyncio.Event())]),
        anthropic_text("ok"),
    )
    environ = settings(tmp_path, **tracing(vendor, collector))
    body = {"agent": "keeper", "prompt": "hi", "user_id": "ann"}
    client = Client()
    async with (
        replicas(tmp_path, CONFIG, environ, "owner") as (owner,),
        replicas(tmp_path, CONFIG, environ, "survivor") as (survivor,),
    ):
        reading = asyncio.create_task(client.start(owner.http, body))
        await vendor.wait_for(lambda v: len(v.requests) == 2)
        owner.kill()
        await asyncio.gather(reading, return_exceptions=True)
        await client.insist(survivor.http)
        await collector.trace_with(client.run, size=6)
    await log.stop()
    [spans] = collector.spans().values()
    assert tree(spans) == [
        "run keeper",
        "  iteration",
        "    provider.call",
        "    tool.call Memory",
        "  iteration",
        "    provider.call",
    ]


async def test_an_error_that_repeats_a_secret_is_masked(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    token, bearer = "token-of-the-shop", "bearer-of-the-caller"
    said = f"{token} and {bearer} are no good".encode()
    vendor.script(Reply(status=400, parts=[said]))
    environ = tracing(vendor, collector, SHOP_TOKEN=token)
    async with serving(tmp_path, CONFIG, environ) as gateway:
        frames = await gateway.run("writer", user_bearer=bearer)
        spans = await collector.trace_with(run_of(frames), size=3)
    failed = [span for span in spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert [span.name for span in failed] == ["loomcycle.run", "loomcycle.provider.call"]
    for span in failed:
        assert "[redacted:SHOP_TOKEN] and [redacted:credential]" in span.status.message
    for post in collector.posts():
        assert token.encode() not in post.body
        assert bearer.encode() not in post.body


# --- what is not --------------------------------------------------------------------------


async def test_nothing_is_sent_of_a_share_of_nothing(
    tmp_path: Path, vendor: FakeVendor, collector: Collector
) -> None:
    vendor.script(anthropic_text("ok"))
    none = tracing(vendor, collector, LOOMCYCLE_OTEL_TRACES_SAMPLER_RATIO="0")
    async with serving(tmp_path, CONFIG, none) as gateway:
        assert (await gateway.run("writer"))[-1].event == "done"
    assert collector.posts() == []


async def test_a_collector_that_refuses_is_named_without_what_it_was_sent(
    tmp_path: Path,
    vendor: FakeVendor,
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    echo = Reply(status=400, parts=[f"bad key {SECRETS[0]}".encode()])
    collector.http.route("POST", "/v1/traces", echo)
    vendor.script(*[anthropic_text("ok") for _ in range(3)])
    with caplog.at_level(logging.INFO):
        async with serving(tmp_path, CONFIG, tracing(vendor, collector)) as gateway:
            for _ in range(3):
                assert (await gateway.run("writer"))[-1].event == "done"
    assert "spans not sent to 127.0.0.1: HTTP 400" in caplog.text
    assert SECRETS[0] not in caplog.text


async def test_a_collector_that_is_away_delays_neither_runs_nor_the_end(
    tmp_path: Path, vendor: FakeVendor, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    vendor.script(anthropic_text("ok"))
    away = tracing(vendor, collector)
    away["LOOMCYCLE_OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    async with serving(tmp_path, CONFIG, away) as gateway:
        assert (await gateway.run("writer"))[-1].event == "done"
        stopping = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stopping < 10
    assert SECRETS[0] not in caplog.text


async def test_spans_beyond_the_queue_wait_and_none_is_dropped(collector: Collector) -> None:
    answering = asyncio.Event()
    collector.http.route("POST", "/v1/traces", Reply(parts=[Hold(answering)]))
    sink = OtlpSink(collector.http.url, {}, "loomcycle")
    many = [
        Span(
            name="loomcycle.run",
            trace_id=1,
            span_id=n,
            parent_id=0,
            start=n,
            end=n,
            attributes={},
        )
        for n in range(1, QUEUE + 2 * BATCH + 1)
    ]
    taking = asyncio.create_task(sink.take(many))
    await collector.http.wait_for(lambda http: len(http.requests) == 1)
    assert not taking.done()
    answering.set()
    await taking
    await sink.close()
    assert {span.span_id for span in collector.spans()[f"{1:032x}"]} == {
        span.span_id.to_bytes(8) for span in many
    }


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://traces.example.org/otlp/", "https://traces.example.org/otlp/v1/traces"),
        ("traces.example.org:4318", "https://traces.example.org:4318/v1/traces"),
    ],
)
async def test_an_address_without_a_scheme_is_one_with_tls(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
