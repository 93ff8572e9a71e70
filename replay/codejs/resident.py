"""A program held at its frontier by another process: what that is given, what of it is believed.

Data only; the process belongs to the runtime (``loomcycle/resident_program.py``). Program code may
have taken it over, so an answer counts only where it is well-formed and any program with these
tools could have given it.
"""

from typing import Any, NamedTuple, TypeAlias

import msgspec

from replay.codejs.outcome import Failed, Finished, ToolCall, threw

Argument: TypeAlias = str | int | float

_report = msgspec.json.Decoder(list[Any]).decode
_argument = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Opening(NamedTuple):
    """All that determines an execution, as plain values. Sizes in bytes, times in seconds.

    ``pages`` are the recorded calls, each page the arguments of one ``FEED``; ``arguments`` are
    those of ``RUN``; ``memory`` is the limit while these calls are recorded.
    """

    prelude: str
    arguments: tuple[Argument, ...]
    pages: list[tuple[Argument, ...]]
    program_memory: int
    memory: int
    stack: int
    report_memory: int
    report_time_s: float


def believed(
    answer: bytes, tools: frozenset[str], index: int
) -> ToolCall | Finished | Failed | None:
    """What ``answer`` stands for: call ``index`` (from 0), the final text, or what was thrown.

    None for anything else: only a new execution can say what that is.
    """
    try:
        match _report(answer):
            case ["suspended", int(number), str(tool), str(text)]:
                given = text.encode()
                _argument(given)
                return ToolCall(index, tool, given) if number == index and tool in tools else None
            case ["finished", None]:
                return Finished(None)
            case ["finished", str(text)] if text:
                return Finished(text)
            case ["running", bool(), str(text)]:
                return threw(f"run: {text}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None
