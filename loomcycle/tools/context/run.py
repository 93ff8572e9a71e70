"""Operations of Context about the run itself: ``self``, ``permissions``, ``time``, ``compact``.

Everything comes from the run's plan, its fold and the call; nothing is looked up.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from events.plan import Compaction, RunPlan
from events.vocabulary import CompactionRequested
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, refuse
from loomcycle.tools.timestamps import rfc3339_nano

PATH_CONVENTION = (
    "Relative paths start at the chosen volume's root; absolute paths must lie inside it. Name "
    "another volume with the volume argument. One call works in one volume."
)
NO_FILESYSTEM = "none: no volume is bound to this agent, so file tools refuse every call"
NEXT_STEP = "the next step"

# What the plan keeps under ``extra`` for this tool, as JSON in the form shown to the model.
_SCOPE_LISTS = ("agent_def_scopes", "skill_def_scopes", "evaluation_scopes", "history_scope")
_NULL = Raw(b"null")
_NO_CHANNELS = Raw(b'{"publish":null,"subscribe":null}')


def operations(operator_hosts: tuple[str, ...]) -> dict[str, Operation]:
    async def tell_self(request: ContextInput, context: CallContext) -> ToolOutput:
        return answer(_self(context, operator_hosts))

    return {
        "self": tell_self,
        "permissions": _permissions,
        "time": _time,
        "compact": _compact,
    }


def _self(context: CallContext, operator_hosts: tuple[str, ...]) -> dict[str, Any]:
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
        "allowed_hosts": operator_hosts if caller is None else caller,
        "source": "operator_default" if caller is None else "caller",
    }
    return facts


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


async def _permissions(request: ContextInput, context: CallContext) -> ToolOutput:
    plan = context.plan
    return answer(
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
            "channels": plan.extra.get("channels", _NO_CHANNELS),
            **{name: plan.extra.get(name, _NULL) for name in _SCOPE_LISTS},
        }
    )


async def _time(request: ContextInput, context: CallContext) -> ToolOutput:
    facts: dict[str, Any] = {
        "now_rfc3339": rfc3339_nano(context.now_ns),
        "unix_ms": context.now_ns // 1_000_000,
    }
    if context.started_ns > 0:
        facts["run_started_at"] = rfc3339_nano(context.started_ns)
        facts["elapsed_ms"] = (context.now_ns - context.started_ns) // 1_000_000
    return answer(facts)


async def _compact(request: ContextInput, context: CallContext) -> ToolOutput:
    if context.state is None:
        return refuse("compact", "only a run can have its conversation compacted")
    if context.plan.code is not None:
        return refuse("compact", "this agent is a program: there is no conversation to compact")
    output = answer({"compaction": "scheduled", "applies_at": NEXT_STEP})
    return output._replace(events=(CompactionRequested(trigger="self"),))
