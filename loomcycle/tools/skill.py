"""Skill: read the instructions of a skill by name. Specification: tools.md section 3.11.

A skill is shown only to a run that has every tool which the skill needs; it gives nobody a tool.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from loomcycle.config.skills import Skill as Instructions
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.policy import side_effect_class

NAMES_SHOWN = 10


class SkillInput(Struct):
    name: str | None = None


_decoder = msgspec.json.Decoder(SkillInput)


class Skill:
    """``skills`` are those on disk, by name."""

    name = "Skill"
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Skill")
    description = "Read the instructions of a skill by its name, then follow them."
    input_schema = msgspec.json.encode(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "Which skill."}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )

    def __init__(self, skills: Mapping[str, Instructions] | None = None) -> None:
        self._skills = skills or {}

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        try:
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return ToolOutput(f"invalid input JSON: {error}", True)
        name = (request.name or "").strip()
        if not name:
            return ToolOutput("missing required field: name", True)
        if not self._skills:
            return ToolOutput(
                "no skills are configured on this server: set LOOMCYCLE_SKILLS_ROOT to a directory"
                " of <name>/SKILL.md",
                True,
            )
        skill = self._skills.get(name)
        if skill is None:
            return ToolOutput(f'unknown skill "{name}" (available: {self._available()})', True)
        tools = {tool.name for tool in context.plan.tools}
        excess = [tool for tool in skill.allowed_tools if tool not in tools]
        if excess:
            return ToolOutput(
                f'skill "{name}" needs tools that this run does not have: {", ".join(excess)}', True
            )
        return ToolOutput(skill.body)

    def _available(self) -> str:
        names = sorted(self._skills)
        shown = ", ".join(names[:NAMES_SHOWN])
        return f"{shown}, ..." if len(names) > NAMES_SHOWN else shown
