"""Behaviour of tools.md section 3.12: operations agents, channels, lineage and help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from events.plan import RunPlan
from loomcycle.config.agent_schema import AgentConfig, ProviderCandidate
from loomcycle.config.schema import ChannelConfig, Config, DefaultsConfig
from loomcycle.help.topics import read_topics
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context import Context, deployment
from loomcycle.tools.context import help as help_operation

AGENTS = {
    "writer": AgentConfig(
        name="writer", provider="openai", model="gpt-x", allowed_tools=("Read", "Context")
    ),
    "aliased": AgentConfig(name="aliased", model="fast"),
    "tiered": AgentConfig(name="tiered", tier="low"),
    "by-default": AgentConfig(name="by-default", provider="gemini"),
    "lost": AgentConfig(name="lost", model="m-9"),
}
CHANNELS = {
    "jobs/a": ChannelConfig(
        scope="user", semantic="queue", default_ttl=60, max_messages=5, publisher="system"
    ),
    "news": ChannelConfig(),
}
CONFIG = Config(
    agents=AGENTS,
    channels=CHANNELS,
    models={"fast": ProviderCandidate(provider="openai", model="gpt-mini")},
    defaults=DefaultsConfig(model="m-1"),
)


def context(extra: dict[str, Raw] | None = None) -> CallContext:
    plan = RunPlan(agent="writer", provider="mock", model="m", extra=extra or {})
    return CallContext(
        run_id="r_1", session_id="s_1", agent_id="a_1", tenant="t", user_id="u", user_tier="",
        effect_id="r_1.4", plan=plan, started_ns=1, now_ns=2,
    )  # fmt: skip


async def ask(op: str, bound: CallContext | None = None, **arguments: Any) -> ToolOutput:
    tool = Context(operations=deployment.operations(CONFIG))
    return await tool.call(json.dumps({"op": op, **arguments}).encode(), bound or context())


async def answer(op: str, bound: CallContext | None = None, **arguments: Any) -> Any:
    output = await ask(op, bound, **arguments)
    assert not output.is_error, output.text
    return json.loads(output.text)


async def test_agents_are_listed_by_name_with_what_serves_them() -> None:
    found = await answer("agents")
    assert found["count"] == 5
    by_name = {agent["name"]: agent for agent in found["agents"]}
    assert list(by_name) == sorted(AGENTS)
    assert by_name["writer"] == {
        "name": "writer",
        "model": "gpt-x",
        "provider": "openai",
        "allowed_tools_count": 2,
    }
    assert by_name["aliased"]["model"] == "gpt-mini"
    assert by_name["by-default"]["model"] == "m-1"
    assert by_name["tiered"] == {"name": "tiered", "tier": "low", "allowed_tools_count": 0}


async def test_an_agent_that_cannot_be_resolved_says_why() -> None:
    (agent,) = (await answer("agents", prefix="lo"))["agents"]
    assert "no provider resolved" in agent["error"]
    assert "model" not in agent


async def test_agents_can_be_narrowed_by_prefix() -> None:
    assert await answer("agents", prefix="zz") == {"agents": [], "count": 0}


async def test_channels_show_what_is_granted_by_name_and_the_wildcards_apart() -> None:
    grants = {"channels": Raw(b'{"publish":["news","jobs/*"],"subscribe":["jobs/a"]}')}
    assert await answer("channels", context(grants)) == {
        "channels": [
            {
                "name": "jobs/a",
                "scope": "user",
                "semantic": "queue",
                "default_ttl": 60,
                "max_messages": 5,
                "publisher": "system",
                "publish": False,
                "subscribe": True,
            },
            {"name": "news", "publish": True, "subscribe": False},
        ],
        "count": 2,
        "publish_wildcards": ["jobs/*"],
        "subscribe_wildcards": [],
    }


async def test_channels_are_shown_to_an_agent_without_any_grant() -> None:
    found = await answer("channels", prefix="ne")
    assert found["channels"] == [{"name": "news", "publish": False, "subscribe": False}]
    assert (found["count"], found["publish_wildcards"]) == (1, [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "lineage: missing required field: def_id"),
        ({"def_id": "def_1"}, 'lineage: def_id "def_1" not found'),
    ],
)
async def test_lineage_knows_no_definition_yet(arguments: dict[str, str], text: str) -> None:
    output = await ask("lineage", **arguments)
    assert output.is_error
    assert output.text.startswith(text)


# --- help -----------------------------------------------------------------------------------


async def tell(root: Path | None = None, **arguments: Any) -> ToolOutput:
    tool = Context(operations=help_operation.operations(read_topics(root)))
    return await tool.call(json.dumps({"op": "help", **arguments}).encode(), context())


def write_topic(root: Path, file: str, text: str) -> None:
    (root / file).write_text(text)


async def test_help_lists_the_bundled_topics() -> None:
    index = json.loads((await tell()).text)
    names = [topic["name"] for topic in index["topics"]]
    assert names == sorted(names)
    assert {"overview", "tools", "memory", "evaluation", "history"} <= set(names)
    assert index["count"] == len(names)
    assert index["hint"]
    assert {topic["source"] for topic in index["topics"]} == {"bundled"}
    assert all(topic["description"] for topic in index["topics"])


async def test_help_shows_one_topic() -> None:
    topic = json.loads((await tell(topic="memory")).text)
    assert set(topic) == {"name", "description", "content", "source"}
    assert topic["content"].startswith("# Memory")


async def test_an_unknown_topic_names_all_that_there_are() -> None:
    output = await tell(topic="nothing")
    assert output.is_error
    assert output.text.startswith('help: unknown topic "nothing" (topics: ')
    assert all(name in output.text for name in read_topics())


async def test_topics_of_the_operator_win_over_bundled_ones(tmp_path: Path) -> None:
    write_topic(tmp_path, "memory.md", "---\nname: memory\ndescription: ours\n---\nOur way.\n")
    write_topic(tmp_path, "house.md", "---\nname: house\ndescription: rules\n---\nBe kind.\n")
    topic = json.loads((await tell(tmp_path, topic="memory")).text)
    assert topic == {
        "name": "memory",
        "description": "ours",
        "content": "Our way.",
        "source": "filesystem",
    }
    assert read_topics(tmp_path)["house"].source == "filesystem"
    assert read_topics(tmp_path)["tools"].source == "bundled"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.md", "no frontmatter"),
        ("a.md", "---\nname: b\ndescription: d\n---\nother name\n"),
        ("a.md", "---\nname: a\n---\nno description\n"),
        ("a.md", "---\nname: a\ndescription: d\n---\n \n"),
        ("a.md", "---\nname: a\ndescription: [\n---\nbody\n"),
        ("a.txt", "---\nname: a\ndescription: d\n---\nbody\n"),
        (".md", "---\nname: ''\ndescription: d\n---\nbody\n"),
    ],
)
def test_what_is_no_topic_is_skipped(tmp_path: Path, file: str, text: str) -> None:
    write_topic(tmp_path, file, text)
    assert read_topics(tmp_path) == read_topics()


def test_links_directories_and_bytes_are_skipped(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_topic(elsewhere, "a.md", "---\nname: a\ndescription: d\n---\nbody\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.md").symlink_to(elsewhere / "a.md")
    (root / "b.md").mkdir()
    (root / "c.md").write_bytes(b"---\nname: c\n---\n\xff")
    assert read_topics(root) == read_topics()


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_topics(tmp_path / "nowhere")
