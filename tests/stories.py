"""Runs told as lists of events, and folded: the vocabulary of the machine's tests."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw
from msgspec.structs import replace

from events.commit import Commit, decode, encode_commit, new_event
from events.content import ContentBlock, Segment
from events.plan import RunPlan, ToolSpec
from events.vocabulary import (
    CancelRequested,
    Event,
    ModelAnswered,
    ModelAttemptFailed,
    ModelFailed,
    RunClaimed,
    RunStarted,
    Started,
    ToolCall,
    ToolResult,
    ToolStarted,
    ToolUse,
    Usage,
    UsageTotals,
    UserInput,
)
from replay.conversation import Message
from replay.fold import apply
from replay.machine import MACHINE_VERSION
from replay.request import hash_of, model_request
from replay.state import State

PLAN = RunPlan(
    agent="teller",
    provider="mock",
    model="mock-generic",
    tools=(ToolSpec("Read", "reads", Raw(b"{}")), ToolSpec("Memory", "keeps", Raw(b"{}"))),
)


def opens(text: str = "hi", **facts: object) -> list[Event]:
    given = {
        "run": "r_ab00000000000001",
        "session": "s_ab00000000000001",
        "agent": "teller",
        "agent_id": "a_ab00000000000001",
        "plan": "0" * 64,
        "machine": MACHINE_VERSION,
        "started_ns": 1,
    }
    return [RunStarted(**{**given, **facts}), says(text), Started()]  # type: ignore[arg-type]


def says(text: str, inbox: str = "") -> UserInput:
    return UserInput(payload=(Segment("user", (ContentBlock(text=text),)),), inbox=inbox)


def calls(call_id: str, name: str = "Read", arguments: str = "{}") -> ToolCall:
    return ToolCall(tool_use=ToolUse(call_id, name, Raw(arguments.encode())))


def begins(call_id: str) -> ToolStarted:
    return ToolStarted(tool_use_id=call_id, effect_id=f"e.{call_id}")


def results(call_id: str, text: str = "ok", name: str = "Read") -> ToolResult:
    return ToolResult(tool_use=ToolUse(call_id, name, Raw(b"{}")), text=text)


def costs(tokens: int = 3) -> Usage:
    return Usage(usage=UsageTotals(input_tokens=tokens, output_tokens=1, model="mock-generic"))


def cancels(reason: str = "enough") -> CancelRequested:
    return CancelRequested(reason=reason, inbox="i_1")


def claims(worker: str = "w2") -> RunClaimed:
    return RunClaimed(worker=worker)


def fails(error: str = "mock 500: broken", *, partial: bool = False) -> ModelFailed:
    return ModelFailed(request="?", iteration=0, error=error, partial=partial)


def stumbles(error: str = "mock 503: busy", *, partial: bool = False) -> ModelAttemptFailed:
    return ModelAttemptFailed(request="?", iteration=0, attempt=1, error=error, partial=partial)


def answers(stop_reason: str = "end_turn") -> ModelAnswered:
    return ModelAnswered(request="?", iteration=0, stop_reason=stop_reason)


def told(*events: Event, plan: RunPlan = PLAN, history: Iterable[Message] = ()) -> State:
    """Fold a story; model turns get the request hash and turn number that are right for them."""
    return goes_on(State(plan, list(history)), *events)


def goes_on(state: State, *events: Event) -> State:
    """``state`` with ``events`` folded into it."""
    for event in events:
        apply(state, _fitting(state, event), state.n + 1, state.n + 1)
    return state


def _fitting(state: State, event: Event) -> Event:
    turns = ModelAnswered | ModelFailed | ModelAttemptFailed
    if isinstance(event, turns) and event.request == "?":
        asked = hash_of(state, model_request(state, event.max_tokens))
        return replace(event, request=asked, iteration=state.iteration, attempt=state.attempt)
    return event


def committed(
    *groups: list[Event], plan: RunPlan = PLAN, epochs: tuple[int, ...] = ()
) -> list[Commit]:
    """Chained commits of a story, one for each group."""
    state = State(plan)
    commits: list[Commit] = []
    prev, n = "", 1
    for c, group in enumerate(groups, 1):
        fitted = []
        for event in group:
            event = _fitting(state, event)
            apply(state, event, state.n + 1, c)
            fitted.append(new_event(event))
        data, prev, header, _ = encode_commit(
            run="r_ab00000000000001",
            c=c,
            prev=prev,
            epoch=epochs[c - 1] if epochs else 1,
            writer="w1",
            first_n=n,
            ts=c,
            events=fitted,
        )
        n += len(header.events)
        commits.append(decode(data, c))
    return commits
