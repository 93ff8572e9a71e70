"""What a turn of a code-js program is given and what comes out of it, with the error texts.

Data and wording only; nothing here runs JavaScript. Texts follow section 7 of the code-js
specification: a stable code, a colon, and the rest.
"""

from typing import Literal, TypeAlias

import msgspec

FailureCode: TypeAlias = Literal[
    "code_agent_load",
    "code_agent_threw",
    "code_agent_timeout",
    "code_agent_cancelled",
    "code_agent_replay_divergence",
]

_INPUT_SHOWN = 120
_MESSAGE_SHOWN = 8192


class Call(msgspec.Struct, frozen=True):
    """One recorded tool call of the current run, with its result.

    ``input`` is JSON text in any key order and spacing. It is bytes and not a parsed object
    because replay compares it as text first: handing back :attr:`ToolCall.input_json` as it was
    costs no parsing. ``result_text`` is the tool's text, or its error when ``is_error``.
    """

    name: str
    input: bytes | msgspec.Raw
    result_text: str
    is_error: bool = False


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """The program waits for this call. ``index`` counts the run's calls from 0; ``input_json``
    is one JSON object, keys ascending at every level."""

    index: int
    name: str
    input_json: bytes


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The program ended. ``text`` is None where no text event is due, and is never empty."""

    text: str | None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The run ends as failed (cancelled: as cancelled). ``message`` begins with ``code``."""

    code: FailureCode
    message: str


Outcome: TypeAlias = ToolCall | Finished | Failed


def failed(code: FailureCode, rest: str) -> Failed:
    if len(rest) > _MESSAGE_SHOWN:
        rest = rest[:_MESSAGE_SHOWN] + "…"
    return Failed(code, f"{code}: {rest}")


def load_failed(agent_name: str, problem: str) -> Failed:
    """The body of ``agent_name`` cannot be used: missing, unreadable, bad name, syntax error."""
    return failed("code_agent_load", f'code-agent "{agent_name}": {problem}')


def threw(rest: str) -> Failed:
    return failed("code_agent_threw", rest)


def timed_out(budget_s: float) -> Failed:
    return failed(
        "code_agent_timeout",
        f"the run used up its budget of {go_duration(budget_s)}; raise run_timeout_seconds of "
        "the request or the agent, or LOOMCYCLE_CODE_AGENTS_RUN_TIMEOUT_SECONDS",
    )


def cancelled(cause: str) -> Failed:
    return failed("code_agent_cancelled", cause)


_HINTS = (
    "A program must make the same calls whenever it is replayed. Usual causes: the body or "
    "allowed_tools changed while the run was paused, or a recorded input was masked."
)


def diverged(index: int, recorded: tuple[str, str], actual: tuple[str, str] | None) -> Failed:
    """Call ``index`` (from 0) differs; pairs are (tool, input JSON), None: the run ended."""
    made = "ended without it" if actual is None else f"made {_shown(actual)}"
    return failed(
        "code_agent_replay_divergence",
        f"call {index}: the journal holds {_shown(recorded)}, the program {made}. {_HINTS}",
    )


def _shown(call: tuple[str, str]) -> str:
    name, text = call
    return f"{name} {text if len(text) <= _INPUT_SHOWN else text[:_INPUT_SHOWN] + '…'}"


def go_duration(seconds: float) -> str:
    """``seconds`` in the notation of Go durations: ``2m0s``, ``1h0m0.5s``, ``250ms``, ``0s``."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and nanoseconds else ""
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if nanoseconds < size * 1_000:
            return f"{sign}{_fraction(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_fraction(rest, 1_000_000_000)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _fraction(value: int, size: int) -> str:
    whole, rest = divmod(value, size)
    if rest == 0:
        return str(whole)
    digits = len(str(size)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")
