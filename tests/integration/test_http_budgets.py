"""Budgets and structured output through HTTP: what a run may cost, and what it must answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from events.budget import Amount, BudgetReserved
from events.log import EventStore
from loomcycle.loading import Plans, load
from tests.e2e.ledgers import ledger_of
from tests.e2e.proofs import prove_everything
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, serving, sse_frames
from tests.wire.journals import runs_in
from tests.wire.vendors import (
    FakeVendor,
    Reply,
    anthropic_text,
    anthropic_tool_call,
    environment,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 8}
prices:
  claude-fake-1: {input_per_mtok: 3, output_per_mtok: 15, cache_read_per_mtok: 0.3}
agents:
  free: &base {provider: anthropic, model: claude-fake-1, max_tokens: 100}
  counted: {<<: *base, allowed_tools: [Context], max_tokens_total: 40000}
  paid: {<<: *base, allowed_tools: [Context], max_cost_usd: 0.2}
  unpriced: {<<: *base, model: claude-other-1, max_cost_usd: 1}
  boss: {<<: *base, allowed_tools: [Agent], max_tokens_total: 20000}
  plain: {<<: *base, allowed_tools: [Agent]}
  rich: {<<: *base, allowed_tools: [Agent], max_tokens_total: 1000000, max_cost_usd: 10}
  talker: {<<: *base, max_tokens_total: 1000, compaction: {keep_last_n: 0}}
  strict:
    <<: *base
    output_schema: &person {type: object, required: [name], properties: {name: {type: string}}}
  hurried:
    {<<: *base, allowed_tools: [Context], max_iterations: 2, output_schema: *person}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path_factory.mktemp("budgets"), CONFIG, environment(vendor)) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest.fixture(autouse=True)
def nothing_scripted(vendor: FakeVendor) -> None:
    vendor.replies.clear()
    vendor.requests.clear()


def time_call(**usage: Any) -> Reply:
    return anthropic_tool_call("Context", {"op": "time"}, **usage)


def run_of(frames: list[SseFrame]) -> str:
    run_id: str = frames[1].data["run_id"]
    return run_id


async def outcome(gateway: GatewayUnderTest, frames: list[SseFrame]) -> Json:
    status: Json = await gateway.ended(frames[1].data["agent_id"])
    return status


def totals(frames: list[SseFrame]) -> int:
    return sum(
        f.data["usage"]["input_tokens"] + f.data["usage"]["output_tokens"]
        for f in frames
        if f.event == "usage"
    )


# --- tokens -------------------------------------------------------------------------------


async def test_a_run_that_hits_its_token_budget_fails_before_the_call(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(time_call(input_tokens=10_000), time_call(input_tokens=29_900))
    frames = await gateway.run("counted")
    assert len(vendor.requests) == 2
    status = await outcome(gateway, frames)
    assert (status["status"], status["stop_reason"]) == ("failed", "budget_exceeded")
    assert "max_tokens_total is 40000; spent are 39910" in status["error"]
    assert [f.event for f in frames][-2:] == ["tool_result", "error"]
    assert frames[-1].data["error"] == status["error"]
    ledger, events = await ledger_of(gateway.runtime.store, run_of(frames))
    assert ledger.spent == Amount(0, totals(frames))
    assert isinstance(events[0], BudgetReserved)
    assert events[0].key.startswith(f"{run_of(frames)}.0.1")


async def test_a_request_lowers_the_budget_of_its_agent_and_never_raises_it(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    status = await outcome(gateway, await gateway.run("counted", max_tokens_total=50))
    assert "max_tokens_total is 50" in status["error"]
    vendor.script(time_call(input_tokens=39_950))
    status = await outcome(gateway, await gateway.run("counted", max_tokens_total=10**6))
    assert "max_tokens_total is 40000" in status["error"]
    vendor.script(anthropic_text("ok"))
    assert (await gateway.run("counted", max_tokens_total=10**6))[-1].event == "done"


async def test_a_run_without_budget_has_no_ledger(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(anthropic_text("ok"))
    frames = await gateway.run("free")
    assert (await ledger_of(gateway.runtime.store, run_of(frames)))[1] == []


# --- money --------------------------------------------------------------------------------


async def test_money_is_counted_by_the_table_of_prices(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        time_call(input_tokens=10_000, output_tokens=100, cache_read=10_000),
        time_call(input_tokens=50_000, output_tokens=1000),
    )
    frames = await gateway.run("paid")
    status = await outcome(gateway, frames)
    assert status["stop_reason"] == "budget_exceeded"
    assert "max_cost_usd is 0.2; spent are 0.1995," in status["error"]
    ledger, _ = await ledger_of(gateway.runtime.store, run_of(frames))
    assert ledger.spent.cost_micros == 30_000 + 1500 + 3000 + 150_000 + 15_000


async def test_a_model_without_price_is_not_asked_when_money_is_limited(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    status = await outcome(gateway, await gateway.run("unpriced"))
    assert status["status"] == "failed"
    assert (
        'anthropic/claude-other-1 has no price: add "anthropic/claude-other-1"' in status["error"]
    )
    assert vendor.requests == []


async def child_of(store: EventStore, run_id: str) -> str:
    """The only child of a run."""
    begun = []
    for tenant, run in await runs_in(store):
        loaded = await load(store, Plans(store), tenant, run)
        assert loaded is not None
        parent = loaded.state.started.parent
        if parent is not None and parent.run == run_id:
            begun.append(run)
    (child,) = begun
    return child


# --- trees --------------------------------------------------------------------------------


async def test_children_and_their_parent_share_one_budget(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spawn = {"op": "spawn", "name": "free", "prompt": "do it"}
    vendor.script(
        anthropic_tool_call("Agent", spawn, input_tokens=500),
        anthropic_text("child", input_tokens=18_500, output_tokens=100),
    )
    frames = await gateway.run("boss")
    status = await outcome(gateway, frames)
    assert status["stop_reason"] == "budget_exceeded"
    ledger, events = await ledger_of(gateway.runtime.store, run_of(frames))
    assert ledger.spent == Amount(0, 505 + 18_600)
    assert len({event.run for event in events}) == 2
    assert all(entry.reserved == Amount() for entry in ledger.entries.values())


async def test_a_child_that_does_not_fit_the_budget_fails_alone(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spawn = {"op": "spawn", "name": "free", "prompt": "x" * 60_000}
    vendor.script(anthropic_tool_call("Agent", spawn, input_tokens=500))
    frames = await gateway.run("boss")
    result = next(f.data for f in frames if f.event == "tool_result")
    assert result["is_error"]
    assert "budget exceeded" in result["text"]


@pytest.mark.parametrize("top", ["plain", "rich"])
async def test_a_child_s_budget_covers_its_children_whatever_the_root_has(
    gateway: GatewayUnderTest, vendor: FakeVendor, top: str
) -> None:
    def spawn(name: str, tokens: int) -> Reply:
        call = {"op": "spawn", "name": name, "prompt": "do it"}
        return anthropic_tool_call("Agent", call, input_tokens=tokens, output_tokens=10)

    def answer(tokens: int) -> Reply:
        return anthropic_text("kid", input_tokens=tokens, output_tokens=10)

    vendor.script(spawn("boss", 90))
    for _ in range(2):
        vendor.script(spawn("free", 90), answer(9890))
    vendor.script(anthropic_text("went on without it"))
    frames = await gateway.run(top)
    assert frames[-1].event == "done"
    assert len(vendor.requests) == 6
    result = next(f.data for f in frames if f.event == "tool_result")
    assert result["is_error"]
    assert "max_tokens_total is 20000; spent are 20000" in result["text"]
    boss = await child_of(gateway.runtime.store, run_of(frames))
    holder = boss if top == "plain" else run_of(frames)
    ledger, _ = await ledger_of(gateway.runtime.store, holder)
    assert ledger.spent_by(boss).tokens == 20_000
    assert all(entry.reserved == Amount() for entry in ledger.entries.values())
    if top == "plain":
        assert (await ledger_of(gateway.runtime.store, run_of(frames)))[1] == []


async def test_a_summary_is_paid_from_the_budget(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(anthropic_text("a0", input_tokens=10, output_tokens=5))
    first = await gateway.run("talker", "u0")
    vendor.script(anthropic_text("a1", input_tokens=600, output_tokens=5))
    session = first[0].data["text"]
    reply = await gateway.http.post(f"/v1/sessions/{session}/messages", json={"prompt": "u1"})
    run_id = run_of(sse_frames(reply.text))
    refused = await gateway.http.post(f"/v1/runs/{run_id}/compact")
    assert refused.status_code == 409
    assert refused.json()["code"] == "budget_exceeded"
    assert len(vendor.requests) == 2


# --- structured output --------------------------------------------------------------------


async def test_an_answer_that_fits_the_schema_is_taken(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(anthropic_text('{"name": "Ann"}'))
    assert (await gateway.run("strict"))[-1].event == "done"
    assert len(vendor.requests) == 1


async def test_a_wrong_answer_is_repaired_once(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(anthropic_text('```json\n{"name": "Ann"}\n```'), anthropic_text('{"name":"Ann"}'))
    frames = await gateway.run("strict")
    assert frames[-1].event == "done"
    assert [f.event for f in frames].count("usage") == 2
    last = vendor.last.json["messages"][-1]
    assert last["role"] == "user"
    assert "a code fence is not JSON" in str(last)


async def test_a_second_wrong_answer_fails_the_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(anthropic_text("hello"), anthropic_text('{"name": 1}'))
    frames = await gateway.run("strict")
    status = await outcome(gateway, frames)
    assert (status["status"], status["stop_reason"]) == ("failed", "output_invalid")
    assert status["error"] == "output_schema: /name: 1 is not of type 'string'"
    assert len(vendor.requests) == 2


async def test_the_answer_of_the_last_permitted_turn_may_be_repaired(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(time_call(), anthropic_text("not json"), anthropic_text('{"name":"Ann"}'))
    frames = await gateway.run("hurried")
    assert (frames[-1].event, frames[-1].data["stop_reason"]) == ("done", "end_turn")
    assert len(vendor.requests) == 3


async def test_a_structured_run_without_an_answer_at_its_last_turn_has_failed_for_its_parent_too(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    spawn = anthropic_tool_call("Agent", {"name": "hurried", "prompt": "go"})
    vendor.script(spawn, time_call(), time_call(), anthropic_text("No luck."))
    frames = await gateway.run("plain")
    (result,) = (f.data for f in frames if f.event == "tool_result")
    assert result["is_error"] is True
    assert "output_schema: no final answer within the permitted iterations" in result["text"]
