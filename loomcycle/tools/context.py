"""Context: what a run may know about itself and its tools. Specification: tools.md section 3.12.

An operation is one coroutine in a table; those that need a store are added by whoever owns the
store. Nothing here may show a credential, an environment value or another run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from events.plan import Compaction, RunPlan, ToolSpec
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.policy import is_allowed, side_effect_class

PATH_CONVENTION = (
    "Relative paths start at the chosen volume's root; absolute paths must lie inside it. Name "
    "another volume with the volume argument. One call works in one volume."
)
NO_FILESYSTEM = "none: no volume is bound to this agent, so file tools refuse every call"

# What the plan keeps under ``extra`` for this tool, as JSON in the form shown to the model.
_SCOPE_LISTS = ("agent_def_scopes", "skill_def_scopes", "evaluation_scopes", "history_scope")
_NULL = Raw(b"null")


class ContextInput(Struct):
    """The input of every operation; each reads the fields it needs."""

    op: str | None = None
    name: str | None = None
    prefix: str | None = None
    def_id: str | None = None
    depth: int | None = None
    include_lineage: bool | None = None
    agent_id: str | None = None
    event_types: list[str] | None = None
    limit: int | None = None
    since_ts: str | None = None
    topic: str | None = None


Operation = Callable[[ContextInput, CallContext], Awaitable[ToolOutput]]

_decoder = msgspec.json.Decoder(ContextInput)


class Context:
    """``operator_hosts`` is the deployment's host allowlist; ``operations`` are those that are
    added to ``self``, ``tools``, ``doc``, ``permissions`` and ``time``."""

    name = "Context"
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Context")

    def __init__(
        self,
        operator_hosts: tuple[str, ...] = (),
        operations: Mapping[str, Operation] | None = None,
    ) -> None:
        self._operator_hosts = operator_hosts
        self._operations: dict[str, Operation] = {
            "self": self._self,
            "tools": _tools,
            "doc": _doc,
            "permissions": _permissions,
            "time": _time,
            **(operations or {}),
        }
        self.description = (
            "Facts about this run, its tools and its limits, without side effects. "
            f"Operations: {', '.join(self._operations)}."
        )
        self.input_schema = _input_schema(tuple(self._operations))

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        try:
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return ToolOutput(f"invalid input JSON: {error}", is_error=True)
        if not request.op:
            return ToolOutput("missing required field: op", is_error=True)
        operation = self._operations.get(request.op)
        if operation is None:
            known = ", ".join(self._operations)
            return ToolOutput(f'unknown op "{request.op}" (must be one of: {known})', is_error=True)
        return await operation(request, context)

    async def _self(self, request: ContextInput, context: CallContext) -> ToolOutput:
        plan = context.plan
        facts: dict[str, Any] = {
            "agent_name": plan.agent,
            "agent_id": context.agent_id,
            "user_id": context.user_id,
            "user_tier": context.user_tier,
            "agent_def_id": plan.agent_def_id,
            "run_id": context.run_id,
            "provider": context.provider or plan.provider,
            "model": context.model or plan.model,
        }
        sampling = {
            name: value
            for name, value in msgspec.structs.asdict(plan.sampling).items()
            if value is not None
        }
        if sampling:
            facts["sampling"] = sampling
        if plan.compaction != Compaction():
            facts["compaction"] = plan.compaction
        if context.used_tokens > 0:
            state = context.state
            window = plan.context_window if state is None else state.context_window
            facts["context"] = _window(context.used_tokens, window)
        facts |= _filesystem(plan)
        caller = context.caller_hosts
        facts["network"] = {
            "allowed_hosts": self._operator_hosts if caller is None else caller,
            "source": "operator_default" if caller is None else "caller",
        }
        return _answer(facts)


def _window(used_tokens: int, max_tokens: int) -> dict[str, int]:
    if max_tokens <= 0:
        return {"used_tokens": used_tokens}
    return {
        "used_tokens": used_tokens,
        "max_tokens": max_tokens,
        "used_pct": used_tokens * 100 // max_tokens,
    }


def _filesystem(plan: RunPlan) -> dict[str, Any]:
    if plan.volumes is None:
        return {"filesystem": NO_FILESYSTEM}
    bindings = [msgspec.structs.asdict(binding) for binding in plan.volumes]
    return {"volumes": {"bindings": bindings, "path_convention": PATH_CONVENTION}}


async def _tools(request: ContextInput, context: CallContext) -> ToolOutput:
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "side_effect_class": side_effect_class(tool.name),
        }
        for tool in sorted(context.plan.tools, key=lambda tool: tool.name)
    ]
    return _answer({"tools": tools, "count": len(tools)})


async def _doc(request: ContextInput, context: CallContext) -> ToolOutput:
    if not request.name:
        return ToolOutput("doc: missing required field: name", is_error=True)
    for tool in context.plan.tools:
        if tool.name == request.name:
            return _answer(_documentation(tool))
    if is_allowed(request.name, context.plan.allowed_tools):
        return ToolOutput(f'doc: tool "{request.name}" not found', is_error=True)
    return ToolOutput(
        f'doc: tool "{request.name}" is not in this agent\'s allowed_tools', is_error=True
    )


def _documentation(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "side_effect_class": side_effect_class(tool.name),
    }


async def _permissions(request: ContextInput, context: CallContext) -> ToolOutput:
    plan = context.plan
    return _answer(
        {
            "allowed_tools": plan.allowed_tools,
            "host_policy": {
                "has_list": context.caller_hosts is not None,
                "allowed_hosts": context.caller_hosts,
                "web_search_filter": context.web_search_filter,
            },
            "memory": {
                "allowed_scopes": plan.memory_scopes or None,
                "quota_bytes": plan.memory_quota_bytes,
            },
            "channels": plan.extra.get("channels", Raw(b'{"publish":null,"subscribe":null}')),
            **{name: plan.extra.get(name, _NULL) for name in _SCOPE_LISTS},
        }
    )


async def _time(request: ContextInput, context: CallContext) -> ToolOutput:
    facts: dict[str, Any] = {
        "now_rfc3339": _rfc3339(context.now_ns),
        "unix_ms": context.now_ns // 1_000_000,
    }
    if context.started_ns > 0:
        facts["run_started_at"] = _rfc3339(context.started_ns)
        facts["elapsed_ms"] = (context.now_ns - context.started_ns) // 1_000_000
    return _answer(facts)


def _rfc3339(unix_ns: int) -> str:
    seconds, fraction = divmod(unix_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def _answer(facts: dict[str, Any]) -> ToolOutput:
    return ToolOutput(msgspec.json.encode(facts).decode())


def _input_schema(operations: tuple[str, ...]) -> bytes:
    text, integer = {"type": "string"}, {"type": "integer"}
    return msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": operations},
                "name": text,
                "prefix": text,
                "def_id": text,
                "depth": integer,
                "include_lineage": {"type": "boolean"},
                "agent_id": text,
                "event_types": {"type": "array", "items": text},
                "limit": integer,
                "since_ts": text,
                "topic": text,
            },
            "required": ["op"],
            "additionalProperties": False,
        }
    )
