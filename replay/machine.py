"""The machine of a run: every move between phases, and the next effect of every state.

Rules. (1) A run opens with ``run.started``, its input and ``started``. (2) A model turn is text,
tool calls and usage, closed by ``model.answered``; a turn that stops for anything but tools, or
without a call, ends the run. (3) All calls of a turn get one result each before the next turn.
(4) A cancel wins at the next boundary. (5) ``run.finished`` is terminal and stands once.
Pure: state in, effect out. A change of an old journal's effects is a new ``MACHINE_VERSION``.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from events.vocabulary import (
    AnswerRejected,
    Done,
    Error,
    Event,
    OutputRejected,
    RunFinished,
    Status,
    UsageTotals,
)
from replay import children, compaction, interrupts, output
from replay.children import Spawn
from replay.state import Call, Phase, State

MACHINE_VERSION = 3
"""The machine of new runs; each version below says what it changed."""

BROKEN_STREAMS_COUNT = 2
"""A call whose stream broke uses a retry up like any failed call; in version 1 it gave the run
its retries back."""

ANSWERS_ARE_OWED = 3
"""The cap on turns leaves room for an answer to the last input, or for a repair; without a valid
answer a schema fails the run there. Each input has a repair of its own, and clients are told of
it. An interactive run ends at its cap. Before, the cap cut all this off, a run had one repair,
and an interactive one waited for an input that it did not answer."""

CODE_PROVIDER = "code-js"

HANDLE_TAKEN = "agent_id collision; run never started"
"""Error of a run that ended at its admission, by no effect of the machine."""

MAX_IDLE_CLAIMS = 5
"""A run claimed so often without progress fails, so that it cannot poison workers for ever."""

MOVES: dict[Phase, dict[str, tuple[Phase, ...]]] = {
    Phase.NEW: {
        "run.started": (Phase.OPENING,),
        "run.forked": (Phase.NEW,),
        "run.imported": (Phase.NEW,),
        "run.withdrawn": (Phase.FINISHED,),
    },
    Phase.OPENING: {
        "user_input": (Phase.OPENING,),
        "system_prompt": (Phase.OPENING,),
        "started": (Phase.MODEL,),
    },
    Phase.MODEL: {
        "user_input": (Phase.MODEL,),
        "model.attempt_failed": (Phase.MODEL,),
        "model.switched": (Phase.MODEL,),
        "provider_fallback": (Phase.MODEL,),
        "cache_invalidated": (Phase.MODEL,),
        "reasoning_invalidated": (Phase.MODEL,),
        "model_downgraded": (Phase.MODEL,),
        "fallback_suppressed": (Phase.MODEL,),
        "compaction.made": (Phase.MODEL,),
        "compaction.skipped": (Phase.MODEL,),
        "context_compaction": (Phase.MODEL,),
        "budget.refused": (Phase.MODEL,),
        "run.parked": (Phase.MODEL,),
        "model.started": (Phase.MODEL,),
        "retry": (Phase.MODEL,),
        "text": (Phase.MODEL,),
        "tool_call": (Phase.MODEL,),
        "usage": (Phase.MODEL,),
        "model.answered": (Phase.TOOLS, Phase.ENDING),
        "model.failed": (Phase.ENDING,),
        "run.claimed": (Phase.MODEL,),
        "run.cancel_requested": (Phase.MODEL,),
        "error": (Phase.MODEL,),
        "done": (Phase.MODEL,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.TOOLS: {
        "tool.started": (Phase.TOOLS,),
        "tool_result": (Phase.TOOLS, Phase.MODEL),
        "call.prepared": (Phase.TOOLS,),
        "call.reviewed": (Phase.TOOLS,),
        "call.waiting": (Phase.TOOLS,),
        "host_widened": (Phase.TOOLS,),
        "interruption_pending": (Phase.TOOLS,),
        "interrupt.closed": (Phase.TOOLS,),
        "interrupt.notified": (Phase.TOOLS,),
        "child.started": (Phase.TOOLS,),
        "child.finished": (Phase.TOOLS,),
        "spawn_child_started": (Phase.TOOLS,),
        "spawn_child_result": (Phase.TOOLS,),
        "compaction.requested": (Phase.TOOLS,),
        "run.parked": (Phase.TOOLS,),
        "run.claimed": (Phase.TOOLS,),
        "run.cancel_requested": (Phase.TOOLS,),
        "error": (Phase.TOOLS,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.ENDING: {
        "user_input": (Phase.MODEL,),
        "output.rejected": (Phase.MODEL,),
        "answer_rejected": (Phase.MODEL,),
        "awaiting_input": (Phase.AWAITING,),
        "run.claimed": (Phase.ENDING,),
        "run.cancel_requested": (Phase.ENDING,),
        "error": (Phase.ENDING,),
        "done": (Phase.ENDING,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.AWAITING: {
        "user_input": (Phase.MODEL,),
        "run.parked": (Phase.AWAITING,),
        "run.claimed": (Phase.AWAITING,),
        "run.cancel_requested": (Phase.AWAITING,),
        "compaction.requested": (Phase.AWAITING,),
        "compaction.made": (Phase.AWAITING,),
        "compaction.skipped": (Phase.AWAITING,),
        "context_compaction": (Phase.AWAITING,),
        "error": (Phase.AWAITING,),
        "done": (Phase.AWAITING,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.FINISHED: {
        "run.amended": (Phase.FINISHED,),
        "compaction.made": (Phase.FINISHED,),
        "context_compaction": (Phase.FINISHED,),
        "run.archived": (Phase.FINISHED,),
        "run.imported": (Phase.FINISHED,),
    },
}
"""Phase -> event type -> phases it may lead to. Anything else is not a journal."""


class CallModel(Struct, frozen=True):
    """Ask the model of the plan (a provider, or for code-js the program) for a turn."""

    iteration: int
    attempt: int


class CallTools(Struct, frozen=True):
    """Perform the calls without result; a ``started`` one was begun before a crash."""

    calls: tuple[Call, ...]


class StartChildren(Struct, frozen=True):
    """Start these entries (index and request) of an Agent call."""

    call: Call
    spawns: tuple[tuple[int, Spawn], ...]


class CloseCall(Struct, frozen=True):
    """What a call waited for is known: this is its result."""

    call: Call
    text: str
    is_error: bool = False


class Compact(Struct, frozen=True):
    """Have the older part of the conversation summarised (``replay/compaction.py``)."""

    trigger: str


class RejectOutput(Struct, frozen=True):
    """Tell the model why its final answer is none, and let it try once more."""

    error: str


class AwaitInput(Struct, frozen=True):
    """Say that the run waits for a person."""

    since_turn: int


class Park(Struct, frozen=True):
    """Let the run go until its inbox gets something, or the time ``until_ns`` comes (0: never)."""

    reason: Literal["input", "calls"]
    until_ns: int = 0


class Finish(Struct, frozen=True):
    """End the run. The events of :func:`closing` are committed with the run's end."""

    status: Status
    stop_reason: str = ""
    error: str = ""


