"""Shows a run's frames to a person: the answer flows, tool calls fold to a line each.

On a terminal with rich; otherwise the answer goes to stdout and everything else to stderr, so
that a pipe gets the answer alone. Text of models and tools never reaches a terminal with its
control characters.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from loomcycle.cli.client import Frame

INPUT_WIDTH = 72
RESULT_WIDTH = 60


class View(Protocol):
    """Where a transcript is written to."""

    def answer(self, text: str) -> None:
        """A piece of the model's text."""
        ...

    def note(self, text: str, style: str = "") -> None:
        """One line about what happens."""
        ...


class Plain:
    """Two streams, no colours."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        self._open = False

    def answer(self, text: str) -> None:
        self._out.write(printable(text))
        self._out.flush()
        self._open = not text.endswith("\n")

    def note(self, text: str, style: str = "") -> None:
        if self._open:
            self._out.write("\n")
            self._out.flush()
            self._open = False
        self._err.write(printable(text) + "\n")
        self._err.flush()


class Rich:
    """A terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = False

    def answer(self, text: str) -> None:
        self._console.out(printable(text), end="", highlight=False)
        self._open = not text.endswith("\n")

    def note(self, text: str, style: str = "") -> None:
        if self._open:
            self._console.out("")
            self._open = False
        self._console.print(printable(text), style=style or None, markup=False, highlight=False)


def view_for(out: TextIO, err: TextIO) -> View:
    """Rich when both streams are a terminal."""
    if not (out.isatty() and err.isatty()):
        return Plain(out, err)
    from rich.console import Console

    return Rich(Console(file=out, soft_wrap=True))


class Transcript:
    """Feed it frames in order; how the run ended, and its ids, are known afterwards."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.run_id = self.session_id = self.agent_id = ""
        self.completed = False
        self.error = ""

    def show(self, frame: Frame) -> None:
        """Write one frame and note what it says; unknown events are skipped."""
        self.note(frame)
        show = _SHOWN.get(frame.event)
        if show is not None:
            show(self, frame.body)

    def note(self, frame: Frame) -> None:
        """Take in a frame without showing it."""
        self.completed = frame.event == "done"
        self.error = str(frame.body.get("error", "")) if frame.event == "error" else ""
        if frame.event == "agent":
            self.run_id = str(frame.body.get("run_id", ""))
            self.session_id = str(frame.body.get("session_id", ""))
            self.agent_id = str(frame.body.get("agent_id", ""))

    def _agent(self, body: dict[str, Any]) -> None:
        self._view.note(f"run {self.run_id} in session {self.session_id}", "dim")

    def _text(self, body: dict[str, Any]) -> None:
        self._view.answer(str(body.get("text", "")))

    def _text_reset(self, body: dict[str, Any]) -> None:
        self._view.note("(interrupted; the model starts this turn again)", "yellow")

    def _tool_call(self, body: dict[str, Any]) -> None:
        use = body.get("tool_use", {})
        arguments = json.dumps(use.get("input"), ensure_ascii=False, separators=(", ", ": "))
        self._view.note(f"→ {use.get('name')} {one_line(arguments, INPUT_WIDTH)}", "cyan")

    def _tool_result(self, body: dict[str, Any]) -> None:
        text, failed = str(body.get("text", "")), bool(body.get("is_error"))
        mark, style = ("✗", "red") if failed else ("←", "dim")
        name = body.get("tool_use", {}).get("name")
        size = f"{len(text.encode()):,} bytes"
        self._view.note(f"{mark} {name} {size}: {one_line(text, RESULT_WIDTH)}", style)

    def _steer(self, body: dict[str, Any]) -> None:
        said = body.get("user_input", {})
        self._view.note(f"» {one_line(str(said.get('text', '')), INPUT_WIDTH)}", "magenta")

    def _retry(self, body: dict[str, Any]) -> None:
        retry = body.get("retry", {})
        self._view.note(
            f"… {retry.get('provider')}: attempt {retry.get('attempt')} after"
            f" {retry.get('wait_ms')} ms ({retry.get('reason')})",
            "yellow",
        )

    def _answer_rejected(self, body: dict[str, Any]) -> None:
        self._view.note(
            f"(no valid answer: {body.get('text')}; the model is asked again)", "yellow"
        )

    def _done(self, body: dict[str, Any]) -> None:
        usage = body.get("usage", {})
        stop = body.get("stop_reason") or "done"
        model = f", {usage['model']}" if usage.get("model") else ""
        self._view.note(
            f"{stop}: {usage.get('input_tokens', 0):,} tokens in,"
            f" {usage.get('output_tokens', 0):,} out{model}",
            "dim",
        )

    def _error(self, body: dict[str, Any]) -> None:
        self._view.note(f"error: {self.error}", "bold red")


_SHOWN: dict[str, Callable[[Transcript, dict[str, Any]], None]] = {
    "agent": Transcript._agent,
    "text": Transcript._text,
    "text_reset": Transcript._text_reset,
    "tool_call": Transcript._tool_call,
    "tool_result": Transcript._tool_result,
    "steer": Transcript._steer,
    "retry": Transcript._retry,
    "answer_rejected": Transcript._answer_rejected,
    "done": Transcript._done,
    "error": Transcript._error,
}


def printable(text: str) -> str:
    """``text`` without control characters other than newline and tab."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))


def one_line(text: str, width: int) -> str:
    """White space folded, cut at ``width`` characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= width else folded[: width - 1] + "…"


def standard_view() -> View:
    """On this process' stdout and stderr."""
    return view_for(sys.stdout, sys.stderr)
