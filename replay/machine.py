"""The machine of a run: every move between phases, and the next effect of every state.

Rules. (1) A run opens with ``run.started``, its input and ``started``. (2) A model turn is text,
tool calls and usage, closed by ``model.answered``; a turn that stops for anything but tools, or
without a call, ends the run. (3) All calls of a turn get one result each before the next turn.
(4) A cancel wins at the next boundary. (5) ``run.finished`` is terminal and stands once.
Pure: state in, effect out. A change of an old journal's effects is a new ``MACHINE_VERSION``.
"""

from __future__ import annotations

from msgspec import Struct

from events.vocabulary import Done, Error, Event, RunFinished, Status, UsageTotals
from replay.state import Call, Phase, State

MACHINE_VERSION = 1

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
        "run.claimed": (Phase.TOOLS,),
        "run.cancel_requested": (Phase.TOOLS,),
        "error": (Phase.TOOLS,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.ENDING: {
        "run.claimed": (Phase.ENDING,),
        "run.cancel_requested": (Phase.ENDING,),
        "error": (Phase.ENDING,),
        "done": (Phase.ENDING,),
        "run.finished": (Phase.FINISHED,),
    },
    Phase.FINISHED: {
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


class Finish(Struct, frozen=True):
    """End the run. The events of :func:`closing` are committed with the run's end."""

    status: Status
    stop_reason: str = ""
    error: str = ""


class Halt(Struct, frozen=True):
    """Nothing is left to do."""


Effect = CallModel | CallTools | Finish | Halt


def next_effect(state: State) -> Effect:
    """What the owner of the run has to do now."""
    if state.phase is Phase.FINISHED:
        return Halt()
    if state.claims > MAX_IDLE_CLAIMS:
        return Finish("failed", "heartbeat_timeout", "heartbeat timeout")
    if state.cancel is not None:
        return Finish("cancelled", state.cancel.reason)
    match state.phase:
        case Phase.MODEL if state.iteration >= state.plan.max_iterations:
            return Finish("completed", "max_iterations")
        case Phase.MODEL:
            return CallModel(state.iteration, state.attempt)
        case Phase.TOOLS:
            return CallTools(tuple(state.pending()))
        case Phase.ENDING if state.error:
            prefix = "provider error: " if state.failed_partial else ""
            return Finish("failed", "", prefix + state.error)
        case Phase.ENDING:
            return Finish("completed", state.stop_reason)
        case _:
            raise ValueError(f"no effect in phase {state.phase.value}")


def closing(state: State, finish: Finish) -> list[Event]:
    """The events that end a run: what the client sees last, then the terminal fact."""
    totals = _totals(state)
    last: Event
    match finish.status:
        case "completed":
            last = Done(usage=totals, stop_reason=finish.stop_reason)
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
        model=usage.model or state.model,
        provider=state.provider,
    )
