"""Requests under a budget say how long the answer may be, and a vendor that keeps to it keeps
every tree of runs within its limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loomcycle.budget.budgets import SHORTEST_ANSWER
from loomcycle.budget.prices import ASSUMED_OUTPUT_TOKENS
from tests.e2e.ledgers import ledger_of
from tests.e2e.proofs import prove_everything
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, serving
from tests.wire.vendors import (
    FakeVendor,
    Hold,
    Received,
    Reply,
    anthropic_text,
    anthropic_tool_call,
    environment,
    json_reply,
    openai_chunk,
    openai_usage,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

VERBOSE = 30_000
"""Tokens of an answer that nothing bounds."""

CHILDREN = 4

CONFIG = """
concurrency: {max_concurrent_runs: 8}
prices:
  gpt-fake-1: {input_per_mtok: 1, output_per_mtok: 10}
agents:
  talkative: {provider: openai, model: gpt-fake-1}
  boss: {provider: anthropic, model: claude-fake-1, max_tokens: 300, allowed_tools: [Agent]}
  frugal:
    provider: anthropic
    model: claude-fake-1
    allowed_tools: [Context]
    compaction: {keep_last_n: 0}
"""


class Talkative(FakeVendor):
    """Its OpenAI answers are as long as they may be; ``together`` of them begin at once."""

    def __init__(self) -> None:
        super().__init__()
        self.together = 1
        self.longest: list[int | None] = []
        self._all_asked = asyncio.Event()

    def talk(self, together: int = 1) -> None:
        self.together, self.longest, self._all_asked = together, [], asyncio.Event()
        self.replies.clear()
        self.requests.clear()

    async def reply_to(self, received: Received) -> Reply:
        if not received.target.endswith("/chat/completions"):
            return await super().reply_to(received)
        longest = received.json.get("max_tokens")
        self.longest.append(longest)
        if len(self.longest) == self.together:
            self._all_asked.set()
        usage = openai_usage(10, min(VERBOSE, longest or VERBOSE))
        said = sse(openai_chunk({"content": "so"}), openai_chunk(finish="stop"), usage, done=True)
        return Reply([Hold(self._all_asked), said])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[Talkative]:
    async with Talkative() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: Talkative
) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path_factory.mktemp("answers"), CONFIG, environment(vendor)) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


def asked(vendor: FakeVendor) -> list[Json]:
    return [r.json for r in vendor.requests if r.target == "/v1/messages"]


async def spent(gateway: GatewayUnderTest, frames: list[SseFrame]) -> tuple[int, int]:
    """(millionths of a dollar, tokens) of the whole tree."""
    ledger, _ = await ledger_of(gateway.runtime.store, frames[1].data["run_id"])
    assert all(not entry.reserved.tokens for entry in ledger.entries.values())
    return ledger.spent.cost_micros, ledger.spent.tokens


async def test_children_at_once_whose_agents_set_no_limit_stay_within_the_budget(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    vendor.talk(CHILDREN)
    entry = {"name": "talkative", "prompt": "tell me all"}
    vendor.script(
        anthropic_tool_call("Agent", {"op": "parallel_spawn", "spawns": [entry] * CHILDREN}),
        anthropic_text("Heard."),
    )
    frames = await gateway.run("boss", max_tokens_total=30_000)
    (result,) = (f.data for f in frames if f.event == "tool_result")
    assert [found["ok"] for found in json.loads(result["text"])["results"]] == [True] * CHILDREN
    lengths = sorted(length or VERBOSE for length in vendor.longest)
    assert lengths[1:] == [ASSUMED_OUTPUT_TOKENS] * 3
    assert SHORTEST_ANSWER <= lengths[0] < ASSUMED_OUTPUT_TOKENS
    _, tokens = await spent(gateway, frames)
    assert sum(lengths) < tokens <= 30_000


async def test_an_answer_costs_no_more_than_a_budget_in_money_holds(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    vendor.talk()
    frames = await gateway.run("talkative", max_cost_usd=0.05)
    assert frames[-1].event == "done"
    (longest,) = vendor.longest
    assert longest is not None
    assert 4900 < longest < 5000
    cost, _ = await spent(gateway, frames)
    assert 49_000 < cost <= 50_000


async def test_a_run_without_budget_leaves_the_length_of_answers_to_the_vendor(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    vendor.talk()
    assert (await gateway.run("talkative"))[-1].event == "done"
    assert vendor.longest == [None]


async def test_a_run_that_its_vendor_took_over_the_limit_ends_at_its_next_step(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    vendor.talk()
    vendor.script(anthropic_tool_call("Context", {"op": "time"}, output_tokens=VERBOSE))
    frames = await gateway.run("frugal", max_tokens_total=10_000)
    assert [f.event for f in frames][-2:] == ["tool_result", "error"]
    status = await gateway.ended(frames[1].data["agent_id"])
    assert (status["status"], status["stop_reason"]) == ("failed", "budget_exceeded")
    assert "max_tokens_total is 10000; spent are 30010" in status["error"]
    assert len(asked(vendor)) == 1


async def test_a_summary_is_no_longer_than_the_budget_lets_it_be(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    compact = anthropic_tool_call("Context", {"op": "compact"})
    vendor.talk()
    vendor.script(compact, anthropic_text("All I know."), anthropic_text("Done."))
    frames = await gateway.run("frugal", max_tokens_total=6000)
    assert [f.event for f in frames][-1] == "done"
    _, summary, last = asked(vendor)
    assert "tools" not in summary
    assert SHORTEST_ANSWER < summary["max_tokens"] < 6000
    assert SHORTEST_ANSWER < last["max_tokens"] < 6000


async def test_a_failed_call_and_a_failed_summary_are_proven_with_their_bounds(
    gateway: GatewayUnderTest, vendor: Talkative
) -> None:
    vendor.talk()
    broken = json_reply({"error": {"type": "invalid_request_error", "message": "x"}}, status=400)
    vendor.script(anthropic_tool_call("Context", {"op": "compact"}), broken, broken)
    frames = await gateway.run("frugal", max_tokens_total=6000)
    errors = [f.data["error"] for f in frames if f.event == "error"]
    assert errors[0].startswith("compaction summary failed (self)")
    assert len(asked(vendor)) == 3
