"""Agent: have other agents do a part of the work. Specification: tools.md section 3.10.

A call is checked as a whole before anything starts; then the run waits for its children, which
``loomcycle/children.py`` starts. What a child may be is decided there, not here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from events.plan import Compaction
from events.vocabulary import CallWaiting
from loomcycle.config.agent_schema import CompactionConfig
from loomcycle.tools.base import CallContext, Deferred, Repeat, ToolOutput
from loomcycle.tools.policy import side_effect_class
from replay.children import MAX_DEPTH, MAX_SPAWNS, PARALLEL_SPAWN, SPAWN, Request, Spawn, read


class Agent:
    """Spawns one child, or several at a time."""

    name = "Agent"
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Agent")
    description = (
        "Hand a task to another agent by name and get its final answer. op spawn runs one"
        " (name, prompt); op parallel_spawn runs up to"
        f" {MAX_SPAWNS} side by side (spawns) and returns all their results. A sub-agent knows"
        " nothing of this conversation: its prompt must say everything it needs."
    )

    def __init__(self) -> None:
        self.input_schema = _input_schema()

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput | Deferred:
        try:
            request = read(input_json)
        except (msgspec.DecodeError, RecursionError) as error:
            return ToolOutput(f"invalid input JSON: {error}", True)
        state = context.state
        problem = _problem(request)
        if not problem and state is not None and state.started.depth >= MAX_DEPTH:
            problem = f"max sub-agent recursion depth ({MAX_DEPTH}) reached"
        if problem:
            return ToolOutput(problem, True)
        return Deferred(CallWaiting(tool_use_id=context.tool_use_id, kind="children"))


def _problem(request: Request) -> str:
    """What is wrong with the whole call, "" when nothing is."""
    match request.op or SPAWN:
        case "spawn":
            return _single(request)
        case "parallel_spawn":
            return _parallel(request)
        case other:
            return f'unknown op "{other}" (must be one of: {SPAWN}, {PARALLEL_SPAWN})'


def _single(request: Request) -> str:
    if request.spawns is not None:
        return f"{SPAWN}: spawns belongs to op {PARALLEL_SPAWN}"
    return _entry(request.entries()[0])


def _parallel(request: Request) -> str:
    for field in ("name", "prompt", "def_id"):
        if getattr(request, field):
            return f"{PARALLEL_SPAWN}: {field} belongs into the entries of spawns"
    spawns = request.spawns or []
    if not spawns:
        return f"{PARALLEL_SPAWN}: missing required field: spawns (1 to {MAX_SPAWNS} entries)"
    if len(spawns) > MAX_SPAWNS:
        return f"{PARALLEL_SPAWN}: {len(spawns)} spawns, the maximum is {MAX_SPAWNS}"
    for index, spawn in enumerate(spawns):
        problem = _entry(spawn)
        if problem:
            return f"{PARALLEL_SPAWN}: spawns[{index}]: {problem}"
    return ""


def _entry(spawn: Spawn) -> str:
    if not spawn.name.strip():
        return "missing required field: name"
    if not spawn.prompt:
        return "missing required field: prompt"
    return _compaction(spawn.compaction)


def _compaction(given: Compaction | None) -> str:
    if given is None:
        return ""
    try:
        msgspec.convert(msgspec.structs.asdict(given), CompactionConfig)
    except msgspec.ValidationError as error:
        return f"compaction: {error}"
    return ""


def _input_schema() -> bytes:
    text = {"type": "string"}
    compaction = {
        "type": "object",
        "description": "Overrides of context compaction for this sub-agent.",
        "properties": {
            "enabled": {"type": "boolean"},
            "target_percentage": {"type": "integer", "minimum": 10, "maximum": 50},
            "keep_last_n": {"type": "integer", "minimum": 0},
            "keep_first": {"type": "boolean"},
            "autocompact_at_pct": {"type": "integer", "minimum": 50, "maximum": 95},
            "model": text,
        },
        "additionalProperties": False,
    }
    entry: dict[str, Any] = {
        "name": {"type": "string", "description": "Which agent."},
        "prompt": {"type": "string", "description": "Its whole task."},
        "def_id": {"type": "string", "description": "Pin this version of its definition."},
        "compaction": compaction,
    }
    spawns = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_SPAWNS,
        "items": {
            "type": "object",
            "properties": entry,
            "required": ["name", "prompt"],
            "additionalProperties": False,
        },
    }
    return msgspec.json.encode(
        {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": [SPAWN, PARALLEL_SPAWN]},
                **entry,
                "spawns": spawns,
            },
            "additionalProperties": False,
        }
    )
