"""Behaviour of tools.md sections 1.1, 1.4 and the side-effect classes of 3.12."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.tools.context import Context
from loomcycle.tools.glob import Glob
from loomcycle.tools.grep import Grep
from loomcycle.tools.policy import rule_matches, side_effect_class, visible_tools
from loomcycle.tools.read import Read

REGISTERED = ("Read", "Write", "Grep", "Context", "mcp__db__query", "mcp__db__drop", "Agent")


@pytest.mark.parametrize(
    ("rule", "name", "matches"),
    [
        ("Read", "Read", True),
        ("read", "Read", False),
        ("Read", "ReadMore", False),
        ("Re*", "Read", True),
        ("*", "anything", True),
        ("mcp__db__*", "mcp__db__query", True),
        ("mcp__db__*", "mcp__dbx__query", False),
        ("*d", "Read", False),
        ("R?ad", "Read", False),
        ("", "Read", False),
        ("Read**", "Read", False),
    ],
)
def test_a_rule_is_a_name_or_a_prefix(rule: str, name: str, matches: bool) -> None:
    assert rule_matches(rule, name) is matches


@pytest.mark.parametrize(
    ("agent", "caller", "visible"),
    [
        ([], None, ()),
        (["*"], None, REGISTERED),
        (["Grep", "Read"], None, ("Read", "Grep")),
        (["Read", "Unknown"], None, ("Read",)),
        (["Read", "mcp__*"], ["mcp__db__query"], ("mcp__db__query",)),
        (["Read", "Grep"], ["*"], ("Read", "Grep")),
        (["Read"], ["Write"], ()),
        (["*"], [], ()),
        (["context"], None, ()),
    ],
)
def test_the_run_sees_what_is_registered_and_allowed_by_agent_and_caller(
    agent: list[str], caller: list[str] | None, visible: tuple[str, ...]
) -> None:
    assert visible_tools(REGISTERED, agent, caller) == visible


def test_operator_surfaces_are_never_visible() -> None:
    assert visible_tools(("Read", "OperatorTokenDef", "ScheduleDef"), ["*"]) == ("Read",)


_names = st.text("ab*", max_size=3)


@given(st.lists(_names, unique=True), st.lists(_names), st.lists(_names))
def test_a_caller_can_only_narrow(
    registered: list[str], agent: list[str], caller: list[str]
) -> None:
    narrowed = visible_tools(registered, agent, caller)
    unnarrowed = visible_tools(registered, agent)
    assert set(narrowed) <= set(unnarrowed) <= set(registered)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Read", "filesystem"),
        ("Edit", "filesystem"),
        ("WebFetch", "network"),
        ("Bash", "privileged"),
        ("Agent", "privileged"),
        ("Memory", "state"),
        ("Evaluation", "state"),
        ("Skill", "pure"),
        ("Grep", "unknown"),
        ("Glob", "unknown"),
        ("mcp__db__query", "unknown"),
    ],
)
def test_side_effect_classes(name: str, expected: str) -> None:
    assert side_effect_class(name) == expected


def test_tools_carry_the_class_of_their_name() -> None:
    for tool in (Read(), Glob(), Grep(), Context()):
        assert tool.side_effect_class == side_effect_class(tool.name)
