"""Behaviour of tools.md section 3.11."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from events.plan import RunPlan, ToolSpec
from loomcycle.config.skills import Skill as Instructions
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.skill import Skill

SKILLS = {
    "plain": Instructions(name="plain", body="Do it.\n\nThen rest.\n"),
    "reading": Instructions(name="reading", body="Read it.", allowed_tools=("Read", "Grep")),
    "wide": Instructions(name="wide", body="All of it.", allowed_tools=("Re*",)),
}


def context(*tools: str) -> CallContext:
    specs = tuple(ToolSpec(name, "", Raw(b"{}")) for name in tools)
    plan = RunPlan(agent="a", provider="mock", model="m", tools=specs, allowed_tools=("*",))
    return CallContext(
        run_id="r_1", session_id="s_1", agent_id="a_1", tenant="", user_id="", user_tier="",
        effect_id="r_1.4", plan=plan, started_ns=1, now_ns=2,
    )  # fmt: skip


async def read(name: object, *tools: str) -> ToolOutput:
    return await Skill(SKILLS).call(json.dumps({"name": name}).encode(), context(*tools))


async def test_the_body_is_given_as_it_is() -> None:
    assert await read("plain") == ToolOutput("Do it.\n\nThen rest.\n")


async def test_a_skill_is_shown_to_a_run_that_has_its_tools() -> None:
    assert await read("reading", "Read", "Grep", "Glob") == ToolOutput("Read it.")


async def test_a_run_that_lacks_tools_is_told_which() -> None:
    output = await read("reading", "Grep")
    assert output == ToolOutput(
        'skill "reading" needs tools that this run does not have: Read', is_error=True
    )


async def test_a_pattern_among_a_skills_tools_is_never_covered() -> None:
    assert (await read("wide", "Read")).is_error


@pytest.mark.parametrize("name", ["", "  ", None])
async def test_a_blank_name_is_missing(name: object) -> None:
    assert await read(name) == ToolOutput("missing required field: name", is_error=True)


async def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    output = await read("other")
    assert output == ToolOutput(
        'unknown skill "other" (available: plain, reading, wide)', is_error=True
    )


async def test_at_most_ten_names_are_shown() -> None:
    tool = Skill({f"s{i:02}": Instructions(name=f"s{i:02}") for i in range(11)})
    output = await tool.call(b'{"name":"x"}', context())
    assert output.text.endswith("s08, s09, ...)")


async def test_a_server_without_skills_says_how_to_have_some() -> None:
    output = await Skill().call(b'{"name":"plain"}', context())
    assert output.is_error
    assert "LOOMCYCLE_SKILLS_ROOT" in output.text


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"name":1}', b"\xff"])
async def test_undecodable_input_is_refused(raw: bytes) -> None:
    output = await Skill(SKILLS).call(raw, context())
    assert output.is_error
    assert output.text.startswith("invalid input JSON: ")
