"""Sub-agents, as a client sees them: what a spawn gives back, inherits, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from events.vocabulary import ChildFinished, ChildStarted, RunStarted
from loomcycle.loading import read_commits
from replay.children import child_ids
from tests.e2e.proofs import prove_everything
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, open_stream, serving, until
from tests.wire.journals import runs_in
from tests.wire.vendors import (
    FakeVendor,
    Hold,
    Reply,
    anthropic_events,
    anthropic_text,
    anthropic_tool_call,
    environment,
    openai_text,
    sse,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 2}
runtime: {reader_grace_ms: 50}
user_tiers:
  default: {}
  gold: {}
agents:
  boss: {provider: anthropic, model: m-1, allowed_tools: [Agent, Context, Memory]}
  helper: {provider: openai, model: m-2, system_prompt: Help., allowed_tools: [Context]}
  keyless: {provider: gemini, model: m-3}
  echo:
    provider: code-js
    code: |
      function run(input) { return "echo " + input.prompt; }
  silent:
    provider: code-js
    code: |
      function run(input) {}
  broken:
    provider: code-js
    code: |
      function run(input) { throw new Error("no luck with " + input.prompt); }
  caller:
    provider: code-js
    allowed_tools: [Agent]
    code: |
      function run(input) {
        try { return Agent.spawn(JSON.parse(input.prompt)); }
        catch (e) { return "refused: " + e.message; }
      }
  tree:
    provider: code-js
    allowed_tools: [Agent]
    max_concurrent_children: 3
    code: |
      function run(input) {
        const left = Number(input.prompt);
        if (!left) return "leaf";
        const spawns = [];
        for (let i = 0; i < 4; i++) spawns.push({name: "tree", prompt: String(left - 1)});
        const found = Agent.spawn({op: "parallel_spawn", spawns: spawns}).results;
        const texts = found.map(x => x.ok ? x.output.split("\\n")[1] : x.error);
        return "(" + texts.join(" ") + ")";
      }
  nested:
    provider: code-js
    allowed_tools: [Agent]
    code: |
      function run(input) {
        try {
          const text = Agent.spawn({name: "nested", prompt: input.prompt});
          return text.slice(text.indexOf("\\n") + 1);
        } catch (e) { return e.message; }
      }
  self:
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
    variables = {**environment(vendor), "LOOMCYCLE_CODE_AGENTS_ENABLED": "1"}
    del variables["GEMINI_API_KEY"]
    async with serving(tmp_path_factory.mktemp("children"), CONFIG, variables) as gateway:
        yield gateway


def said(frames: list[SseFrame]) -> str:
    return "".join(f.data["text"] for f in frames if f.event == "text")


async def call(gateway: GatewayUnderTest, request: Json, agent: str = "caller") -> str:
    """What an Agent call gave back to a program."""
    return said(await gateway.run(agent, json.dumps(request)))


async def test_a_spawn_gives_back_the_final_text_of_the_child(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run("caller", json.dumps({"name": "echo", "prompt": "hi"}))
    assert [f.event for f in frames[2:]] == [
        "started", "tool_call", "usage", "tool_result", "text", "usage", "done",
    ]  # fmt: skip
    header, text = said(frames).split("\n")
    assert text == "echo hi"
    agent_id = header.removeprefix("[sub-agent agent_id=").removesuffix("]")
    child = await gateway.status(agent_id)
    assert (child["status"], child["agent"]) == ("completed", "echo")
    assert child["parent_agent_id"] == frames[1].data["agent_id"]


async def test_a_child_without_an_answer_leaves_the_header(gateway: GatewayUnderTest) -> None:
    text = await call(gateway, {"op": "spawn", "name": "silent", "prompt": "x"})
    assert text.startswith("[sub-agent agent_id=a_")
    assert text.endswith("]\n")


async def test_a_failed_child_is_an_error_that_names_it(gateway: GatewayUnderTest) -> None:
    text = await call(gateway, {"name": "broken", "prompt": "it"})
    assert text.startswith('refused: sub-agent "broken" failed (agent=a_')
    assert " session=s_" in text
    assert " run=r_" in text
    assert "no luck with it" in text


async def test_results_of_parallel_children_stand_in_the_order_of_the_call(
    gateway: GatewayUnderTest,
) -> None:
    names = ["echo", "broken", "ghost", "silent", "keyless", "echo"]
    spawns = [{"name": name, "prompt": str(i)} for i, name in enumerate(names)]
    spawns[5]["def_id"] = "def_1"
    rows = json.loads(await call(gateway, {"op": "parallel_spawn", "spawns": spawns}))["results"]
    assert [(r["index"], r["agent"], r["ok"]) for r in rows] == [
        (0, "echo", True), (1, "broken", False), (2, "ghost", False),
        (3, "silent", True), (4, "keyless", False), (5, "echo", False),
    ]  # fmt: skip
    assert rows[0]["output"].split("\n")[1] == "echo 0"
    assert "error" not in rows[0]
    assert "output" not in rows[1]
    assert "no luck with 1" in rows[1]["error"]
    assert rows[2]["error"] == 'unknown sub-agent "ghost"'
    assert "gemini" in rows[4]["error"].lower()
    assert "def_1" in rows[5]["error"]


ENTRY = {"name": "echo", "prompt": "x"}
REFUSED: list[tuple[str, Json, str]] = [
    ("no name", {"prompt": "x"}, "missing required field: name"),
    ("blank name", {"name": " ", "prompt": "x"}, "missing required field: name"),
    ("no prompt", {"name": "echo"}, "missing required field: prompt"),
    ("unknown op", {**ENTRY, "op": "open"}, 'unknown op "open"'),
    ("spawn with spawns", {**ENTRY, "spawns": [ENTRY]}, "spawns"),
    ("no spawns", {"op": "parallel_spawn"}, "spawns"),
    ("empty spawns", {"op": "parallel_spawn", "spawns": []}, "spawns"),
    ("33 spawns", {"op": "parallel_spawn", "spawns": [ENTRY] * 33}, "33"),
    ("name beside", {"op": "parallel_spawn", "name": "echo", "spawns": [ENTRY]}, "name"),
    ("prompt beside", {"op": "parallel_spawn", "prompt": "x", "spawns": [ENTRY]}, "prompt"),
    ("def_id beside", {"op": "parallel_spawn", "def_id": "d", "spawns": [ENTRY]}, "def_id"),
    (
        "one bad entry",
        {"op": "parallel_spawn", "spawns": [ENTRY, {"name": "echo", "prompt": ""}]},
        "spawns[1]",
    ),
    ("compaction", {**ENTRY, "compaction": {"target_percentage": 99}}, "target_percentage"),
    ("types", {"name": 1, "prompt": "x"}, "invalid input JSON: "),
    ("unknown agent", {"name": "ghost", "prompt": "x"}, 'unknown sub-agent "ghost"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
async def test_what_is_wrong_with_a_call_is_its_result_and_nothing_starts(
    gateway: GatewayUnderTest, request_: Json, text: str
) -> None:
    before = len(await runs_in(gateway.runtime.store))
    answer = await call(gateway, request_)
    assert answer.startswith("refused: ")
    assert text in answer
    assert len(await runs_in(gateway.runtime.store)) == before + 1


async def test_a_fan_out_of_three_levels_with_two_slots(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run("tree", "3")
    leaves = "(leaf leaf leaf leaf)"
    branch = f"({' '.join([leaves] * 4)})"
    assert said(frames) == f"({' '.join([branch] * 4)})"


async def test_the_fifth_level_is_refused(gateway: GatewayUnderTest) -> None:
    assert "max sub-agent recursion depth (3)" in said(await gateway.run("nested", "x"))


async def test_no_more_children_at_a_time_than_the_agent_allows(
    gateway: GatewayUnderTest,
) -> None:
    frames = await gateway.run("tree", "1")
    run = frames[1].data["run_id"]
    running = most = 0
    for commit in await read_commits(gateway.runtime.store, "", run):
        for record in commit.records():
            running += isinstance(record.event, ChildStarted)
            running -= isinstance(record.event, ChildFinished)
            most = max(most, running)
    assert most == 3


async def opening(gateway: GatewayUnderTest, run: str) -> RunStarted:
    commits = await read_commits(gateway.runtime.store, "", run)
    event = commits[0].records()[0].event
    assert isinstance(event, RunStarted)
    return event


async def test_what_a_child_inherits_and_what_it_does_not(gateway: GatewayUnderTest) -> None:
    lineage = {"root_agent_run_id": "r_0", "function_key": "f"}
    frames = await gateway.run(
        "nested", "x",
        user_id="u1",
        user_tier="gold",
        user_credentials={"github": "token-of-a-person-1"},
        parent_context=lineage,
        metadata={"secret": "plan"},
        allowed_hosts=["example.com"],
        web_search_filter="keep",
    )  # fmt: skip
    run = frames[1].data["run_id"]
    top = await opening(gateway, run)
    parent = top
    for depth in (1, 2, 3):
        ids = child_ids(parent.run, await call_number(gateway, parent.run), 0)
        child = await opening(gateway, ids.run)
        assert (child.run, child.session, child.agent_id) == ids
        assert child.parent is not None
        assert (child.parent.run, child.parent_agent_id) == (parent.run, parent.agent_id)
        assert (child.depth, child.root, child.origin) == (depth, run, "child")
        assert (child.user_id, child.user_tier, child.tenant) == ("u1", "gold", top.tenant)
        assert child.parent_context == lineage
        assert (child.caller_hosts, child.web_search_filter) == (("example.com",), "keep")
        assert (child.reader, child.interactive) == ("continue", False)
        assert child.sealed == ("credentials",)
        assert not child.metadata
        parent = child


async def call_number(gateway: GatewayUnderTest, run: str) -> int:
    for commit in await read_commits(gateway.runtime.store, "", run):
        for record in commit.records():
            if record.type == "tool_call":
                return record.n
    raise AssertionError("no call")


async def test_a_model_spawns_beside_its_other_calls_and_is_asked_again_with_all_results(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    blocks = [
        {"type": "tool_use", "id": "t1", "name": "Agent",
         "input": {"name": "helper", "prompt": "sum it up", "def_id": None}},
        {"type": "tool_use", "id": "t2", "name": "Context", "input": {"op": "time"}},
        {"type": "tool_use", "id": "t3", "name": "Agent",
         "input": {"op": "parallel_spawn", "spawns": [ENTRY, ENTRY]}},
    ]  # fmt: skip
    vendor.script(
        Reply([sse(*anthropic_events(blocks, stop_reason="tool_use"))]),
        openai_text("the sum"),
        anthropic_text("thanks"),
    )
    frames = await gateway.run("boss", "go")
    assert said(frames) == "thanks"
    asked = vendor.last.json["messages"][-1]["content"]
    assert [block["tool_use_id"] for block in asked] == ["t1", "t2", "t3"]
    assert "the sum" in json.dumps(asked[0])
    assert "echo x" in json.dumps(asked[2])
    child = vendor.requests[-2].json
    assert child["messages"][0] == {"role": "system", "content": "Help."}
    assert child["messages"][1]["content"] == "sum it up"


def holding(text: str, until_: asyncio.Event) -> Reply:
    """An answer of the child's vendor that does not end before the test says so."""
    whole = openai_text(text).parts[0]
    assert isinstance(whole, bytes)
    first, _, rest = whole.partition(b"\n\n")
    return Reply([first + b"\n\n", Hold(until_), rest])


