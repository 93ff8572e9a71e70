"""The tools of this deployment, in the order in which models see them (tools.md section 1.1)."""

from __future__ import annotations

from collections.abc import Mapping

from loomcycle.config.skills import Skill as Instructions
from loomcycle.config.variables import Environment
from loomcycle.evaluations.store import Evaluations
from loomcycle.memory.store import RowStore
from loomcycle.questions import Questions
from loomcycle.tools.agent import Agent
from loomcycle.tools.base import Tool
from loomcycle.tools.context import Context, Operation
from loomcycle.tools.evaluation import Evaluation
from loomcycle.tools.glob import Glob
from loomcycle.tools.grep import Grep
from loomcycle.tools.interruption import Interruption
from loomcycle.tools.memory import Memory
from loomcycle.tools.read import Read
from loomcycle.tools.skill import Skill


def builtin_tools(
    rows: RowStore,
    environment: Environment,
    questions: Questions | None = None,
    *,
    skills: Mapping[str, Instructions] | None = None,
    evaluations: Evaluations | None = None,
    context: Mapping[str, Operation] | None = None,
) -> dict[str, Tool]:
    """Every tool that this version has, by name. ``context``: operations of Context that need
    more than a run's own facts."""
    tools: list[Tool] = [
        Read(),
        Grep(),
        Glob(),
        Skill(skills),
        Memory(
            rows,
            max_value_bytes=environment.memory_max_value_bytes,
            max_scope_bytes=environment.memory_max_scope_bytes,
        ),
        Evaluation(
            evaluations,
            max_judgement_bytes=environment.evaluation_max_judgement_bytes,
            max_rationale_bytes=environment.evaluation_max_rationale_bytes,
        ),
        Interruption(questions),
        Context(tuple(environment.http_host_allowlist), context),
        Agent(),
    ]
    return {tool.name: tool for tool in tools}
