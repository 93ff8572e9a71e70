"""The tools of this deployment, in the order in which models see them (tools.md section 1.1)."""

from __future__ import annotations

from loomcycle.config.variables import Environment
from loomcycle.memory.store import RowStore
from loomcycle.questions import Questions
from loomcycle.tools.agent import Agent
from loomcycle.tools.base import Tool
from loomcycle.tools.context import Context
from loomcycle.tools.glob import Glob
from loomcycle.tools.grep import Grep
from loomcycle.tools.interruption import Interruption
from loomcycle.tools.memory import Memory
from loomcycle.tools.read import Read


def builtin_tools(
    rows: RowStore, environment: Environment, questions: Questions | None = None
) -> dict[str, Tool]:
    """Every tool that this version has, by name."""
    tools: list[Tool] = [
        Read(),
        Grep(),
        Glob(),
        Memory(
            rows,
            max_value_bytes=environment.memory_max_value_bytes,
            max_scope_bytes=environment.memory_max_scope_bytes,
        ),
        Interruption(questions),
        Context(tuple(environment.http_host_allowlist)),
        Agent(),
    ]
    return {tool.name: tool for tool in tools}
