"""The Evaluation tool as an agent sees it (tools.md section 3.14), over the log in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw

from events.log import EventStore
from events.memory_store import MemoryServer
from events.plan import RunPlan
from loomcycle.evaluations.store import Evaluations
from loomcycle.loading import Plans
from loomcycle.tools.base import CallContext, Repeat
from loomcycle.tools.context import Context, judgements
from loomcycle.tools.evaluation import Evaluation
from projections.views import Views, ViewSettings
from tests.integration.journals import Journal, opening

NOW = 1_777_629_600_123_456_789
CREATED = "2026-05-01T10:00:00.123456789Z"
RUN = "r_00000000000000a1"
OWN = "a_00000000000000a1"
STATS = {"mean", "median", "min", "max", "latest", "count"}


class Agent:
    """Calls the tool as the agent of ``RUN`` unless told otherwise; each call is an effect."""

    def __init__(self, store: EventStore, views: Views) -> None:
        self.store = store
        self.evaluations = Evaluations(store, views, Plans(store))
        self.tool = Evaluation(self.evaluations, max_judgement_bytes=100, max_rationale_bytes=50)
        self.scopes: list[str] = ["submit_any", "read_any"]
        self.agent_id, self.tenant = OWN, "t"
        self.now = NOW
        self.calls = 0

    def context(self) -> CallContext:
        self.calls += 1
        scopes = {"evaluation_scopes": Raw(msgspec.json.encode(self.scopes))}
        return CallContext(
            run_id=RUN,
            session_id="s_1",
            agent_id=self.agent_id,
            tenant=self.tenant,
            user_id="ada",
            user_tier="",
            effect_id=f"{RUN}.{self.calls}",
            plan=RunPlan(
                agent="judge", provider="p", model="m", extra=scopes if self.scopes else {}
            ),
            started_ns=NOW,
            now_ns=self.now,
        )

    async def ok(self, op: str, **fields: Any) -> Any:
        output = await self.tool.call(json.dumps({"op": op, **fields}).encode(), self.context())
        assert not output.is_error, output.text
        return json.loads(output.text)

    async def fails(self, op: str | None, **fields: Any) -> str:
        call = json.dumps({"op": op, **fields}).encode()
        output = await self.tool.call(call, self.context())
        assert output.is_error, output.text
        return output.text

    async def begin(self, run: str = RUN, def_id: str = "", **fields: Any) -> None:
        """A run that can be judged."""
        plan = RunPlan(agent="writer", provider="mock", model="m", agent_def_id=def_id)
        name = await Plans(self.store).put(plan)
        events = opening(run, tenant=self.tenant, plan=name, **fields)
        await Journal(run, self.tenant).append(self.store.log, self.store.subjects, *events)


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    server = MemoryServer()

    async def factory() -> EventStore:
        return server.connect("views")

    views = await Views.open(ViewSettings(path=str(tmp_path)), factory, own_thread=False)
    await views.ready()
    yield Agent(server.connect("a"), views)
    await views.close()


# --- submit ---------------------------------------------------------------------------------


async def test_a_submission_is_answered_with_its_id_and_role(agent: Agent) -> None:
    await agent.begin(def_id="def_1")
    told = await agent.ok("submit", run_id=RUN, score=0)
    assert told.pop("eval_id").startswith("eval_")
    assert told == {
        "run_id": RUN,
        "def_id": "def_1",
        "emitter_role": "self",
        "score": 0,
        "created_at": CREATED,
    }


@pytest.mark.parametrize(
    ("agent_id", "role", "scope"),
    [
        (OWN, "self", "submit_self"),
        ("a_parent", "parent", "submit_descendants"),
        ("a_other", "unrelated", "submit_any"),
        ("", "external", "submit_any"),
    ],
)
async def test_each_role_needs_its_scope(
    agent: Agent, agent_id: str, role: str, scope: str
) -> None:
    await agent.begin(parent_agent_id="a_parent")
    agent.agent_id = agent_id
    every = ["submit_self", "submit_siblings", "submit_descendants", "submit_any", "read_any"]
    for scopes in ([], [s for s in every if s not in (scope, "submit_any")]):
        agent.scopes = scopes
        text = await agent.fails("submit", run_id=RUN, score=1)
        assert text.startswith(f"submit: evaluation access denied: role {role} needs ")
        assert scope in text
    for scopes in ([scope], ["submit_any"]):
        agent.scopes = scopes
        assert (await agent.ok("submit", run_id=RUN, score=1))["emitter_role"] == role


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"score": 1}, "submit: missing required field: run_id"),
        ({"run_id": RUN}, "submit: missing required field: score"),
        ({"run_id": "r_0", "score": 1}, 'submit: run_id "r_0" not found'),
        (
            {"run_id": RUN, "score": 1, "judgement": "x" * 99},
            "submit: judgement of 101 bytes exceeds max 100",
        ),
        (
            {"run_id": RUN, "score": 1, "rationale": "é" * 26},
            "submit: rationale of 52 bytes exceeds max 50",
        ),
        ({"run_id": RUN, "score": 1e300}, "submit: score: 1e+300 exceeds max 1e+200"),
        (
            {"run_id": RUN, "score": 1, "dimensions": {"a": -1e300}},
            "submit: a: -1e+300 exceeds max 1e+200",
        ),
    ],
)
async def test_a_refused_submission_says_why(
    agent: Agent, fields: dict[str, Any], text: str
) -> None:
    await agent.begin()
    assert await agent.fails("submit", **fields) == text


async def test_a_run_of_another_tenant_is_not_found(agent: Agent) -> None:
    await agent.begin()
    agent.tenant = "other"
    assert "not found" in await agent.fails("submit", run_id=RUN, score=1)


async def test_the_same_call_after_a_crash_is_the_same_evaluation(agent: Agent) -> None:
    await agent.begin()
    call = json.dumps({"op": "submit", "run_id": RUN, "score": 3}).encode()
    before = agent.context()
    first = await agent.tool.call(call, before)
    changed = {"now_ns": NOW + 9, "recovering_since": NOW}
    again = await agent.tool.call(call, msgspec.structs.replace(before, **changed))
    assert again == first
    assert len((await agent.ok("list_for_run", run_id=RUN))["evaluations"]) == 1
    assert agent.tool.repeat is Repeat.OWN_STORE


# --- reading --------------------------------------------------------------------------------


async def test_an_evaluation_is_shown_with_all_its_keys(agent: Agent) -> None:
    await agent.begin(def_id="def_1")
    plain = await agent.ok("submit", run_id=RUN, score=1)
    full = await agent.ok(
        "submit",
        run_id=RUN,
        score=-2.5,
        dimensions={"tone": 1},
        judgement={"why": [1, None]},
        rationale="because",
    )
    assert await agent.ok("get", eval_id=plain["eval_id"]) == {
        "eval_id": plain["eval_id"],
        "run_id": RUN,
        "def_id": "def_1",
        "score": 1,
        "dimensions": None,
        "judgement": None,
        "rationale": "",
        "emitter_role": "self",
        "emitter_agent_id": OWN,
        "emitter_run_id": "",
        "created_at": CREATED,
    }
    shown = await agent.ok("get", eval_id=full["eval_id"])
    assert (shown["score"], shown["dimensions"]) == (-2.5, {"tone": 1})
    assert (shown["judgement"], shown["rationale"]) == ({"why": [1, None]}, "because")


async def test_a_null_judgement_is_none(agent: Agent) -> None:
    await agent.begin()
    told = await agent.ok("submit", run_id=RUN, score=1, judgement=None, dimensions=None)
    shown = await agent.ok("get", eval_id=told["eval_id"])
    assert (shown["judgement"], shown["dimensions"]) == (None, None)


async def test_lists_are_newest_first(agent: Agent) -> None:
    await agent.begin(def_id="def_1")
    for score in (1, 2, 3):
        agent.now += 1
        await agent.ok("submit", run_id=RUN, score=score)
    of_run = await agent.ok("list_for_run", run_id=RUN)
    assert of_run["run_id"] == RUN
    assert [row["score"] for row in of_run["evaluations"]] == [3, 2, 1]
    of_def = await agent.ok("list_for_def", def_id="def_1", limit=2)
    assert of_def["def_id"] == "def_1"
    assert [row["score"] for row in of_def["evaluations"]] == [3, 2]
    assert await agent.ok("list_for_run", run_id="r_0") == {"run_id": "r_0", "evaluations": []}


async def test_a_hundred_are_listed_unless_more_are_asked_for(agent: Agent) -> None:
    await agent.begin()
    for score in range(101):
        await agent.ok("submit", run_id=RUN, score=score)
    for limit, shown in ((None, 100), (0, 100), (-1, 100), (5000, 101)):
        found = await agent.ok("list_for_run", run_id=RUN, limit=limit)
        assert len(found["evaluations"]) == shown


async def test_an_aggregate_sums_up_a_definition(agent: Agent) -> None:
    await agent.begin(def_id="def_1", parent_agent_id="a_parent")
    for score, tone in ((1, 1), (4, 3)):
        agent.now += 1
        await agent.ok("submit", run_id=RUN, score=score, dimensions={"tone": tone})
    agent.agent_id = "a_parent"
    agent.now -= 9
    await agent.ok("submit", run_id=RUN, score=10)
    found = await agent.ok("aggregate", def_id="def_1")
    assert found == {
        "def_id": "def_1",
        "count": 3,
        "score": {"mean": 5, "median": 4, "min": 1, "max": 10, "latest": 4, "count": 3},
        "dimensions": {
            "tone": {"mean": 2, "median": 2, "min": 1, "max": 3, "latest": 3, "count": 2}
        },
        "by_emitter_role": {
            "parent": {"mean": 10, "median": 10, "min": 10, "max": 10, "latest": 10, "count": 1},
            "self": {"mean": 2.5, "median": 2.5, "min": 1, "max": 4, "latest": 4, "count": 2},
        },
        "lineage_included": False,
    }
    told = Context(operations=judgements.operations(agent.evaluations))
    call = b'{"op":"evaluations","def_id":"def_1","include_lineage":true}'
    same = json.loads((await told.call(call, agent.context())).text)
    assert same == found | {"lineage_included": True}


async def test_context_needs_a_definition_for_its_evaluations(agent: Agent) -> None:
    told = Context(operations=judgements.operations(agent.evaluations))
    output = await told.call(b'{"op":"evaluations"}', agent.context())
    assert (output.text, output.is_error) == (
        "evaluations: missing required field: def_id",
        True,
    )


async def test_an_aggregate_of_nothing_has_no_groups(agent: Agent) -> None:
    assert await agent.ok("aggregate", def_id="def_9", include_lineage=True) == {
        "def_id": "def_9",
        "count": 0,
        "score": dict.fromkeys(STATS, 0),
        "lineage_included": True,
    }


@pytest.mark.parametrize(
    ("op", "field"),
    [
        ("get", "eval_id"),
        ("list_for_run", "run_id"),
        ("list_for_def", "def_id"),
        ("aggregate", "def_id"),
    ],
)
async def test_reading_needs_leave_first_and_then_its_field(
    agent: Agent, op: str, field: str
) -> None:
    assert await agent.fails(op) == f"{op}: missing required field: {field}"
    agent.scopes = ["submit_any"]
    text = f"{op}: evaluation access denied: evaluation_scopes has no read_any"
    assert await agent.fails(op) == text
    assert await agent.fails(op, **{field: "x"}) == text


async def test_what_another_tenant_submitted_is_not_there(agent: Agent) -> None:
    await agent.begin(def_id="def_1")
    told = await agent.ok("submit", run_id=RUN, score=1)
    agent.tenant = "other"
    assert "not found" in await agent.fails("get", eval_id=told["eval_id"])
    assert (await agent.ok("list_for_run", run_id=RUN))["evaluations"] == []
    assert (await agent.ok("aggregate", def_id="def_1"))["count"] == 0


# --- the call itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"{}", "missing required field: op"),
        (
            b'{"op":"grade"}',
            'unknown op "grade" (must be one of: submit, get, list_for_run, list_for_def, '
            "aggregate)",
        ),
        (b"{", "invalid input JSON: "),
        (b'{"op":"submit","score":"1"}', "invalid input JSON: "),
        (b'{"op":"submit","dimensions":{"a":"b"}}', "invalid input JSON: "),
        (b'{"op":"\xff"}', "invalid input JSON: "),
    ],
)
async def test_a_refused_call_says_why(agent: Agent, raw: bytes, text: str) -> None:
    output = await agent.tool.call(raw, agent.context())
    assert output.is_error
    assert output.text.startswith(text)


async def test_an_input_that_is_too_large_is_not_even_read(agent: Agent) -> None:
    output = await agent.tool.call(b"{" * (100 + 50 + 4096 + 1), agent.context())
    assert output.text == "input of 4247 bytes exceeds max 4246"


async def test_without_caps_any_size_is_taken(agent: Agent) -> None:
    await agent.begin()
    agent.tool = Evaluation(agent.evaluations, max_judgement_bytes=0, max_rationale_bytes=10)
    big = "x" * 9000
    await agent.ok("submit", run_id=RUN, score=1, judgement=big)
    text = await agent.fails("submit", run_id=RUN, score=1, rationale=big)
    assert text == "submit: rationale of 9000 bytes exceeds max 10"


async def test_a_server_without_a_store_says_so() -> None:
    output = await Evaluation(None).call(b"{}", None)  # type: ignore[arg-type]
    assert (output.text, output.is_error) == (
        "evaluation store not configured on this server",
        True,
    )
