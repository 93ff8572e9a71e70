"""Proof of a journal: re-derive every effect and every request hash, name the first difference.

Nothing is called: what a model or tool said is taken from the journal, what the runtime asked
and decided is derived again. A program's turns are run again (``replay/codejs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw, Struct

from events.commit import Chain, Commit, JournalError, Record
from events.plan import RunPlan
from events.vocabulary import (
    AnswerRejected,
    BudgetRefused,
    ChildFinished,
    ChildStarted,
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Done,
    Error,
    Event,
    ModelAnswered,
    ModelAttemptFailed,
    ModelFailed,
    ModelSwitched,
    OutputRejected,
    RunFinished,
    ToolResult,
    Unrecognised,
    type_of,
)
from replay import budget_proof, call_proof, compaction_proof, wait_proof
from replay.children import child_ids
from replay.codejs import Failed, Finished, Interpreter
from replay.codejs import ToolCall as ProgramCall
from replay.conversation import Message
from replay.fold import Misplaced, apply, sealed_by
from replay.machine import (
    CODE_PROVIDER,
    HANDLE_TAKEN,
    MACHINE_VERSION,
    CallModel,
    CallTools,
    CloseCall,
    Compact,
    Finish,
    RejectOutput,
    StartChildren,
    closing,
    next_effect,
    rejection,
)
from replay.program import RecordedCalls, program_hash, program_of
from replay.recoveries import Recoveries
from replay.request import hash_of, model_request
from replay.state import Phase, State

BY_CLOCK = ("code_agent_timeout", "code_agent_cancelled")
"""Failures of a program that come from outside of it: taken from the journal as they are."""

PROGRAM_TIME_LIMIT_S = 60.0


class Report(Struct, frozen=True, kw_only=True):
    """``difference`` is "" when the journal is proven; ``complete`` when it has its terminal."""

    run: str
    commits: int
    events: int
    effects: int
    complete: bool
    difference: str = ""

    @property
    def ok(self) -> bool:
        return not self.difference


class Difference(Exception):
    """The journal says one thing, the machine another."""


def verify(
    plan: RunPlan,
    commits: Iterable[Commit],
    history: Sequence[Message] = (),
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check a whole journal. Never raises for what a journal may hold."""
    state = State(plan, list(history))
    checker = _Checker(state)
    chain: Chain | None = None
    done = events = 0
    difference = ""
    run = ""
    try:
        for commit in commits:
            run = run or commit.run
            chain = chain or Chain(commit.run)
            chain.check(commit)
            _commit(state, checker, commit)
            done += 1
            events += len(commit.bodies)
            progress(done)
    except JournalError as cause:
        difference = str(cause)
    finally:
        checker.close()
    return Report(
        run=run,
        commits=done,
        events=events,
        effects=checker.effects,
        complete=state.phase is Phase.FINISHED,
        difference=difference,
    )


def _commit(state: State, checker: _Checker, commit: Commit) -> None:
    for record in commit.records():
        event = record.event
        try:
            if isinstance(event, Unrecognised):
                state.n, state.last_ts = record.n, record.ts
                continue
            checker.before(event)
            apply(state, event, record.n, record.ts, masked=record.header.masked)
        except (Difference, Misplaced) as cause:
            raise _at(commit, record, str(cause)) from None
    header = commit.header
    sealed_by(state, header.c, commit.hash, header.epoch, header.writer)


def _at(commit: Commit, record: Record, reason: str) -> JournalError:
    return JournalError(
        commit.run, commit.c, commit.seq, f"event {record.n} ({record.type}): {reason}"
    )