class Halt(Struct, frozen=True):
    """Nothing is left to do."""


Effect = (
    CallModel
    | CallTools
    | StartChildren
    | CloseCall
    | Compact
    | RejectOutput
    | AwaitInput
    | Park
    | Finish
    | Halt
)

DEFERRING = frozenset({"Agent", "Interruption"})
"""Tools whose results come from elsewhere: they begin before the others of their turn."""

SPENT = "all permitted iterations were spent on failed attempts"

NO_ANSWER = "output_schema: no final answer within the permitted iterations"

MAX_REPAIRS = 1
"""So often may a final answer be wrong before it ends the run."""


def next_effect(state: State) -> Effect:
    """What the owner of the run has to do now."""
    if state.phase is Phase.FINISHED:
        return Halt()
    if state.claims > MAX_IDLE_CLAIMS:
        return Finish("failed", "heartbeat_timeout", "heartbeat timeout")
    if state.cancel is not None:
        return Finish("cancelled", state.cancel.reason)
    match state.phase:
        case Phase.MODEL:
            return _turn(state)
        case Phase.TOOLS:
            return _calls(state)
        case Phase.ENDING:
            return _end(state)
        case Phase.AWAITING if state.compacting:
            return Compact(state.compacting)
        case Phase.AWAITING:
            return Park("input")
        case _:
            raise ValueError(f"no effect in phase {state.phase.value}")


