"""Folding, deciding and verifying touch no clock, no randomness, no file and no network."""

from __future__ import annotations

import builtins
import datetime
import os
import random
import secrets
import socket
import time
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from events.plan import ToolSpec
from events.vocabulary import Event, ModelAnswered, Text
from replay.codejs import Interpreter, ToolCall
from replay.machine import CODE_PROVIDER, Finish, closing, next_effect
from replay.program import call_id, program_hash, program_of
from replay.verify import verify
from tests.stories import PLAN, answers, calls, committed, costs, opens, results, told

FORBIDDEN: list[tuple[Any, str]] = [
    (time, "time"),
    (time, "time_ns"),
    (time, "monotonic"),
    (time, "monotonic_ns"),
    (time, "sleep"),
    (random, "random"),
    (random, "getrandbits"),
    (os, "urandom"),
    (secrets, "token_bytes"),
    (socket, "socket"),
    (builtins, "open"),
]


class Impure(AssertionError):
    pass


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        def refused(*_: Any, **__: Any) -> Any:
            raise Impure(name)

        return refused

    for module, name in FORBIDDEN:
        monkeypatch.setattr(module, name, refuse(name))

    class NoClock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            raise Impure("datetime.now")

    monkeypatch.setattr(datetime, "datetime", NoClock)


def test_the_guard_notices_a_clock(guard: None) -> None:
    with pytest.raises(Impure):
        time.time()


def test_a_model_run_is_folded_and_proven_under_the_guard(guard: None) -> None:
    story = [opens(), [calls("t1"), costs(), answers("tool_use")], [results("t1")]]
    last: list[Event] = [Text(text="done"), costs(), answers()]
    finish = next_effect(told(*(e for group in [*story, last] for e in group)))
    assert isinstance(finish, Finish)
    state = told(*(e for group in [*story, last] for e in group))
    report = verify(PLAN, committed(*story, [*last, *closing(state, finish)]))
    assert report.difference == ""


SCRIPT = """
function run(input) {
  var seen = Memory.incr({scope: "user", key: "n", delta: Math.floor(Math.random() * 10)});
  return "at " + Date.now() + " saw " + JSON.stringify(seen);
}
"""


def test_a_program_is_run_again_and_proven_under_the_guard(guard: None) -> None:
    plan = replace(
        PLAN,
        provider=CODE_PROVIDER,
        model="counter",
        code=SCRIPT,
        tools=(ToolSpec("Memory", "keeps", Raw(b"{}")),),
        run_timeout_seconds=60,
        max_iterations=2**20,
    )
    opened = told(*opens(), plan=plan)
    program = program_of(opened)
    interpreter = Interpreter(program)
    outcome = interpreter.advance([], time_limit_s=60)
    interpreter.close()
    assert isinstance(outcome, ToolCall)
    call = calls(call_id(opened.run, 0), "Memory", outcome.input_json.decode())
    first: list[Event] = [
        call,
        ModelAnswered(request=program_hash(opened, program), iteration=0, stop_reason="tool_use"),
    ]
    report = verify(plan, committed(opens(), first, plan=plan))
    assert report.difference == ""
    assert report.effects == 1
    forged = [replace(call, tool_use=replace(call.tool_use, input=Raw(b"{}"))), first[1]]
    assert "the program called" in verify(plan, committed(opens(), forged, plan=plan)).difference
