"""Context, Skill and Evaluation through HTTP: what programs and models learn and leave behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.proofs import prove_everything
from tests.wire.gateway import GatewayUnderTest, SseFrame, serving
from tests.wire.vendors import (
    FakeVendor,
    anthropic_text,
    anthropic_tool_call,
    environment,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
channels:
  news: {scope: user}
agents:
  thinker: {provider: anthropic, model: m-1, compaction: {keep_last_n: 0}}
  caller: &caller
    provider: code-js
    allowed_tools: [Skill, Evaluation]
    evaluation_scopes: [submit_self, submit_descendants, read_any]
    history_scope: self
    code: |
      function run(input) {
        const calls = JSON.parse(input.prompt);
        const found = [];
        for (const [tool, request] of calls) {
          const given = JSON.parse(JSON.stringify(request).replace("$RUN", seen("run_id"))
            .replace("$EVAL", found.length ? found[found.length - 1].eval_id : ""));
          try { found.push(parsed(tools[tool](given))); }
          catch (e) { found.push("refused: " + e.message); }
        }
        return JSON.stringify(found);
      }
      const tools = {Context, Skill, Evaluation};
      function seen(key) { return JSON.parse(Context({op: "self"}))[key]; }
      function parsed(text) { try { return JSON.parse(text); } catch (e) { return text; } }
  nosy:
    <<: *caller
    history_scope: any
  parent:
    provider: code-js
    allowed_tools: [Agent, Evaluation]
    evaluation_scopes: [submit_descendants]
    code: |
      function run(input) {
        const child = JSON.parse(Agent.spawn({name: "telltale", prompt: "go"}).split("\\n")[1]);
        return Evaluation({op: "submit", run_id: child.run_id, score: 7});
      }
  telltale:
    provider: code-js
    allowed_tools: [Context]
    code: |
      function run(input) { return Context({op: "self"}); }
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("evaluations")
    for name, needs in (("greet", "[]"), ("dig", "[Grep]")):
        (directory / "skills" / name).mkdir(parents=True)
        text = f"---\nname: {name}\nallowed-tools: {needs}\n---\nBe kind when you {name}.\n"
        (directory / "skills" / name / "SKILL.md").write_text(text)
    variables = environment(
        vendor,
        LOOMCYCLE_CODE_AGENTS_ENABLED="1",
        LOOMCYCLE_SKILLS_ROOT=str(directory / "skills"),
    )
    async with serving(directory, CONFIG, variables) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


def said(frames: list[SseFrame]) -> str:
    return "".join(f.data["text"] for f in frames if f.event == "text")


async def call(
    gateway: GatewayUnderTest, *calls: tuple[str, dict[str, Any]], agent: str = "caller"
) -> list[Any]:
    """What a program was told, call by call."""
    found: list[Any] = json.loads(said(await gateway.run(agent, json.dumps(calls))))
    return found


async def test_a_run_judges_itself_and_reads_it_back(gateway: GatewayUnderTest) -> None:
    submitted, shown, listed = await call(
        gateway,
        ("Evaluation", {"op": "submit", "run_id": "$RUN", "score": 0.5, "judgement": {"a": 1}}),
        ("Evaluation", {"op": "get", "eval_id": "$EVAL"}),
        ("Evaluation", {"op": "list_for_run", "run_id": "$RUN"}),
    )
    assert submitted["emitter_role"] == "self"
    assert shown["judgement"] == {"a": 1}
    assert listed["evaluations"] == [shown]


async def test_a_parent_judges_the_run_of_its_child(gateway: GatewayUnderTest) -> None:
    told = json.loads(said(await gateway.run("parent", "go")))
    assert (told["emitter_role"], told["score"], told["def_id"]) == ("parent", 7, "")
    (listed,) = await call(
        gateway, ("Evaluation", {"op": "list_for_run", "run_id": told["run_id"]})
    )
    assert [row["eval_id"] for row in listed["evaluations"]] == [told["eval_id"]]


async def test_a_run_of_somebody_else_needs_submit_any(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run("telltale", "go")
    other = json.loads(said(frames))["run_id"]
    (refused,) = await call(gateway, ("Evaluation", {"op": "submit", "run_id": other, "score": 1}))
    assert "role unrelated needs submit_any" in refused


async def test_skills_are_read_by_name_if_their_tools_are_there(
    gateway: GatewayUnderTest,
) -> None:
    found = await call(
        gateway, ("Skill", {"name": "greet"}), ("Skill", {"name": "dig"}), ("Skill", {"name": "x"})
    )
    assert found == [
        "Be kind when you greet.\n",
        'refused: skill "dig" needs tools that this run does not have: Grep',
        'refused: unknown skill "x" (available: dig, greet)',
    ]


async def test_context_tells_of_agents_channels_and_topics(gateway: GatewayUnderTest) -> None:
    agents, channels, index, lineage = await call(
        gateway,
        ("Context", {"op": "agents", "prefix": "th"}),
        ("Context", {"op": "channels"}),
        ("Context", {"op": "help"}),
        ("Context", {"op": "lineage", "def_id": "def_1"}),
    )
    assert agents == {
        "agents": [
            {"name": "thinker", "provider": "anthropic", "model": "m-1", "allowed_tools_count": 1}
        ],
        "count": 1,
    }
    assert [channel["name"] for channel in channels["channels"]] == ["news"]
    assert index["count"] > 5
    assert lineage.startswith('refused: lineage: def_id "def_1" not found')


async def test_history_shows_the_whole_session_so_far(gateway: GatewayUnderTest) -> None:
    first = await gateway.run("caller", json.dumps([("Context", {"op": "time"})]))
    session = first[1].data["session_id"]
    prompt = json.dumps(
        [
            ("Context", {"op": "history"}),
            ("Context", {"op": "history", "event_types": ["user_input", "done"], "limit": 2}),
            ("Context", {"op": "history", "since_ts": "2999-01-01T00:00:00Z"}),
            ("Context", {"op": "history", "since_ts": "yesterday"}),
            ("Context", {"op": "history", "agent_id": "a_of_somebody"}),
        ]
    )
    response = await gateway.http.post(f"/v1/sessions/{session}/messages", json={"prompt": prompt})
    assert response.status_code == 200, response.text
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()["events"]
    text = "".join(e["event"]["text"] for e in transcript if e["type"] == "text")
    whole, some, none, *refused = json.loads(text[text.index("[", 1) :])
    assert whole["session_id"] == session
    assert [e["seq"] for e in whole["events"]] == [e["seq"] for e in transcript[: whole["count"]]]
    assert whole["events"][0]["type"] == "user_input"
    assert whole["events"][0]["payload"][0]["role"] == "user"
    assert "payload" not in next(e for e in whole["events"] if e["type"] == "started")
    assert [e["type"] for e in some["events"]] == ["user_input", "done"]
    assert (some["count"], some["truncated"]) == (2, True)
    assert (none["events"], none["truncated"]) == ([], False)
    assert refused[0].startswith('refused: history: since_ts: "yesterday" is not an RFC 3339 time')
    assert refused[1].startswith("refused: history: access denied: history_scope self")


async def test_history_of_others_needs_the_scope_any(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run("telltale", "go")
    other = json.loads(said(frames))["agent_id"]
    ask = ("Context", {"op": "history", "agent_id": other, "event_types": ["text"]})
    shown, unknown = await call(
        gateway, ask, ("Context", {"op": "history", "agent_id": "a_none"}), agent="nosy"
    )
    assert shown["agent_id"] == other
    assert [event["type"] for event in shown["events"]] == ["text"]
    assert unknown == 'refused: history: agent_id "a_none" not found'


async def test_a_model_has_its_conversation_compacted(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(
        anthropic_tool_call("Context", {"op": "compact"}),
        anthropic_text("it was short"),
        anthropic_text("done"),
    )
    frames = await gateway.run("thinker", "do it")
    (result,) = [f.data for f in frames if f.event == "tool_result"]
    assert json.loads(result["text"]) == {"compaction": "scheduled", "applies_at": "the next step"}
    (made,) = [f.data["context_compaction"] for f in frames if f.event == "context_compaction"]
    assert (made["trigger"], made["summary"]) == ("self", "it was short")
    assert said(frames) == "done"