def _turn(state: State) -> Effect:
    if state.budget_refused:
        return Finish("failed", "budget_exceeded", state.budget_refused)
    owed = state.owed and _answers_are_owed(state)
    if _at_cap(state) and not owed:
        return _cut_off(state)
    trigger = compaction.due(state)
    if trigger:
        return Compact(trigger)
    return CallModel(state.iteration, state.attempt)


def _at_cap(state: State) -> bool:
    return state.iteration + state.spent >= state.plan.max_iterations


def _answers_are_owed(state: State) -> bool:
    return state.started.machine >= ANSWERS_ARE_OWED


def _cut_off(state: State) -> Finish:
    if state.spent and not state.answered:
        return Finish("failed", "", SPENT)
    if isinstance(state.plan.output_schema, Raw) and _answers_are_owed(state):
        return Finish("failed", "output_invalid", NO_ANSWER)
    return Finish("completed", "max_iterations")


def _calls(state: State) -> Effect:
    pending = state.pending()
    ready = [call for call in pending if call.waiting is None or call.allowed]
    deferring = [call for call in ready if call.name in DEFERRING]
    if deferring:
        return CallTools(tuple(deferring))
    for call in pending:
        waiting = call.waiting
        if waiting is None or call.allowed:
            continue
        if waiting.kind == "children":
            spawns = children.due(call, state.plan.max_concurrent_children)
            if spawns:
                return StartChildren(call, spawns)
            if children.all_finished(call):
                return CloseCall(call, *children.result(call))
        elif call.closed is not None:
            return CloseCall(call, *interrupts.result(call, waiting, call.closed))
    if ready:
        return CallTools(tuple(ready))
    until = [c.waiting.until_ns for c in pending if c.waiting and c.waiting.until_ns]
    return Park("calls", min(until, default=0))


def _end(state: State) -> Effect:
    if state.error:
        prefix = "provider error: " if state.failed_partial else ""
        return Finish("failed", "", prefix + state.error)
    schema = state.plan.output_schema
    if isinstance(schema, Raw):
        problem = output.problem(schema, state.final_text)
        if problem and state.rejected < MAX_REPAIRS:
            return RejectOutput(problem)
        if problem:
            return Finish("failed", "output_invalid", f"output_schema: {problem}")
    if not state.interactive:
        return Finish("completed", state.stop_reason)
    if _at_cap(state) and _answers_are_owed(state):
        return Finish("completed", "max_iterations")
    return AwaitInput(max(0, state.iteration - 1))


def rejection(state: State, effect: RejectOutput) -> Event:
    """The event that tells the model, and since machine 3 clients too."""
    if _answers_are_owed(state):
        return AnswerRejected(text=effect.error)
    return OutputRejected(error=effect.error)


def closing(state: State, finish: Finish) -> list[Event]:
    """The events that end a run: what the client sees last, then the terminal fact."""
    totals = _totals(state)
    last: Event
    match finish.status:
        case "completed":
            last = Done(usage=totals, stop_reason=finish.stop_reason)
        case "cancelled" if state.phase is Phase.AWAITING:
            last = Done(usage=totals, stop_reason=state.stop_reason)
        case "cancelled":
            last = Error(error=f"cancelled: {finish.stop_reason}")
        case _:
            last = Error(error=state.error or finish.error)
    return [
        last,
        RunFinished(
            status=finish.status,
            stop_reason=finish.stop_reason,
            error=finish.error,
            usage=totals,
        ),
    ]


def _totals(state: State) -> UsageTotals:
    usage = state.usage or UsageTotals(input_tokens=0, output_tokens=0)
    return UsageTotals(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_read_input_tokens=usage.cache_read_input_tokens,
        model=("" if state.switches else usage.model) or state.model,
        provider=state.provider,
    )
