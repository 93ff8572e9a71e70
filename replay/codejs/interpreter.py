"""Runs a code-js program up to its next outcome, by turn-wise replay.

Each turn executes the program from its beginning in a fresh context and hands it the recorded
results; nothing of an execution is kept. No value of the program is read outside the limits:
everything comes back as one JSON text of the prelude.
Specification: section 6 of code-js.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import quickjs

from replay.codejs.contexts import FEED, REPORT, RUN, contexts_for
from replay.codejs.outcome import (
    Call,
    Failed,
    Finished,
    Outcome,
    ToolCall,
    cancelled,
    diverged,
    load_failed,
    threw,
    timed_out,
)
from replay.codejs.program import Program, check, fnv1a_32
from replay.codejs.resident import Opening
from replay.codejs.watchdog import WATCHDOG

_FIELDS = 4
_FEED_ARGUMENTS = _FIELDS * 500
_ENTRY = "\n;typeof run === 'function' ? run : undefined"

_ENGINE_MEMORY = 1 << 20
_REPORT_MEMORY = 4 << 20
_REPORT_TIME_S = 0.5
_FIRST_SLICE_S = 0.05
_SLICE_GROWTH = 8
_LONGEST_TIME_S = 1e6

_NO_RUN = "index.js defines no top-level run(input) function"
_ASYNCHRONOUS = (
    "run: run must be an ordinary function; nothing is awaited here, so it cannot be async or a "
    "generator (tool calls return their results directly)"
)
_OUT_OF_MEMORY = "InternalError: out of memory"


def never_cancelled() -> str | None:
    return None


class Interpreter:
    """The next outcome of one run's program, turn after turn.

    Between turns it holds references to the recorded calls only, so any number may be parked and
    any of them may be dropped at any time. Not for use by two threads at once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        lines = program.source.count("\n") + 1
        self._contexts = contexts_for(lines)
        self._arguments = (
            well_formed(program.source) + _ENTRY,
            lines,
            msgspec.json.encode(program.input, order="sorted").decode(),
            msgspec.json.encode(list(program.tools)).decode(),
            self._contexts.clock,
            float(fnv1a_32(program.seed)),  # the wrapper cuts integers to 32 bits
            float(program.started_ms),
            int(program.whole_paths),
        )
        self._slice_s = _FIRST_SLICE_S
        self._seen: list[Call] = []
        self._journal: list[str | int] = []
        self._journal_size = 0

    def advance(
        self,
        recorded: Sequence[Call],
        *,
        time_limit_s: float,
        cancelled_because: Callable[[], str | None] = never_cancelled,
    ) -> Outcome:
        """Replay all ``recorded`` calls of the run and answer what the program does next.

        ``time_limit_s`` is what is left of the run's budget, in seconds, at the start. It is
        enforced as CPU time of the process, so the caller still compares the outcome's arrival
        with its own clock. ``cancelled_because`` answers the cause once the run is cancelled; it
        is asked between attempts, from the calling thread. Blocks the calling thread, without
        the interpreter lock, while JavaScript executes; call it from a thread.
        """
        if time_limit_s <= 0:
            return timed_out(self.program.budget_s)
        self._feed(recorded)
        for time_s in _slices(self._slice_s, min(time_limit_s, _LONGEST_TIME_S)):
            if (cause := cancelled_because()) is not None:
                return cancelled(cause)
            outcome = self._attempt(time_s)
            if outcome is not None:
                self._slice_s = max(_FIRST_SLICE_S, time_s)
                return self._unless_cancelled(outcome, cancelled_because)
        return self._unless_cancelled(timed_out(self.program.budget_s), cancelled_because)

    def prepare(self) -> None:
        """Do ahead, in any thread, what the next :meth:`advance` (of any program) would do first:
        call it once a turn while the tool call is under way. Never needed, bounded in memory."""
        self._contexts.prepare()

    def opening(self, recorded: Sequence[Call]) -> Opening:
        """What another process needs to execute the program itself, as :meth:`advance` would,
        and to hold it where it waits for a result."""
        self._feed(recorded)
        return Opening(
            prelude=self._contexts.prelude,
            arguments=self._arguments,
            pages=[tuple(page) for page in self._pages()],
            program_memory=self.program.memory_limit,
            memory=self._memory(),
            stack=self.program.stack_limit,
            report_memory=_REPORT_MEMORY,
            report_time_s=_REPORT_TIME_S,
        )

    def close(self) -> None:
        """Forget the recorded calls. The next :meth:`advance` is as good as the first."""
        self._seen, self._journal, self._journal_size = [], [], 0

    @staticmethod
    def _unless_cancelled(outcome: Outcome, cause_of: Callable[[], str | None]) -> Outcome:
        if isinstance(outcome, Failed) and outcome.code == "code_agent_replay_divergence":
            return outcome
        cause = cause_of()
        return outcome if cause is None else cancelled(cause)

    def _feed(self, recorded: Sequence[Call]) -> None:
        """Keep the flat form of the recorded calls; usually there is one more than last turn."""
        known = len(self._seen)
        if known > len(recorded) or not all(map(operator.is_, self._seen, recorded)):
            self.close()
            known = 0
        for call in recorded[known:]:
            given = str(bytes(call.input), "utf-8", "replace")
            texts = (well_formed(call.name), given, well_formed(call.result_text))
            self._journal += (*texts, int(call.is_error))
            self._journal_size += sum(map(len, texts))
            self._seen.append(call)

    def _pages(self) -> Iterator[list[str | int]]:
        for at in range(0, len(self._journal), _FEED_ARGUMENTS):
            yield self._journal[at : at + _FEED_ARGUMENTS]

    def _memory(self) -> int:
        """Bytes: recorded results are not the program's."""
        return self.program.memory_limit + _ENGINE_MEMORY + 2 * self._journal_size

    def _attempt(self, time_s: float) -> Outcome | None:
        """One execution in a fresh context; None: ``time_s`` was not enough."""
        context, host = self._contexts.take()
        context.set_max_stack_size(self.program.stack_limit)
        for page in self._pages():
            host(FEED, *page)
        memory = self._memory()
        context.set_memory_limit(memory)
        context.set_time_limit(time_s)
        with WATCHDOG.guard(context, time_s, memory) as execution:
            problem = self._execute(host)
        if execution.exceeded:
            return None
        memory += _REPORT_MEMORY
        context.set_memory_limit(memory)
        context.set_time_limit(_REPORT_TIME_S)
        with WATCHDOG.guard(context, _REPORT_TIME_S, memory):
            report = _report(host)
        return self._outcome(report, problem)

    def _execute(self, host: quickjs.Object) -> str:
        """Run the program; what left the context is an interrupt, a halt or lack of memory."""
        try:
            host(RUN, *self._arguments)
        except quickjs.JSException as error:
            return str(error)
        return ""

    def _outcome(self, report: list[Any], problem: str) -> Outcome:
        match report:
            case ["suspended", index, tool, text]:
                return ToolCall(index, tool, text.encode())
            case ["diverged", index, tool, text, actual, actual_text]:
                return diverged(index, (tool, text), (actual, actual_text))
            case ["short", index, tool, text]:
                return diverged(index, (tool, text), None)
            case ["finished", text]:
                return Finished(text)
            case ["undefined"]:
                return threw(_NO_RUN)
            case ["asynchronous"]:
                return threw(_ASYNCHRONOUS)
            case ["evaluating", syntax, text]:
                return self._unparsed(syntax) or threw(f"evaluating index.js: {text}")
            case ["running", _, text]:
                return threw(f"run: {text}")
        cause = problem.partition("\n")[0]
        return threw(f"run: {_OUT_OF_MEMORY if cause in ('', 'null') else cause}")

    def _unparsed(self, syntax_error: bool) -> Failed | None:
        if not syntax_error:
            return None
        problem = check(self.program.source)
        if problem is None:
            return None
        return load_failed(self.program.agent_name, f"parse: {problem}")


def _report(host: quickjs.Object) -> list[Any]:
    try:
        return msgspec.json.decode(host(REPORT), type=list[Any])
    except quickjs.JSException:
        return ["running", False, "an exception that cannot be converted to text"]


def _slices(length: float, time_limit_s: float) -> Iterator[float]:
    """Attempts of growing length, from what the last turn needed, that add up to the limit.

    The first are short so that a cancellation is seen soon; the last has three quarters.
    """
    while length * _SLICE_GROWTH < time_limit_s:
        yield length
        time_limit_s -= length
        length *= _SLICE_GROWTH
    yield time_limit_s


def well_formed(text: str) -> str:
    """``text`` with halves of surrogate pairs replaced: the engine takes UTF-8 only."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
