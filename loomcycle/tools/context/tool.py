"""The Context tool: finds the operation of a call.

Operations that a run's own facts answer are here from the start; those that need a store or the
configuration are given to it by whoever wires the deployment (``loomcycle/tools/builtin.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.context import run, tools
from loomcycle.tools.context.request import (
    OPERATIONS,
    ContextInput,
    Operation,
    input_schema,
    refuse,
)
from loomcycle.tools.policy import side_effect_class

_decoder = msgspec.json.Decoder(ContextInput)


class Context:
    """``operator_hosts`` is the deployment's host allowlist; ``operations`` those that need more
    than the run's own facts. An operation that nobody gave answers that it is not configured."""

    name = "Context"
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Context")
    description = (
        "Facts about this run, its tools and limits, other agents, channels and past events,"
        " without side effects (compact has this run's conversation summarised). Operations:"
        f" {', '.join(OPERATIONS)}. Begin with help."
    )

    def __init__(
        self,
        operator_hosts: tuple[str, ...] = (),
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        self._operations: dict[str, Operation] = {
            **run.operations(operator_hosts),
            **tools.OPERATIONS,
            **(operations or {}),
        }
        self.input_schema = input_schema()

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        try:
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return ToolOutput(f"invalid input JSON: {error}", is_error=True)
        op = request.op
        if not op:
            return ToolOutput("missing required field: op", is_error=True)
        if op not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            return ToolOutput(f'unknown op "{op}" (must be one of: {known})', is_error=True)
        operation = self._operations.get(op)
        if operation is None:
            return refuse(op, "not configured on this server")
        return await operation(request, context)