class _Checker:
    """Compares each event with what the machine would have done in the state before it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._interpreter: Interpreter | None = None
        self._calls = RecordedCalls()
        self._ending: list[Event] = []
        self._recoveries = Recoveries()
        self.effects = 0

    def close(self) -> None:
        if self._interpreter is not None:
            self._interpreter.close()

    def before(self, event: Event) -> None:
        """Raises Difference."""
        if self._state.failure is not None or isinstance(event, ModelSwitched):
            problem = self._recoveries.problem(self._state, event)
            if problem:
                raise Difference(problem)
        problem = call_proof.problem(self._state, event) or wait_proof.problem(self._state, event)
        if problem:
            raise Difference(problem)
        match event:
            case ModelAnswered() | ModelFailed() | ModelAttemptFailed():
                self._model(event)
            case ToolResult():
                self._tool(event)
            case ChildStarted() | ChildFinished() if not self._ending:
                self._child(event)
            case CompactionMade() | CompactionSkipped() | ContextCompaction():
                self._compaction(event)
            case AnswerRejected() | OutputRejected():
                self._rejection(event)
            case BudgetRefused():
                self._refusal()
            case Error() if compaction_proof.is_failure(self._state, event):
                pass
            case Done():
                self._last_word(event)
            case Error() if self._state.phase is not Phase.NEW:
                self._last_word(event)
            case RunFinished():
                self._finish(event)
            case _:
                if self._ending:
                    raise Difference("follows the run's last word")
                if self._state.phase is Phase.OPENING and self._state.facts is not None:
                    self._opening()

    def _opening(self) -> None:
        if self._state.started.machine > MACHINE_VERSION:
            raise Difference(f"machine version {self._state.started.machine} is not known here")

    def _model(self, event: ModelAnswered | ModelFailed | ModelAttemptFailed) -> None:
        state = self._state
        self.effects += 1
        effect = next_effect(state)
        if not isinstance(effect, CallModel):
            raise Difference(f"a model was asked where the machine would {_name(effect)}")
        if (event.iteration, event.attempt) != (effect.iteration, effect.attempt):
            raise Difference(
                f"turn {event.iteration} attempt {event.attempt} where the machine is at "
                f"turn {effect.iteration} attempt {effect.attempt}"
            )
        if state.plan.provider == CODE_PROVIDER and not isinstance(event, ModelAttemptFailed):
            self._program(event)
            return
        problem = budget_proof.problem(state, event.max_tokens)
        if problem:
            raise Difference(problem)
        asked = hash_of(state, model_request(state, event.max_tokens))
        if event.request != asked:
            raise Difference(f"request hash {event.request} recorded, {asked} derived")

    def _program(self, event: ModelAnswered | ModelFailed) -> None:
        state = self._state
        program = program_of(state)
        asked = program_hash(state, program)
        if event.request != asked:
            raise Difference(f"program hash {event.request} recorded, {asked} derived")
        if isinstance(event, ModelFailed) and event.error.startswith(BY_CLOCK):
            return
        if self._interpreter is None:
            self._interpreter = Interpreter(program)
        outcome = self._interpreter.advance(
            self._calls.of(state), time_limit_s=PROGRAM_TIME_LIMIT_S
        )
        match outcome, event:
            case ProgramCall(), ModelAnswered() if len(state.turn_calls) == 1:
                call = state.turn_calls[0]
                if call.name != outcome.name or not _same(call.input, outcome.input_json, call.n):
                    raise Difference(f"the program called {call.name}, derived is {outcome.name}")
            case Finished(text), ModelAnswered() if not state.turn_calls:
                if (text or "") != state.turn_text and not self._is_masked_turn():
                    raise Difference("the program's answer differs from the one derived")
            case Failed(_, message), ModelFailed():
                if message != event.error and "[redacted" not in event.error:
                    raise Difference(f"the program failed otherwise: derived {message!r}")
            case _:
                raise Difference(f"the program's turn is derived as {type(outcome).__name__}")

    def _is_masked_turn(self) -> bool:
        return any(place == (len(self._state.messages), 0) for place in self._masked_places())

    def _masked_places(self) -> list[tuple[int, int]]:
        return list(self._state.masked.values())

    def _tool(self, event: ToolResult) -> None:
        state = self._state
        self.effects += 1
        effect = next_effect(state)
        if isinstance(effect, CloseCall) and effect.call.id == event.tool_use.id:
            derived = (effect.text, effect.is_error)
            hidden = effect.call.reviewed or "[redacted" in event.text
            if not hidden and (event.text, event.is_error) != derived:
                raise Difference(f"the call's result is derived as {effect.text!r}")
            return
        if not isinstance(effect, CallTools) or event.tool_use.id not in {
            call.id for call in effect.calls
        }:
            raise Difference(
                f"a result of call {event.tool_use.id} where the machine would {_name(effect)}"
            )

    def _child(self, event: ChildStarted | ChildFinished) -> None:
        """A child follows from its call; one without a run could not be started."""
        if isinstance(event, ChildFinished) and event.run:
            return
        self.effects += 1
        effect = next_effect(self._state)
        if not isinstance(effect, StartChildren):
            raise Difference(f"a child where the machine would {_name(effect)}")
        call, (index, spawn) = effect.call, effect.spawns[0]
        if (event.tool_use_id, event.index) != (call.id, index):
            raise Difference(f"the next child is derived as entry {index} of call {call.id}")
        if isinstance(event, ChildStarted):
            derived = (*child_ids(self._state.run, call.n, index), spawn.name)
            if (event.run, event.session, event.agent_id, event.agent) != derived:
                raise Difference(f"the child is derived as {derived}")

    def _compaction(self, event: Event) -> None:
        self.effects += not isinstance(event, ContextCompaction)
        problem = compaction_proof.problem(self._state, event)
        if problem:
            raise Difference(problem)

    def _rejection(self, event: AnswerRejected | OutputRejected) -> None:
        self.effects += 1
        effect = next_effect(self._state)
        if not isinstance(effect, RejectOutput):
            raise Difference(f"an answer is rejected where the machine would {_name(effect)}")
        derived = rejection(self._state, effect)
        if type(event) is not type(derived):
            raise Difference(f"the rejection is derived as {type_of(derived)}")
        said = event.text if isinstance(event, AnswerRejected) else event.error
        if said != effect.error and "[redacted" not in said:
            raise Difference(f"the answer is rejected for another reason: {effect.error!r}")

    def _refusal(self) -> None:
        """Whether the budget was spent stands in the ledger; that a call was due is derived."""
        effect = next_effect(self._state)
        if not isinstance(effect, CallModel):
            raise Difference(f"a call is refused where the machine would {_name(effect)}")

    def _last_word(self, event: Event) -> None:
        if event == Error(error=HANDLE_TAKEN) and not self._state.iteration:
            return
        effect = next_effect(self._state)
        if not isinstance(effect, Finish):
            raise Difference(f"the run's last word where the machine would {_name(effect)}")
        self.effects += 1
        self._ending = closing(self._state, effect)
        if not _alike(event, self._ending[0]):
            raise Difference(f"derived {self._ending[0]!r}")

    def _finish(self, event: RunFinished) -> None:
        if event.error == HANDLE_TAKEN and not self._state.iteration:
            return
        if not self._ending or not _alike(event, self._ending[1]):
            raise Difference("the end of the run differs from the one derived")
        self._ending = []  # what is added after the end belongs to those who continue


def _name(effect: object) -> str:
    match effect:
        case CallModel(iteration):
            return f"ask the model (turn {iteration})"
        case CallTools(calls):
            return f"run {len(calls)} tool calls"
        case StartChildren(_, spawns):
            return f"start {len(spawns)} children"
        case CloseCall(call):
            return f"close call {call.id}"
        case Compact(trigger):
            return f"compact ({trigger})"
        case Finish(status):
            return f"end the run ({status})"
        case _:
            return "do nothing"


def _same(recorded: Raw, derived: bytes, n: int) -> bool:
    return bytes(recorded) == derived or b"[redacted" in bytes(recorded)


def _alike(recorded: Event, derived: Event) -> bool:
    """Equal, or equal but for what was masked when it was stored."""
    if recorded == derived:
        return True
    if isinstance(recorded, Error) and isinstance(derived, Error):
        return "[redacted" in recorded.error
    return False
