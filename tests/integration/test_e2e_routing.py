"""Which provider serves a run, from resolution to fallback, through HTTP (providers.md 9).

Models are listed by the vendor at the wire; every journal is verified at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from events.plan import Pair
from tests.e2e.proofs import prove_everything, rows, text_of, whole_texts
from tests.e2e.turns import Call, asked, reply
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, serving, sse_frames, until
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Hold,
    Reply,
    anthropic_events,
    environment,
    json_reply,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECRET = "a-secret-of-the-environment"

CONFIG = """
provider_priority: [anthropic, openai, deepseek, gemini]
models: {quick: {provider: openai, model: m-2}}
tiers:
  low: [{provider: openai, model: m-1}, {provider: anthropic, model: m-1}]
  middle: [{provider: anthropic, model: m-1}, {provider: deepseek, model: deepseek-reasoner}]
  high: [{provider: gemini, model: not-listed}]
user_tiers:
  default: {}
  falling: {fallback_on_error: true, rate_limit_cooldown_ms: 1000}
  brief: {rate_limit_cooldown_ms: 1000}
  trying: {fallback_on_error: true, retry_attempts: 1}
  twice: {fallback_on_error: true, max_fallback_attempts: 2}
  only-openai: {provider_priority: [openai]}
  own: {tiers: {low: [{provider: gemini, model: m-1}]}}
agents:
  low: {tier: low, allowed_tools: [Context]}
  stubborn: {tier: low, retry_attempts: 0}
  thinker: {tier: middle, effort: medium, max_tokens: 9000, allowed_tools: [Context]}
  high: {tier: high}
  choosy: {tier: low, providers: [deepseek]}
  aliased: {tier: low, models: {low: [quick]}}
  pinned: {provider: anthropic, model: unlisted}
  unknown: {provider: nobody, model: m-1}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        names = ("m-1", "m-2", "deepseek-reasoner", "deepseek-chat")
        data = json_reply({"data": [{"id": name} for name in names]})
        vendor.listings |= {"/v1/models": data, "/deepseek/models": data}
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    settings = environment(vendor, LOOMCYCLE_TEST_SECRET=SECRET, LOOMCYCLE_MOCK_ENABLED="")
    async with serving(tmp_path_factory.mktemp("routing"), CONFIG, settings) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def fresh(gateway: GatewayUnderTest, vendor: FakeVendor) -> AsyncIterator[None]:
    """An empty script, and a matrix without stalls."""
    await gateway.http.post("/v1/_resolve/probe")
    vendor.requests.clear()
    yield
    assert not vendor.replies


BUSY = Reply([b"busy"], status=503)
THINKING: Json = {"type": "thinking", "thinking": "hm", "signature": "sig"}
LOOK: Json = {"type": "tool_use", "id": "t1", "name": "Context", "input": {"op": "self"}}


def thoughtful() -> Reply:
    """A turn of Anthropic's that reasons and asks who serves the run."""
    return Reply([sse(*anthropic_events([THINKING, LOOK], stop_reason="tool_use"))])


def kinds(frames: list[SseFrame]) -> list[str]:
    return [kind for kind, _ in whole_texts(frames)]


async def served_by(gateway: GatewayUnderTest, frames: list[SseFrame]) -> tuple[str, str]:
    usage = (await gateway.ended(frames[1].data["agent_id"]))["usage"]
    return usage["provider"], usage["model"]


async def told_thrice(gateway: GatewayUnderTest, frames: list[SseFrame]) -> None:
    agent = frames[1].data
    transcript = await gateway.http.get(f"/v1/sessions/{agent['session_id']}/transcript")
    again = await gateway.http.get(f"/v1/runs/{agent['run_id']}/stream")
    reread = [frame for frame in sse_frames(again.text) if frame.event != "steer"]
    assert rows(transcript.json()) == whole_texts(reread) == whole_texts(frames)


async def refused(gateway: GatewayUnderTest, **body: Any) -> tuple[int, str]:
    response = await gateway.http.post("/v1/runs", json={"prompt": "hi", **body})
    return response.status_code, response.text.strip()


# --- resolution


