"""What is known of a run after some of its events: plain data, changed only by ``fold.py``."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Raw, Struct

from events.plan import RunPlan, SystemBlock
from events.vocabulary import (
    CallPrepared,
    CallWaiting,
    CancelRequested,
    ChildFinished,
    CompactionMade,
    InterruptClosed,
    ModelAttemptFailed,
    RunAmended,
    RunFinished,
    RunParked,
    RunRef,
    RunStarted,
    UsageTotals,
)
from replay.conversation import Message
from replay.hashing import RollingHash


class Phase(StrEnum):
    """Where a run stands between two events; the table of moves is in ``machine.py``."""

    NEW = "new"
    OPENING = "opening"
    MODEL = "model"
    TOOLS = "tools"
    ENDING = "ending"
    AWAITING = "awaiting"
    FINISHED = "finished"


class Child(Struct):
    """A child that an Agent call started; ``finished`` is None while it runs."""

    run: str
    agent_id: str
    finished: ChildFinished | None = None


class Call(Struct):
    """A tool call of the current turn; ``n`` is its event's number, hence its effect id.

    ``waiting`` stands while the result has to come from elsewhere, ``closed`` once the question
    it waited for is settled, ``allowed`` when a person let it run (what ``waiting.bound`` says).
    ``asked`` counts how often it began to wait; ``reviewed``: hooks had a say in its result.
    ``given``: the arguments under which it waits for children, a person's edit included.
    ``leave_ns``: the journal's time since which an ``allowed`` call may run, that of its answer
    or of a claim after it; 0 until it is stored.
    """

    n: int
    ts: int
    id: str
    name: str
    input: Raw
    started: bool = False
    prepared: CallPrepared | None = None
    waiting: CallWaiting | None = None
    closed: InterruptClosed | None = None
    allowed: bool = False
    leave_ns: int = 0
    asked: int = 0
    reviewed: bool = False
    given: Raw | None = None
    children: dict[int, Child] = {}
    done: bool = False
    text: str = ""
    is_error: bool = False


class RecordedCall(Struct, frozen=True, gc=False):
    """A finished call of this run, as a program replays it."""

    name: str
    input: Raw
    text: str
    is_error: bool


class State:
    """The fold of a run's events. ``n`` is the number of the last event folded.

    ``messages`` is the conversation as the model sees it: earlier runs of the session first
    (``history`` of them), masked where the journal is masked. ``iteration`` counts finished
    model turns, ``spent`` the failed attempts that count like turns; ``attempt`` the calls made
    for the turn that is due. ``provider``, ``asked_model``, ``effort`` and ``context_window`` are
    those of the pair that serves now; ``model`` is what it calls itself. ``window`` and ``used``
    are tokens as the last turn (or an estimate after a compaction) tells them.
    """

    __slots__ = (
        "amended",
        "answered",
        "asked_model",
        "attempt",
        "budget_refused",
        "calls",
        "cancel",
        "claims",
        "commit_hash",
        "commits",
        "compacted_at",
        "compacting",
        "context_window",
        "effort",
        "epoch",
        "error",
        "facts",
        "failed_partial",
        "failure",
        "final_text",
        "finished",
        "has_masks",
        "history",
        "input_text",
        "iteration",
        "last_ts",
        "last_usage",
        "made",
        "masked",
        "messages",
        "model",
        "n",
        "owed",
        "parked",
        "phase",
        "plan",
        "provider",
        "recorded",
        "rejected",
        "retries",
        "rolling",
        "skipped_at",
        "spend",
        "spent",
        "started_ns",
        "stop_reason",
        "switches",
        "system",
        "system_prompt",
        "taken",
        "turn_calls",
        "turn_n",
        "turn_text",
        "usage",
        "used",
        "writer",
    )

    def __init__(self, plan: RunPlan, history: list[Message] | None = None) -> None:
        self.plan = plan
        self.messages: list[Message] = list(history or ())
        self.history = len(self.messages)
        self.rolling = RollingHash()
        self.phase = Phase.NEW
        self.facts: RunStarted | None = None
        self.system: tuple[SystemBlock, ...] = plan.system
        self.system_prompt = ""
        self.input_text = ""
        self.started_ns = 0
        self.iteration = 0
        self.spent = 0
        self.attempt = 1
        self.answered = 0
        """Turns that the model answered in this run, failed ones not counted."""
        self.failure: ModelAttemptFailed | None = None
        self.retries = 0
        """Of this turn's calls, by the pair that serves (machine 1: since a call of it opened)."""
        self.switches = 0
        self.turn_text = ""
        self.turn_n = 0
        self.turn_calls: list[Call] = []
        self.calls: list[Call] = []
        self.recorded: list[RecordedCall] = []
        self.has_masks = False
        self.masked: dict[int, tuple[int, int]] = {}
        self.stop_reason = ""
        self.error = ""
        self.failed_partial = False
        self.final_text = ""
        self.usage: UsageTotals | None = None
        self.last_usage: UsageTotals | None = None
        self.spend: dict[tuple[str, str], UsageTotals] = {}
        """Tokens by provider and model as they were asked for, summaries included."""
        self.provider = plan.provider
        self.model = plan.model
        self.asked_model = plan.model
        self.effort = plan.effort
        self.context_window = plan.context_window
        self.used = 0
        self.compacting = ""
        """Who asked for a compaction that is due: ``self`` or ``manual``."""
        self.made: CompactionMade | None = None
        self.amended: RunAmended | None = None
        self.compacted_at = -2
        self.skipped_at = -1
        """Iterations at whose beginning the last compaction was made, or given up."""
        self.rejected = 0
        """Final answers that did not fit the schema (machines 1, 2: of the run; since then: since
        the last input)."""
        self.owed = False
        """Whether an input after the opening, or a rejection, has had no turn of the model yet."""
        self.budget_refused = ""
        self.parked: RunParked | None = None
        self.cancel: CancelRequested | None = None
        self.finished: RunFinished | None = None
        self.claims = 0
        self.taken: set[str] = set()
        self.n = 0
        self.last_ts = 0
        self.commits = 0
        self.commit_hash = ""
        self.epoch = 0
        self.writer = ""

    @property
    def run(self) -> str:
        return self.started.run

    @property
    def started(self) -> RunStarted:
        """The opening facts. Raises ValueError before ``run.started`` was folded."""
        if self.facts is None:
            raise ValueError("the run has not started")
        return self.facts

    @property
    def ref(self) -> RunRef:
        return RunRef(self.run, self.n)

    @property
    def interactive(self) -> bool:
        return self.facts is not None and self.facts.interactive

    def pending(self) -> list[Call]:
        """Calls of the current turn that have no result, in the model's order."""
        return [call for call in self.calls if not call.done]
