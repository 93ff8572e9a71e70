"""Operations of Context about the run's tools: ``tools`` and ``doc``."""

from __future__ import annotations

from typing import Any, Final

from events.plan import ToolSpec
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, missing, refuse
from loomcycle.tools.policy import is_allowed, side_effect_class


async def _tools(request: ContextInput, context: CallContext) -> ToolOutput:
    shown = [
        {
            "name": tool.name,
            "description": tool.description,
            "side_effect_class": side_effect_class(tool.name),
        }
        for tool in sorted(context.plan.tools, key=lambda tool: tool.name)
    ]
    return answer({"tools": shown, "count": len(shown)})


async def _doc(request: ContextInput, context: CallContext) -> ToolOutput:
    if not request.name:
        return missing("doc", "name")
    for tool in context.plan.tools:
        if tool.name == request.name:
            return answer(_documentation(tool))
    if is_allowed(request.name, context.plan.allowed_tools):
        return refuse("doc", f'tool "{request.name}" not found')
    return refuse("doc", f'tool "{request.name}" is not in this agent\'s allowed_tools')


def _documentation(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "side_effect_class": side_effect_class(tool.name),
    }


OPERATIONS: Final[dict[str, Operation]] = {"tools": _tools, "doc": _doc}
