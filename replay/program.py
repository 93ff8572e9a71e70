"""A code-js run as the script host sees it: program, input and recorded calls, from state only."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from replay.codejs import Call, Program
from replay.codejs.program import DETERMINISTIC_SEED, DETERMINISTIC_STARTED_MS, run_input, seed_of
from replay.state import State

CODE_MODEL = "loomcycle/code-js"
"""The model name that usage of a program's turn reports."""

WHOLE_PATHS = 3
"""From this version of the machine on errors about arguments, which programs can read, say where
in an argument a value stands."""

_canonical = msgspec.json.Encoder(order="deterministic").encode


def program_of(state: State) -> Program:
    """The run's program; its clock starts with the run, its input never changes."""
    plan, facts = state.plan, state.started
    metadata: dict[str, Any] = {}
    if isinstance(facts.metadata, Raw):
        metadata = msgspec.json.decode(facts.metadata)
    return Program(
        source=plan.code or "",
        agent_name=facts.agent,
        tools=[tool.name for tool in plan.tools],
        input=run_input(state.input_text, metadata, user_id=facts.user_id, agent_name=facts.agent),
        seed=DETERMINISTIC_SEED if plan.deterministic else seed_of(facts.agent_id, facts.agent),
        started_ms=DETERMINISTIC_STARTED_MS
        if plan.deterministic
        else state.started_ns // 1_000_000,
        budget_s=plan.run_timeout_seconds,
        whole_paths=facts.machine >= WHOLE_PATHS,
    )


class RecordedCalls:
    """The finished calls of a run, converted once each while the run grows."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def of(self, state: State) -> list[Call]:
        for call in state.recorded[len(self._calls) :]:
            self._calls.append(Call(call.name, call.input, call.text, call.is_error))
        return self._calls


def program_hash(state: State, program: Program) -> str:
    """What ``model.answered`` records for a program's turn: code, input and conversation."""
    facts = _canonical((program.code_hash, program.tools, program.seed, program.started_ms))
    conversation = state.rolling.over(state.messages)
    return sha256(facts + _canonical(program.input) + conversation).hexdigest()


def call_id(run: str, index: int) -> str:
    """The id of a program's call: unique over runs, the same in every replay."""
    return f"cj-{int(sha256(run.encode()).hexdigest()[:8], 16)}-{index}"