async def test_the_order_of_providers_counts_before_the_order_of_candidates(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("anthropic", "hi"))
    frames = await gateway.run("low")
    assert await served_by(gateway, frames) == ("anthropic", "claude-fake-1")


@pytest.mark.parametrize(
    ("agent", "tier", "provider"),
    [("low", "only-openai", "openai"), ("low", "own", "gemini"), ("aliased", "", "openai")],
)
async def test_tiers_of_users_and_models_of_agents_decide(
    gateway: GatewayUnderTest, vendor: FakeVendor, agent: str, tier: str, provider: str
) -> None:
    vendor.script(reply(provider, "hi"))
    frames = await gateway.run(agent, user_tier=tier)
    assert frames[-1].data["usage"]["provider"] == provider
    if agent == "aliased":
        assert asked(vendor)[0].json["model"] == "m-2"


async def test_a_pin_is_called_whatever_the_matrix_says(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY, reply("anthropic", "hi"))
    assert kinds(await gateway.run("pinned"))[-1] == "error"
    assert kinds(await gateway.run("pinned"))[-1] == "done"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"agent": "high"}, 503, "no provider available for requested tier: high"),
        ({"agent": "choosy"}, 400, "agent not available for user_tier: "),
        (
            {"agent": "choosy", "user_tier": "only-openai"},
            400,
            "agent not available for user_tier: ",
        ),
        ({"agent": "low", "user_tier": "platinum"}, 400, 'unknown user_tier "platinum"'),
        ({"agent": "unknown"}, 400, 'unknown provider "nobody"'),
        (
            {"agent": "pinned", "compaction": {"target_percentage": 51}},
            400,
            "compaction.target_percentage 51 out of range [10,50]",
        ),
        (
            {"agent": "pinned", "compaction": {"keep_last_n": -1}},
            400,
            "compaction.keep_last_n -1 out of range >= 0",
        ),
        (
            {"agent": "pinned", "compaction": {"autocompact_at_pct": 49}},
            400,
            "compaction.autocompact_at_pct 49 out of range [50,95]",
        ),
        ({"agent": "pinned", "max_cost_usd": -0.5}, 400, "max_cost_usd -0.5 out of range >= 0"),
        ({"agent": "pinned", "max_tokens_total": -1}, 400, "max_tokens_total -1 out of range"),
    ],
)
async def test_a_start_that_cannot_be_resolved_is_refused(
    gateway: GatewayUnderTest, body: Json, status: int, text: str
) -> None:
    answer = await refused(gateway, **body)
    assert answer[0] == status
    assert answer[1].startswith(text)


