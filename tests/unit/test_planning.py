"""What an agent's configuration and a request make of a run's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from events.plan import Budget, Compaction, Interruption, Pair, Routing, RunPlan
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.loading import load
from loomcycle.config.schema import UserTierConfig
from loomcycle.planning import Narrowing, Planner, merge_compaction, routing_of
from loomcycle.providers.registry import build_providers

MOCK = Pair("mock", "mock-generic")
PLAIN = Narrowing()


def loaded(tmp_path: Path, agent: str, more: str = "") -> LoadedConfig:
    file = tmp_path / "loomcycle.yaml"
    file.write_text(f"agents:\n  a: {{provider: mock, model: m{agent and ', '}{agent}}}\n{more}")
    return load([file], {}, tmp_path)


def planned(
    tmp_path: Path, agent: str = "", more: str = "", narrowing: Narrowing = PLAIN
) -> RunPlan:
    config = loaded(tmp_path, agent, more)
    providers = build_providers({"LOOMCYCLE_MOCK_ENABLED": "1"})
    planner = Planner(config, providers, {}, read_body=str)
    return planner.plan(config.config.agents["a"], narrowing, MOCK, Routing())


def test_an_agent_without_settings_has_the_defaults(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert (plan.compaction, plan.budget, plan.interruption) == (
        Compaction(), None, Interruption(),
    )  # fmt: skip
    assert (plan.output_schema, plan.require_approval, plan.approval_timeout_ms) == (UNSET, (), 0)
    assert (plan.max_concurrent_children, plan.max_iterations) == (4, 16)
    assert plan.extra == {}


def test_a_request_overrides_compaction_field_by_field(tmp_path: Path) -> None:
    own = "compaction: {enabled: true, keep_last_n: 6, keep_first: false}"
    over = Compaction(keep_last_n=0, enabled=False, model="small")
    plan = planned(tmp_path, own, narrowing=Narrowing(compaction=over))
    assert plan.compaction == Compaction(
        enabled=False, keep_last_n=0, keep_first=False, model="small"
    )
    assert planned(tmp_path, own).compaction == Compaction(
        enabled=True, keep_last_n=6, keep_first=False
    )


@pytest.mark.parametrize(
    ("inherited", "of", "model"),
    [
        (Compaction(model="above"), "mock", "above"),
        (Compaction(model="above"), "openai", "own"),
        (Compaction(model=""), "", ""),
        (Compaction(keep_last_n=1), "", "own"),
        (None, "", "own"),
    ],
)
def test_a_parent_s_model_for_summaries_counts_where_its_provider_serves(
    tmp_path: Path, inherited: Compaction | None, of: str, model: str
) -> None:
    narrowing = Narrowing(inherited=inherited, inherited_from=of)
    plan = planned(tmp_path, "compaction: {model: own, keep_last_n: 6}", narrowing=narrowing)
    assert plan.compaction.model == model


def test_what_a_spawn_sets_wins_over_its_parent_and_that_over_the_agent(tmp_path: Path) -> None:
    narrowing = Narrowing(
        compaction=Compaction(model="spawned"),
        inherited=Compaction(model="above", keep_last_n=1, enabled=True),
        inherited_from="openai",
    )
    own = "compaction: {model: own, keep_last_n: 6, autocompact_at_pct: 60}"
    assert planned(tmp_path, own, narrowing=narrowing).compaction == Compaction(
        model="spawned", keep_last_n=1, enabled=True, autocompact_at_pct=60
    )


def test_nothing_given_changes_nothing() -> None:
    own = Compaction(keep_last_n=2)
    assert merge_compaction(own, None) == merge_compaction(own, Compaction()) == own


@pytest.mark.parametrize(
    ("agent", "request_limits", "budget"),
    [
        ("", {}, None),
        ("max_cost_usd: 0.29", {}, Budget(cost_micros=290_000)),
        ("", {"max_tokens_total": 10}, Budget(tokens=10)),
        ("max_cost_usd: 1", {"max_cost_usd": 0.5}, Budget(cost_micros=500_000)),
        ("max_cost_usd: 1", {"max_cost_usd": 5.0}, Budget(cost_micros=1_000_000)),
        ("max_tokens_total: 7", {"max_cost_usd": 0.0}, Budget(cost_micros=0, tokens=7)),
        ("", {"max_cost_usd": 1e300, "max_tokens_total": 2**80},
         Budget(cost_micros=2**53, tokens=2**53)),
    ],
)  # fmt: skip
def test_the_smaller_budget_wins(
    tmp_path: Path, agent: str, request_limits: dict[str, Any], budget: Budget | None
) -> None:
    plan = planned(tmp_path, agent, narrowing=Narrowing(**request_limits))
    assert plan.budget == budget


@pytest.mark.parametrize(
    ("own", "operator", "pending"), [(0, 0, 0), (3, 0, 3), (0, 2, 2), (3, 2, 2), (1, 2, 1)]
)
def test_questions_are_bounded_by_agent_and_operator(
    tmp_path: Path, own: int, operator: int, pending: int
) -> None:
    more = (
        f"interruption: {{backend: cli, max_pending_per_run: {operator}, default_timeout_ms: 5,"
        " max_timeout_ms: 9}\n"
    )
    agent = f"interruption: {{enabled: true, kinds: [question], max_pending: {own}}}"
    assert planned(tmp_path, agent, more).interruption == Interruption(
        enabled=True,
        kinds=("question",),
        max_pending=pending,
        default_timeout_ms=5,
        max_timeout_ms=9,
        backend="cli",
    )


def test_an_agent_that_may_not_ask_knows_nothing_of_how(tmp_path: Path) -> None:
    more = "interruption: {backend: cli, default_timeout_ms: 5}\n"
    assert planned(tmp_path, "interruption: {max_pending: 3}", more).interruption == Interruption()


def test_approval_waits_as_long_as_the_operator_says(tmp_path: Path) -> None:
    more = "interruption: {default_timeout_ms: 60000}\n"
    plan = planned(tmp_path, "require_approval: [Bash, 'mcp__*']", more)
    assert (plan.require_approval, plan.approval_timeout_ms) == (("Bash", "mcp__*"), 60_000)
    assert planned(tmp_path, "", more).approval_timeout_ms == 0


def test_a_schema_stands_in_the_plan_as_json(tmp_path: Path) -> None:
    plan = planned(tmp_path, "output_schema: {type: object, required: [n]}")
    assert isinstance(plan.output_schema, Raw)
    assert msgspec.json.decode(plan.output_schema) == {"type": "object", "required": ["n"]}


def test_gates_of_single_tools_stand_beside(tmp_path: Path) -> None:
    agent = "sql_scopes: [run], history_scope: self, volume_def_scopes: [any]"
    plan = planned(tmp_path, agent)
    assert {name: bytes(raw) for name, raw in plan.extra.items()} == {
        "sql_scopes": b'["run"]',
        "history_scope": b'"self"',
        "volume_def_scopes": b'["any"]',
    }


def test_children_at_a_time(tmp_path: Path) -> None:
    assert planned(tmp_path, "max_concurrent_children: 32").max_concurrent_children == 32


# --- routing


TIER = UserTierConfig(
    fallback_on_error=True, max_fallback_attempts=2, retry_attempts=3, rate_limit_cooldown_ms=5000
)


def routed(
    tmp_path: Path, agent: str = "", tier: UserTierConfig | None = TIER, *, explicit: bool = True
) -> Routing:
    config = loaded(tmp_path, agent).config.agents["a"]
    return routing_of(config, "gold", tier, (MOCK,), explicit_tier=explicit, pin_after_success=True)


def test_the_user_tier_says_how_a_run_may_leave_its_provider(tmp_path: Path) -> None:
    assert routed(tmp_path) == Routing(
        candidates=(MOCK,),
        pinned=True,
        user_tier="gold",
        retry_attempts=3,
        fallback=True,
        max_switches=2,
        pin_after_success=True,
        cooldown_ms=5000,
    )


def test_without_user_tiers_a_run_stays_where_it_is(tmp_path: Path) -> None:
    assert routed(tmp_path, tier=None) == Routing(candidates=(MOCK,))


@pytest.mark.parametrize(("agent", "retries"), [(0, 0), (2, 2), (9, 5)])
def test_the_agents_number_of_retries_wins_and_is_capped(
    tmp_path: Path, agent: int, retries: int
) -> None:
    assert routed(tmp_path, f"retry_attempts: {agent}").retry_attempts == retries


def test_the_cooldown_of_a_tier_counts_for_those_who_name_it(tmp_path: Path) -> None:
    assert routed(tmp_path, explicit=False).cooldown_ms == 30_000