SPAWN_HELPER = {"name": "helper", "prompt": "wait"}


async def child_of(gateway: GatewayUnderTest, run: str, index: int = 0) -> str:
    """The agent id of a child, once it runs."""

    async def begun() -> str | None:
        for commit in await read_commits(gateway.runtime.store, "", run):
            for record in commit.records():
                event = record.event
                if isinstance(event, ChildStarted) and event.index == index:
                    response = await gateway.http.get(f"/v1/agents/{event.agent_id}")
                    if response.status_code == 200:
                        return event.agent_id
        return None

    return await until(begun)


async def test_cancelling_the_parent_cancels_what_is_below(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(holding("never", asyncio.Event()), holding("never", asyncio.Event()))
    request = {"op": "parallel_spawn", "spawns": [SPAWN_HELPER, SPAWN_HELPER]}
    body = {"agent": "caller", "prompt": json.dumps(request)}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        agent = (await stream.until("agent")).data
        children = {await child_of(gateway, agent["run_id"], index) for index in (0, 1)}
        response = await gateway.http.post(
            f"/v1/agents/{agent['agent_id']}/cancel", json={"reason": "enough"}
        )
        answer = response.json()
        assert answer["cancelled"] is True
        assert set(answer["cascaded"]) == children
        assert answer["cancelled_count"] == 3
        assert (await stream.rest())[-1].event == "error"
    for child in children:
        ended = await gateway.ended(child)
        assert (ended["status"], ended["stop_reason"]) == ("cancelled", "enough")


async def test_a_parent_that_goes_takes_its_children_along(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    """Its client leaves: nobody but the parent's own worker cancels the child."""
    vendor.script(holding("never", asyncio.Event()))
    body = {"agent": "caller", "prompt": json.dumps(SPAWN_HELPER)}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        agent = (await stream.until("agent")).data
        child = await child_of(gateway, agent["run_id"])
    assert (await gateway.ended(agent["agent_id"]))["stop_reason"] == "client disconnected"
    ended = await gateway.ended(child)
    assert (ended["status"], ended["stop_reason"]) == ("cancelled", "parent run cancelled")


async def test_a_child_cancelled_alone_is_an_error_for_its_parent(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(holding("never", asyncio.Event()))
    body = {"agent": "caller", "prompt": json.dumps(SPAWN_HELPER)}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        agent = (await stream.until("agent")).data
        child = await child_of(gateway, agent["run_id"])
        await gateway.http.post(f"/v1/agents/{child}/cancel", json={"reason": "not you"})
        frames = await stream.rest()
    assert frames[-1].event == "done"
    assert "cancelled: not you" in said(frames)


async def test_a_parent_is_parked_while_its_child_takes_long(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    vendor.script(
        anthropic_tool_call("Agent", SPAWN_HELPER), holding("at last", go_on), anthropic_text("ok")
    )
    body = {"agent": "boss", "prompt": "go"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        agent = (await stream.until("agent")).data

        async def parked() -> bool | None:
            types = [
                record.type
                for commit in await read_commits(gateway.runtime.store, "", agent["run_id"])
                for record in commit.records()
            ]
            return "run.parked" in types or None

        await until(parked)
        assert not gateway.runtime.worker.owns(agent["run_id"])
        go_on.set()
        frames = await stream.rest()
    assert said(frames) == "ok"
    assert "at last" in json.dumps(vendor.last.json["messages"][-1])


async def test_a_large_answer_reaches_the_parent(gateway: GatewayUnderTest) -> None:
    frames = await gateway.run("caller", json.dumps({"name": "echo", "prompt": "x" * 800_000}))
    assert len(said(frames)) > 800_000


async def test_every_journal_of_parents_and_children_is_proven(gateway: GatewayUnderTest) -> None:
    """Last in this module: it looks at what the other tests left."""
    reports = await prove_everything(gateway.runtime.store)
    assert len(reports) > 100
