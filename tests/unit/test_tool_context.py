"""Behaviour of tools.md section 3.12: what a run's own facts answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from events.plan import Compaction, RunPlan, Sampling, ToolSpec, VolumeBinding
from events.vocabulary import CompactionRequested
from loomcycle.tools.base import CallContext, Repeat, Tool, ToolOutput
from loomcycle.tools.context import Context, ContextInput
from loomcycle.tools.context.request import OPERATIONS
from replay.state import State

TOOLS = (
    ToolSpec("Read", "reads", Raw(b'{"type": "object"}')),
    ToolSpec("Context", "tells", Raw(b"{}")),
)
PLAN = RunPlan(agent="helper", provider="mock", model="m-1", tools=TOOLS, allowed_tools=("Re*",))


def context(plan: RunPlan = PLAN, **fields: Any) -> CallContext:
    given: dict[str, Any] = {
        "run_id": "run_1", "session_id": "ses_1", "agent_id": "agt_1", "tenant": "t",
        "user_id": "ann", "user_tier": "pro", "effect_id": "run_1.4", "plan": plan,
        "started_ns": 1_700_000_000_000_000_000, "now_ns": 1_700_000_001_234_567_890,
    }  # fmt: skip
    return CallContext(**(given | fields))


def replaced(**fields: Any) -> RunPlan:
    return msgspec.structs.replace(PLAN, **fields)


async def ask(op: str, bound: CallContext | None = None, **arguments: Any) -> ToolOutput:
    tool = Context(operator_hosts=("example.com",))
    return await tool.call(json.dumps({"op": op, **arguments}).encode(), bound or context())


async def answer(op: str, bound: CallContext | None = None, **arguments: Any) -> Any:
    output = await ask(op, bound, **arguments)
    assert not output.is_error, output.text
    return json.loads(output.text)


async def test_self_tells_who_runs() -> None:
    assert await answer("self") == {
        "agent_name": "helper",
        "agent_id": "agt_1",
        "user_id": "ann",
        "user_tier": "pro",
        "agent_def_id": "",
        "run_id": "run_1",
        "provider": "mock",
        "model": "m-1",
        "filesystem": "none: no volume is bound to this agent, so file tools refuse every call",
        "network": {"allowed_hosts": ["example.com"], "source": "operator_default"},
    }


async def test_self_tells_who_serves_the_run_now() -> None:
    facts = await answer("self", context(provider="openai", model="o"))
    assert (facts["provider"], facts["model"]) == ("openai", "o")


async def test_self_shows_only_sampling_that_is_set() -> None:
    plan = replaced(sampling=Sampling(temperature=0.0, stop=("END",)))
    assert (await answer("self", context(plan)))["sampling"] == {
        "temperature": 0.0,
        "stop": ["END"],
    }


async def test_self_shows_compaction_as_the_plan_has_it() -> None:
    plan = replaced(compaction=Compaction(enabled=True, keep_last_n=0))
    assert (await answer("self", context(plan)))["compaction"] == {
        "enabled": True,
        "keep_last_n": 0,
    }
    assert "compaction" not in await answer("self", context())


@pytest.mark.parametrize(
    ("used", "window", "expected"),
    [
        (0, 1000, None),
        (10, 0, {"used_tokens": 10}),
        (999, 1000, {"used_tokens": 999, "max_tokens": 1000, "used_pct": 99}),
    ],
)
async def test_self_shows_the_window_after_the_first_turn(
    used: int, window: int, expected: dict[str, int] | None
) -> None:
    facts = await answer("self", context(replaced(context_window=window), used_tokens=used))
    assert facts.get("context") == expected


async def test_self_shows_volumes_when_a_policy_is_active() -> None:
    plan = replaced(volumes=(VolumeBinding("refs", "/srv/refs", "ro"),))
    facts = await answer("self", context(plan))
    assert facts["volumes"]["bindings"] == [
        {"name": "refs", "path": "/srv/refs", "mode": "ro", "default": False}
    ]
    assert facts["volumes"]["path_convention"]
    assert "filesystem" not in facts
    empty = await answer("self", context(replaced(volumes=())))
    assert empty["volumes"]["bindings"] == []


async def test_self_shows_the_callers_hosts_as_sent() -> None:
    facts = await answer("self", context(caller_hosts=("b.org", "a.org")))
    assert facts["network"] == {"allowed_hosts": ["b.org", "a.org"], "source": "caller"}
    facts = await answer("self", context(caller_hosts=()))
    assert facts["network"] == {"allowed_hosts": [], "source": "caller"}


async def test_tools_lists_the_runs_tools_by_name() -> None:
    assert await answer("tools") == {
        "tools": [
            {"name": "Context", "description": "tells", "side_effect_class": "pure"},
            {"name": "Read", "description": "reads", "side_effect_class": "filesystem"},
        ],
        "count": 2,
    }


async def test_doc_shows_one_tool() -> None:
    assert await answer("doc", name="Read") == {
        "name": "Read",
        "description": "reads",
        "input_schema": {"type": "object"},
        "side_effect_class": "filesystem",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "doc: missing required field: name"),
        ("Bash", 'doc: tool "Bash" is not in this agent\'s allowed_tools'),
        ("Redo", 'doc: tool "Redo" not found'),
    ],
)
async def test_doc_says_why_there_is_none(name: str, text: str) -> None:
    assert await ask("doc", name=name) == ToolOutput(text, is_error=True)


async def test_permissions_of_an_agent_without_any() -> None:
    assert await answer("permissions") == {
        "allowed_tools": ["Re*"],
        "host_policy": {"has_list": False, "allowed_hosts": None, "web_search_filter": ""},
        "memory": {"allowed_scopes": None, "quota_bytes": 0},
        "channels": {"publish": None, "subscribe": None},
        "agent_def_scopes": None,
        "skill_def_scopes": None,
        "evaluation_scopes": None,
        "history_scope": None,
    }


async def test_permissions_show_what_the_plan_grants() -> None:
    plan = replaced(
        memory_scopes=("user",),
        memory_quota_bytes=100,
        extra={
            "channels": Raw(b'{"publish":["news"],"subscribe":[]}'),
            "history_scope": Raw(b'["self"]'),
        },
    )
    facts = await answer(
        "permissions", context(plan, caller_hosts=("a.org",), web_search_filter="keep")
    )
    assert facts["host_policy"] == {
        "has_list": True,
        "allowed_hosts": ["a.org"],
        "web_search_filter": "keep",
    }
    assert facts["memory"] == {"allowed_scopes": ["user"], "quota_bytes": 100}
    assert facts["channels"] == {"publish": ["news"], "subscribe": []}
    assert facts["history_scope"] == ["self"]


async def test_time_is_that_of_the_call() -> None:
    assert await answer("time") == {
        "now_rfc3339": "2023-11-14T22:13:21.234567890Z",
        "unix_ms": 1_700_000_001_234,
        "run_started_at": "2023-11-14T22:13:20.000000000Z",
        "elapsed_ms": 1234,
    }


async def test_time_without_a_known_start() -> None:
    assert set(await answer("time", context(started_ns=0))) == {"now_rfc3339", "unix_ms"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"{}", "missing required field: op"),
        (b'{"op":""}', "missing required field: op"),
        (
            b'{"op":"guide"}',
            'unknown op "guide" (must be one of: self, tools, doc, permissions, agents, lineage, '
            "evaluations, channels, history, help, time, compact)",
        ),
        (b'{"op":"agents"}', "agents: not configured on this server"),
        (b'{"op":"history"}', "history: not configured on this server"),
        (b"{", "invalid input JSON: "),
        (b'{"op":1}', "invalid input JSON: "),
        (b'{"op":"time","limit":"x"}', "invalid input JSON: "),
        (b"[]", "invalid input JSON: "),
    ],
)
async def test_a_refused_call_says_why(raw: bytes, text: str) -> None:
    output = await Context().call(raw, context())
    assert output.is_error
    assert output.text.startswith(text)


async def test_answers_are_compact_and_unknown_keys_are_ignored() -> None:
    output = await ask("tools", surprise=1)
    assert ": " not in output.text
    assert not output.is_error


async def test_an_operation_that_needs_more_than_the_run_is_given_to_it() -> None:
    async def topic(request: ContextInput, bound: CallContext) -> ToolOutput:
        return ToolOutput(f"{request.topic} for {bound.run_id}")

    tool: Tool = Context(operations={"help": topic})
    output = await tool.call(b'{"op":"help","topic":"volumes"}', context())
    assert output == ToolOutput("volumes for run_1")
    assert json.loads(tool.input_schema)["properties"]["op"]["enum"] == list(OPERATIONS)
    assert tool.repeat is Repeat.SAFE


async def test_compact_asks_for_a_compaction_before_the_next_step() -> None:
    output = await ask("compact", context(state=State(PLAN)))
    assert json.loads(output.text) == {"compaction": "scheduled", "applies_at": "the next step"}
    assert output.events == (CompactionRequested(trigger="self"),)


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        (context(), "only a run can have its conversation compacted"),
        (
            context(replaced(code="function run() {}"), state=State(PLAN)),
            "this agent is a program: there is no conversation to compact",
        ),
    ],
)
async def test_compact_needs_a_conversation(bound: CallContext, reason: str) -> None:
    assert await ask("compact", bound) == ToolOutput(f"compact: {reason}", is_error=True)
