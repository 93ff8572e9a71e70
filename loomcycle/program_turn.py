"""One turn of a code-js run: let its program go on until it wants a tool, ends or fails.

The program is run again from recorded results at every turn (``replay/codejs``), or a child
process holds it where it waits, once running it again costs more. Its clock and randomness come
from the journal, so recovery and verification see the same turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Raw

from events.vocabulary import (
    ModelAnswered,
    ModelFailed,
    Text,
    ToolCall,
    ToolUse,
    Usage,
    UsageTotals,
)
from loomcycle.journal import RunJournal
from loomcycle.resident_program import Resident, Residents
from loomcycle.services import Services
from replay.codejs import Call, Failed, Finished, Interpreter, Outcome, timed_out
from replay.codejs import ToolCall as ProgramCall
from replay.machine import CallModel
from replay.program import CODE_MODEL, RecordedCalls, call_id, program_hash, program_of

_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="program")
"""Their own, so that endless programs keep nobody waiting but each other."""

RESIDENTS = Residents()

WORTH_S = 0.01
"""Processor time of turns run again after which a child pays: a start takes about as much."""
DEARER = 4
"""How much more that is each time a child is lost."""


class ProgramTurn:
    """Performs ``CallModel`` effects of one code-js run, keeping its interpreter between turns."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal
        self._program = program_of(journal.state)
        self._interpreter = Interpreter(self._program)
        self._calls = RecordedCalls()
        self._resident: Resident | None = None
        self._spent_s = 0.0
        self._worth_s = WORTH_S

    def close(self) -> None:
        self._interpreter.close()
        if self._resident is not None:
            self._resident.close()
            self._resident = None

    async def perform(self, effect: CallModel) -> None:
        """Stage the turn's events."""
        journal, state = self._journal, self._journal.state
        asked = program_hash(state, self._program)
        outcome = await self._advance()
        if isinstance(outcome, ProgramCall) and self._remaining_s() <= 0:
            outcome = timed_out(self._program.budget_s)
        match outcome:
            case Failed():
                journal.stage(
                    ModelFailed(
                        request=asked,
                        iteration=effect.iteration,
                        attempt=effect.attempt,
                        error=outcome.message,
                        partial=True,
                    )
                )
                return
            case ProgramCall():
                use = ToolUse(
                    call_id(state.run, outcome.index), outcome.name, Raw(outcome.input_json)
                )
                journal.stage(ToolCall(tool_use=use))
            case Finished(text):
                if text:
                    journal.stage(Text(text=text, attempt=effect.attempt))
        totals = UsageTotals(input_tokens=0, output_tokens=0, model=CODE_MODEL)
        journal.stage(Usage(usage=totals))
        journal.stage(
            ModelAnswered(
                request=asked,
                iteration=effect.iteration,
                attempt=effect.attempt,
                provider=state.provider,
                model=CODE_MODEL,
                stop_reason="tool_use" if isinstance(outcome, ProgramCall) else "end_turn",
            )
        )

    async def _advance(self) -> Outcome:
        """What the program does next."""
        recorded = self._calls.of(self._journal.state)
        if self._resident is None and self._spent_s >= self._worth_s:
            self._resident = RESIDENTS.place(self._interpreter)
        if self._resident is not None:
            outcome = await self._resident.advance(recorded, time_limit_s=self._remaining_s())
            if outcome is not None:
                return outcome
            self._resident = None
            self._spent_s, self._worth_s = 0.0, self._worth_s * DEARER
        return await self._run_again(recorded)

    async def _run_again(self, recorded: Sequence[Call]) -> Outcome:
        """When cancelled, the thread is told and left behind."""
        left: list[str] = []
        advance = partial(
            self._interpreter.advance,
            recorded,
            time_limit_s=self._remaining_s(),
            cancelled_because=lambda: left[0] if left else None,
        )
        try:
            outcome, spent_s = await asyncio.get_running_loop().run_in_executor(
                _THREADS, _timed, advance
            )
        except asyncio.CancelledError:
            left.append("the turn was given up")
            self._interpreter = Interpreter(self._program)
            raise
        self._spent_s += spent_s
        if isinstance(outcome, ProgramCall) and self._spent_s < self._worth_s:
            # Not before this task waits: a thread that starts now would take its interpreter lock.
            asyncio.get_running_loop().call_soon(_THREADS.submit, self._interpreter.prepare)
        return outcome

    def _remaining_s(self) -> float:
        """Wall-clock seconds that are left of the run's budget."""
        spent_s = (self._services.now_ns() - self._journal.state.started_ns) / 1e9
        return self._program.budget_s - spent_s


def _timed(advance: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """With the processor time that it took, in seconds."""
    began = time.thread_time()
    outcome = advance()
    return outcome, time.thread_time() - began