async def test_availability_is_asked_at_each_start(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    anthropic_down = {"/v1/models": Reply([b"down"], status=503)}
    working = dict(vendor.listings)
    vendor.script(reply("anthropic", "one"))
    assert (await gateway.run("thinker"))[-1].data["usage"]["provider"] == "anthropic"
    vendor.listings |= anthropic_down
    await gateway.http.post("/v1/_resolve/probe")
    vendor.listings |= working
    vendor.script(reply("deepseek", "two"))
    assert (await gateway.run("thinker"))[-1].data["usage"]["provider"] == "deepseek"
    await gateway.http.post("/v1/_resolve/probe")
    vendor.script(reply("anthropic", "three"))
    assert (await gateway.run("thinker"))[-1].data["usage"]["provider"] == "anthropic"


# --- what calls of runs tell the matrix


async def test_a_pair_that_failed_is_avoided_until_the_next_probe(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY)
    assert kinds(await gateway.run("low")) == ["started", "error"]
    vendor.script(reply("openai", "hi"))
    assert await served_by(gateway, await gateway.run("low")) == ("openai", "gpt-fake-1")
    stalled = (await gateway.http.get("/v1/_resolver")).json()["providers"]["anthropic"]
    assert stalled["models"]["m-1"] == {"listed": True, "stalled": True}
    await gateway.http.post("/v1/_resolve/probe")
    vendor.script(reply("anthropic", "hi"))
    assert (await served_by(gateway, await gateway.run("low")))[0] == "anthropic"


async def test_a_rate_limited_pair_cools_down_without_being_stalled(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    """A pinned agent of another model fails, so nobody else's pair is touched."""
    limited = json_reply({}, status=429, headers={"Retry-After": "0"})
    vendor.script(*[limited] * 5)
    frames = await gateway.run("pinned", user_tier="only-openai")
    assert kinds(frames) == ["started", *["retry"] * 4, "error"]
    models = (await gateway.http.get("/v1/_resolver")).json()["providers"]["anthropic"]["models"]
    assert "unlisted" not in models


async def test_the_cooldown_of_a_named_tier_ends_by_itself(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(*[json_reply({}, status=429, headers={"Retry-After": "0"})] * 5)
    assert (await gateway.run("low", user_tier="brief"))[-1].event == "error"
    await gateway.http.post("/v1/_resolve/probe")
    vendor.script(reply("openai", "hi"))
    assert (await gateway.run("low"))[-1].data["usage"]["provider"] == "openai"

    async def cool() -> bool | None:
        pair = Pair("anthropic", "m-1")
        return gateway.runtime.services.availability.usable(pair) or None

    assert await until(cool)
    vendor.script(reply("anthropic", "hi"))
    assert (await gateway.run("low"))[-1].data["usage"]["provider"] == "anthropic"


# --- fallback


async def test_a_failed_provider_is_left_and_everybody_is_told(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(Reply([b"busy " + SECRET.encode() + b"!" * 300], status=503))
    vendor.script(reply("openai", calls=[Call("t1", "Context", {"op": "self"})]))
    vendor.script(reply("openai", "it is me"))
    frames = await gateway.run("low", user_tier="falling")
    assert kinds(frames) == [
        "started", "provider_fallback", "cache_invalidated",
        "tool_call", "usage", "tool_result", "text", "usage", "done",
    ]  # fmt: skip
    fallback = dict(next(f.data["fallback"] for f in frames if f.event == "provider_fallback"))
    cause = fallback.pop("cause_error")
    assert fallback == {
        "failed_provider": "anthropic", "failed_model": "m-1",
        "new_provider": "openai", "new_model": "m-1",
        "attempt": 1, "user_tier": "falling", "reason": "retryable",
    }  # fmt: skip
    assert cause.startswith("anthropic 503: busy ")
    assert cause.endswith("…(truncated)")
    assert SECRET[:8] not in json.dumps([frame.data for frame in frames])
    facts = json.loads(next(f.data["text"] for f in frames if f.event == "tool_result"))
    assert (facts["provider"], facts["model"]) == ("openai", "gpt-fake-1")
    usage = frames[-1].data["usage"]
    assert (usage["provider"], usage["model"]) == ("openai", "gpt-fake-1")
    assert usage["input_tokens"] == 20
    assert await served_by(gateway, frames) == ("openai", "gpt-fake-1")
    await told_thrice(gateway, frames)


async def test_retries_come_first_and_the_agents_own_number_wins(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY, BUSY, reply("openai", "hi"))
    frames = await gateway.run("low", user_tier="trying")
    assert kinds(frames)[:4] == ["started", "retry", "provider_fallback", "cache_invalidated"]
    await gateway.http.post("/v1/_resolve/probe")
    vendor.script(BUSY, reply("openai", "hi"))
    frames = await gateway.run("stubborn", user_tier="trying")
    assert kinds(frames)[:3] == ["started", "provider_fallback", "cache_invalidated"]


async def test_a_model_whose_streams_always_break_is_left_after_its_retries(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(*[reply("anthropic", "half a sen", Cut())] * 2, reply("openai", "whole"))
    frames = await gateway.run("low", user_tier="trying")
    assert kinds(frames) == [
        *("started", "retry", "provider_fallback", "cache_invalidated"),
        *("text", "usage", "done"),
    ]
    assert text_of(frames) == "whole"
    assert await served_by(gateway, frames) == ("openai", "gpt-fake-1")
    await told_thrice(gateway, frames)


async def test_reasoning_is_dropped_and_a_thinking_deepseek_downgraded(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(thoughtful(), BUSY, reply("deepseek", "done"))
    frames = await gateway.run("thinker", user_tier="falling")
    assert kinds(frames) == [
        "started", "tool_call", "usage", "tool_result",
        "provider_fallback", "cache_invalidated", "reasoning_invalidated", "model_downgraded",
        "text", "usage", "done",
    ]  # fmt: skip
    fallback = next(f.data["fallback"] for f in frames if f.event == "provider_fallback")
    assert fallback["new_model"] == "deepseek-reasoner"
    last = asked(vendor)[-1].json
    assert last["model"] == "deepseek-chat"
    assert "reasoning_effort" not in last
    assert last["messages"][1]["tool_calls"][0]["id"] == "t1"
    assert "hm" not in json.dumps(last["messages"])
    await told_thrice(gateway, frames)


async def test_a_fresh_history_is_not_downgraded(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY, reply("deepseek", "done"))
    frames = await gateway.run("thinker", user_tier="falling")
    assert kinds(frames)[:4] == ["started", "provider_fallback", "cache_invalidated", "text"]
    last = asked(vendor)[-1].json
    assert (last["model"], last["reasoning_effort"]) == ("deepseek-reasoner", "medium")


async def test_a_retired_model_is_left_with_its_reason(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(Reply([b"m-1 is no longer available"], status=404), reply("openai", "hi"))
    frames = await gateway.run("low", user_tier="falling")
    fallback = next(f.data["fallback"] for f in frames if f.event == "provider_fallback")
    assert fallback["reason"] == "deprecated"
    assert frames[-1].event == "done"


async def test_where_nobody_is_left_the_first_cause_fails_the_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY, Reply([b"busy too"], status=500))
    frames = await gateway.run("low", user_tier="falling")
    assert kinds(frames) == ["started", "provider_fallback", "cache_invalidated", "error"]
    assert frames[-1].data["error"] == "openai 500: busy too"
    row = await gateway.ended(frames[1].data["agent_id"])
    assert (row["status"], row["error"]) == ("failed", "openai 500: busy too")
    await told_thrice(gateway, frames)


async def test_what_is_permanent_never_falls_back(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(Reply([b"bad"], status=400))
    assert kinds(await gateway.run("low", user_tier="falling")) == ["started", "error"]


async def test_a_pinned_agent_switches_to_itself_until_the_cap(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(BUSY, BUSY, BUSY)
    frames = await gateway.run("pinned", user_tier="twice")
    assert kinds(frames) == ["started", "provider_fallback", "provider_fallback", "error"]
    pairs = [f.data["fallback"] for f in frames if f.event == "provider_fallback"]
    assert [(p["failed_model"], p["new_model"], p["attempt"]) for p in pairs] == [
        ("unlisted", "unlisted", 1), ("unlisted", "unlisted", 2),
    ]  # fmt: skip


async def test_text_of_an_attempt_that_broke_is_taken_back(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    broken = reply("anthropic", "half a sen\n")
    vendor.script(Reply(broken.parts[:-1]), reply("openai", "whole"))
    frames = await gateway.run("low", user_tier="falling")
    assert text_of(frames).endswith("whole")
    transcript: Json = (
        await gateway.http.get(f"/v1/sessions/{frames[0].data['text']}/transcript")
    ).json()
    said = [row["event"]["text"] for row in transcript["events"] if row["type"] == "text"]
    assert said == ["whole"]


async def test_after_a_success_a_latched_deployment_stays(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> None:
    settings = environment(vendor, LOOMCYCLE_FALLBACK_PIN_AFTER_SUCCESS="1")
    directory = tmp_path_factory.mktemp("latched")
    async with serving(directory, CONFIG, settings) as gateway:
        vendor.script(BUSY, reply("openai", "fresh"))
        assert (await gateway.run("low", user_tier="falling"))[-1].event == "done"
        await gateway.http.post("/v1/_resolve/probe")
        vendor.script(thoughtful(), BUSY)
        frames = await gateway.run("thinker", user_tier="falling")
        assert kinds(frames)[-2:] == ["fallback_suppressed", "error"]
        text = frames[-2].data["text"]
        assert "anthropic" in text
        assert "anthropic 503: busy" in text
        await told_thrice(gateway, frames)
        await prove_everything(gateway.runtime.store)


# --- what operators see


async def test_the_matrix_shows_providers_models_and_reasons(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.get("/v1/_resolver")
    assert response.headers["content-type"] == "application/json"
    assert response.text.startswith('{\n  "generated_at": "')
    body = response.json()
    assert body["generated_at"].endswith("Z")
    providers = body["providers"]
    assert list(providers) == sorted(
        ["anthropic", "anthropic-oauth-dev", "deepseek", "gemini", "mock", "mock-stable",
         "ollama", "ollama-local", "openai"]
    )  # fmt: skip
    assert providers["openai"]["models"]["m-2"] == {"listed": True, "stalled": False}
    assert providers["openai"]["reachable"]
    assert not providers["openai"]["excluded"]
    assert providers["openai"]["last_check"] > "2020"
    assert "last_error" not in providers["openai"]
    assert providers["mock"] == {
        "excluded": True, "reachable": False, "models": {},
        "last_check": "0001-01-01T00:00:00Z", "last_error": "LOOMCYCLE_MOCK_ENABLED not set",
    }  # fmt: skip


async def test_a_probe_finds_a_provider_that_went_and_came(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    working = vendor.listings["/cloud/api/tags"]
    vendor.listings["/cloud/api/tags"] = Reply([b"gone"], status=500)
    response = await gateway.http.post("/v1/_resolve/probe", content=b"whatever")
    ollama = response.json()["providers"]["ollama"]
    assert (ollama["reachable"], ollama["last_error"]) == (False, "ollama 500: gone")
    assert ollama["models"] == {"m-1": {"listed": True, "stalled": False}}
    vendor.listings["/cloud/api/tags"] = working
    response = await gateway.http.post("/v1/_resolve/probe")
    assert response.json()["providers"]["ollama"]["reachable"]


async def test_the_models_of_a_provider_are_asked_for_now(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.get("/v1/_providers/gemini/models")
    body = response.json()
    assert response.text.startswith('{\n  "provider": "gemini",')
    assert (body["provider"], body["models"]) == ("gemini", ["m-1"])
    assert body["fetched_at"].endswith("Z")
    assert body["duration_ms"] >= 0


@pytest.mark.parametrize(
    ("provider", "status", "code"),
    [
        ("nobody", 404, "provider_unknown"),
        ("session", 404, "provider_unknown"),
        ("mock", 503, "provider_unavailable"),
        ("code-js", 503, "provider_unavailable"),
    ],
)
async def test_a_provider_without_a_list_says_why(
    gateway: GatewayUnderTest, provider: str, status: int, code: str
) -> None:
    response = await gateway.http.get(f"/v1/_providers/{provider}/models")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert "session" not in response.text


async def test_a_provider_that_does_not_list_is_a_bad_gateway(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    working = vendor.listings["/api/tags"]
    vendor.listings["/api/tags"] = Reply([b"nonsense"])
    response = await gateway.http.get("/v1/_providers/ollama-local/models")
    vendor.listings["/api/tags"] = working
    assert (response.status_code, response.json()["code"]) == (502, "provider_list_failed")


async def test_a_start_right_after_boot_waits_for_the_probe_it_needs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with FakeVendor() as slow:
        hold = asyncio.Event()
        slow.script(reply("anthropic", "hi"))
        settings = environment(slow)
        listing = slow.listings["/v1/models"]
        slow.listings["/v1/models"] = held(hold, listing)
        async with serving(tmp_path_factory.mktemp("boot"), CONFIG, settings) as gateway:
            assert (await gateway.http.get("/healthz")).status_code == 200
            run = asyncio.create_task(gateway.run("low"))
            await until(lambda: _asked_for(gateway, "gemini"))
            assert not run.done()
            hold.set()
            assert (await run)[-1].event == "done"


async def _asked_for(gateway: GatewayUnderTest, provider: str) -> bool | None:
    providers = (await gateway.http.get("/v1/_resolver")).json()["providers"]
    return True if providers[provider]["reachable"] else None


def held(until_then: asyncio.Event, listing: Reply) -> Reply:
    return Reply([Hold(until_then), *listing.parts])
