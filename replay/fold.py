"""State from events: one small function for each event type, checked against ``machine.MOVES``.

Folding a prefix and then the rest gives the same state as folding all at once. An event that
has no place in the current phase raises :class:`Misplaced`; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from events.commit import Chain, Commit, JournalError
from events.content import Segment, flatten
from events.plan import RunPlan, SystemBlock
from events.vocabulary import (
    TYPES,
    AnswerRejected,
    BudgetRefused,
    CallPrepared,
    CallReviewed,
    CallWaiting,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    CompactionMade,
    CompactionRequested,
    CompactionSkipped,
    ContextCompaction,
    Event,
    InterruptClosed,
    ModelAnswered,
    ModelAttemptFailed,
    ModelFailed,
    ModelStarted,
    ModelSwitched,
    OutputRejected,
    Retry,
    RunAmended,
    RunClaimed,
    RunFinished,
    RunParked,
    RunStarted,
    RunWithdrawn,
    SystemPrompt,
    Text,
    ToolCall,
    ToolResult,
    ToolStarted,
    Unrecognised,
    Usage,
    UsageTotals,
    UserInput,
    type_of,
)
from replay import approval, compaction, conversation, output
from replay.conversation import Block, Message
from replay.hashing import RollingHash
from replay.history import completion
from replay.machine import ANSWERS_ARE_OWED, BROKEN_STREAMS_COUNT, MOVES
from replay.state import Call, Child, Phase, RecordedCall, State

UNTRUSTED_IS_NOT_CACHED = 3
"""From this machine version on a cacheable untrusted block of the system is none."""

METADATA_LABEL = (
    "Run metadata, provided by the operator of this system (trusted, not written by the user):"
)


class Misplaced(ValueError):
    """An event that cannot follow what came before."""


def apply(state: State, event: Event, n: int, ts: int, *, masked: bool = False) -> None:
    """Fold one event. Raises Misplaced; the state is then unusable."""
    if n != state.n + 1:
        raise Misplaced(f"event {n} after event {state.n}")
    step = _STEPS[state.phase].get(type(event))
    if step is None:
        raise Misplaced(f"event {n}: {type_of(event)} in phase {state.phase.value}")
    handler, to = step
    if handler is not None:
        decided: Phase | None = handler(state, event, n, ts, masked)
        to = to or decided
    if to is not None:
        state.phase = to
    state.n = n
    state.last_ts = ts
    if masked:
        state.has_masks = True


def apply_commit(state: State, commit: Commit) -> None:
    """Fold a stored commit whose place in the chain was checked. Raises JournalError."""
    try:
        for envelope, event in commit.events():
            if isinstance(event, Unrecognised):
                state.n, state.last_ts = envelope.n, envelope.ts
            else:
                apply(state, event, envelope.n, envelope.ts, masked=envelope.masked)
    except Misplaced as cause:
        raise JournalError(commit.run, commit.c, commit.seq, str(cause)) from None
    header = commit.header
    sealed_by(state, header.c, commit.hash, header.epoch, header.writer)


def sealed_by(state: State, c: int, hash_: str, epoch: int, writer: str) -> None:
    """Note the commit that holds the events folded last; ``state.last_ts`` is its time."""
    state.commits, state.commit_hash, state.epoch, state.writer = c, hash_, epoch, writer
    for call in state.calls:
        if call.allowed and not call.leave_ns:
            call.leave_ns = state.last_ts


def fold(plan: RunPlan, commits: Iterable[Commit], history: Sequence[Message] = ()) -> State:
    """Fold a whole journal, checking its chain. Raises JournalError."""
    state = State(plan, list(history))
    chain: Chain | None = None
    for commit in commits:
        if chain is None:
            chain = Chain(commit.run)
        chain.check(commit)
        apply_commit(state, commit)
    return state


def opening_message(payload: Iterable[Segment]) -> Message | None:
    """All user blocks of all segments as one message; None when there are none."""
    blocks: list[Block] = [
        conversation.Text(flatten(block), block.cacheable and block.type != "untrusted-block")
        for segment in payload
        if segment.role == "user"
        for block in segment.content
    ]
    return Message("user", tuple(blocks)) if blocks else None


def system_blocks(payload: Iterable[Segment], machine: int) -> tuple[SystemBlock, ...]:
    """The blocks of the caller's own system segments, in a run of this machine version."""
    guarded = machine >= UNTRUSTED_IS_NOT_CACHED
    return tuple(
        SystemBlock(
            flatten(block),
            block.cacheable and not (guarded and block.type == "untrusted-block"),
        )
        for segment in payload
        if segment.role == "system"
        for block in segment.content
    )


def metadata_block(metadata: Raw) -> SystemBlock | None:
    """The extra system block of a run's metadata (http-runs.md section 3.4)."""
    if not metadata or bytes(metadata) in (b"{}", b"null"):
        return None
    pretty = msgspec.json.format(bytes(metadata), indent=2).decode()
    return SystemBlock(f"{METADATA_LABEL}\n{pretty}")


def _run_started(s: State, e: RunStarted, n: int, ts: int, masked: bool) -> None:
    s.facts = e
    s.started_ns = e.started_ns or ts


def _user_input(s: State, e: UserInput, n: int, ts: int, masked: bool) -> Phase:
    if e.inbox:
        s.taken.add(e.inbox)
    message = opening_message(e.payload)
    if message is not None:
        if masked:
            s.masked[n] = (len(s.messages), -1)
        s.messages.append(message)
    if s.phase is not Phase.OPENING:
        s.owed = True
        if s.started.machine >= ANSWERS_ARE_OWED:
            s.rejected = 0
        return Phase.MODEL
    if message is not None:
        s.input_text = "".join(b.text for b in message.blocks if isinstance(b, conversation.Text))
    facts = s.started
    own = system_blocks(e.payload, facts.machine)
    extra = metadata_block(facts.metadata) if isinstance(facts.metadata, Raw) else None
    s.system = s.plan.system + ((extra,) if extra else ()) + own
    return Phase.OPENING


def _system_prompt(s: State, e: SystemPrompt, n: int, ts: int, masked: bool) -> None:
    s.system_prompt = e.payload.system_prompt


def _model_started(s: State, e: ModelStarted, n: int, ts: int, masked: bool) -> None:
    s.attempt = e.attempt
    s.turn_text, s.turn_calls = "", []


def _text(s: State, e: Text, n: int, ts: int, masked: bool) -> None:
    s.turn_text = e.text
    if masked:
        s.masked[n] = (len(s.messages), 0)


def _tool_call(s: State, e: ToolCall, n: int, ts: int, masked: bool) -> None:
    use = e.tool_use
    if masked:
        s.masked[n] = (len(s.messages), len(s.turn_calls) + (1 if s.turn_text else 0))
    s.turn_calls.append(Call(n, ts, use.id, use.name, use.input))


def _attempt_failed(s: State, e: ModelAttemptFailed, n: int, ts: int, masked: bool) -> None:
    s.failure = e
    s.spent += 1
    s.attempt = e.attempt + 1
    if e.partial and s.started.machine < BROKEN_STREAMS_COUNT:
        s.retries = 0
    s.turn_text, s.turn_calls = "", []


def _retry(s: State, e: Retry, n: int, ts: int, masked: bool) -> None:
    if s.failure is not None:  # not a wait inside of a call
        s.retries += 1
    s.failure = None


def _switched(s: State, e: ModelSwitched, n: int, ts: int, masked: bool) -> None:
    s.failure = None
    s.retries = 0
    s.switches += 1
    s.provider, s.model, s.asked_model = e.provider, e.model, e.model
    s.context_window = e.context_window
    if e.effort is not None:
        s.effort = e.effort
    if e.clear_reasoning:
        s.messages = [replace(m, reasoning="") if m.reasoning else m for m in s.messages]
        s.rolling = RollingHash()


def _usage(s: State, e: Usage, n: int, ts: int, masked: bool) -> None:
    s.last_usage = e.usage
    s.used = (
        e.usage.input_tokens + e.usage.cache_read_input_tokens + e.usage.cache_creation_input_tokens
    )
    s.usage = _add(s.usage, e.usage)
    pair = (s.provider, s.asked_model)
    s.spend[pair] = _add(s.spend.get(pair), e.usage)


def _model_answered(s: State, e: ModelAnswered, n: int, ts: int, masked: bool) -> Phase:
    blocks: list[Block] = [conversation.Text(s.turn_text)] if s.turn_text else []
    blocks += [conversation.ToolUse(c.id, c.name, c.input) for c in s.turn_calls]
    s.messages.append(Message("assistant", tuple(blocks), e.reasoning))
    s.final_text = s.turn_text
    s.provider, s.model = e.provider or s.provider, e.model or s.model
    s.stop_reason = e.stop_reason
    s.calls, s.turn_calls, s.turn_text = s.turn_calls, [], ""
    s.iteration += 1
    s.answered += 1
    s.owed = False
    s.attempt = 1
    s.retries = 0
    s.claims = 0
    return Phase.TOOLS if s.calls and e.stop_reason == "tool_use" else Phase.ENDING


def _model_failed(s: State, e: ModelFailed, n: int, ts: int, masked: bool) -> None:
    s.error, s.failed_partial = e.error, e.partial


def _tool_started(s: State, e: ToolStarted, n: int, ts: int, masked: bool) -> None:
    _call(s, e.tool_use_id, n).started = True


def _tool_result(s: State, e: ToolResult, n: int, ts: int, masked: bool) -> Phase:
    call = _call(s, e.tool_use.id, n)
    if call.done:
        raise Misplaced(f"event {n}: a second result for call {call.id}")
    call.done, call.text, call.is_error = True, e.text, e.is_error
    if masked:
        s.masked[n] = (len(s.messages), s.calls.index(call))
    s.claims = 0
    if not all(c.done for c in s.calls):
        return Phase.TOOLS
    results = [conversation.ToolResult(c.id, c.name, c.text, c.is_error) for c in s.calls]
    s.messages.append(Message("user", tuple(results)))
    s.recorded += [RecordedCall(c.name, c.input, c.text, c.is_error) for c in s.calls]
    s.calls = []
    return Phase.MODEL


def _claimed(s: State, e: RunClaimed, n: int, ts: int, masked: bool) -> None:
    if s.parked is None:
        s.claims += 1
    s.parked = None
    for call in s.calls:
        call.leave_ns = 0


def _parked(s: State, e: RunParked, n: int, ts: int, masked: bool) -> None:
    s.parked = e
    s.claims = 0


def _prepared(s: State, e: CallPrepared, n: int, ts: int, masked: bool) -> None:
    _call(s, e.tool_use_id, n).prepared = e


def _reviewed(s: State, e: CallReviewed, n: int, ts: int, masked: bool) -> None:
    _call(s, e.tool_use_id, n).reviewed = True


def _waiting(s: State, e: CallWaiting, n: int, ts: int, masked: bool) -> None:
    call = _call(s, e.tool_use_id, n)
    if e.kind == "children":
        call.given = approval.arguments(call)
    call.waiting, call.closed, call.allowed = e, None, False
    call.asked += 1


def _child_started(s: State, e: ChildStarted, n: int, ts: int, masked: bool) -> None:
    call = _call(s, e.tool_use_id, n)
    call.children = {**call.children, e.index: Child(e.run, e.agent_id)}


def _child_finished(s: State, e: ChildFinished, n: int, ts: int, masked: bool) -> None:
    call = _call(s, e.tool_use_id, n)
    child = call.children.get(e.index) or Child(e.run, "")
    if child.finished is not None:
        raise Misplaced(f"event {n}: child {e.index} of call {call.id} finished twice")
    call.children = {**call.children, e.index: Child(child.run, child.agent_id, e)}
    if e.inbox:
        s.taken.add(e.inbox)
    s.claims = 0


def _interrupt_closed(s: State, e: InterruptClosed, n: int, ts: int, masked: bool) -> None:
    if e.inbox:
        s.taken.add(e.inbox)
    s.claims = 0
    for call in s.calls:
        if call.waiting is not None and call.waiting.ref == e.interrupt_id and not call.done:
            call.closed = e
            call.allowed = call.waiting.kind == "approval" and approval.allows(e)
            call.leave_ns = 0


def _compaction_requested(s: State, e: CompactionRequested, n: int, ts: int, masked: bool) -> None:
    if e.inbox:
        s.taken.add(e.inbox)
    s.compacting = e.trigger


def _compaction_made(s: State, e: CompactionMade, n: int, ts: int, masked: bool) -> None:
    s.made = e
    _summary_cost(s, e.usage)


def _compaction_skipped(s: State, e: CompactionSkipped, n: int, ts: int, masked: bool) -> None:
    s.compacting = ""
    s.skipped_at = s.iteration + s.spent
    _summary_cost(s, e.usage)


def _summary_cost(s: State, usage: UsageTotals | None) -> None:
    """A summary counts like a turn, but the run's model stays the one that serves it."""
    if usage is None:
        return
    writer = compaction.summariser(s)
    pair = (writer.provider, writer.model)
    s.spend[pair] = _add(s.spend.get(pair), usage)
    model = s.usage.model if s.usage is not None else ""
    s.usage = replace(_add(s.usage, usage), model=model)


def _compacted(s: State, e: ContextCompaction, n: int, ts: int, masked: bool) -> None:
    if s.made is None:
        raise Misplaced(f"event {n}: a compaction without its facts")
    compaction.compact(s, s.made, e.context_compaction, n, masked=masked)
    s.made, s.compacting = None, ""
    s.compacted_at = s.iteration + s.spent


def _amended(s: State, e: RunAmended, n: int, ts: int, masked: bool) -> None:
    """What follows concerns the conversation as those see it who continue the session."""
    s.amended = e
    s.messages = s.messages + completion(s)
    s.turn_text, s.turn_calls, s.calls = "", [], []


def _answer_rejected(s: State, e: AnswerRejected, n: int, ts: int, masked: bool) -> None:
    s.rejected += 1
    s.owed = True
    s.messages.append(Message("user", (conversation.Text(output.repair_request(e.text)),)))


def _output_rejected(s: State, e: OutputRejected, n: int, ts: int, masked: bool) -> None:
    _answer_rejected(s, AnswerRejected(text=e.error), n, ts, masked)


def _budget_refused(s: State, e: BudgetRefused, n: int, ts: int, masked: bool) -> None:
    s.budget_refused = e.reason


def _cancel(s: State, e: CancelRequested, n: int, ts: int, masked: bool) -> None:
    if e.inbox:
        s.taken.add(e.inbox)
    if s.cancel is None:
        s.cancel = e


def _finished(s: State, e: RunFinished, n: int, ts: int, masked: bool) -> None:
    s.finished = e


def _withdrawn(s: State, e: RunWithdrawn, n: int, ts: int, masked: bool) -> None:
    s.finished = RunFinished(status="failed", error=e.reason)


def _call(s: State, tool_use_id: str, n: int) -> Call:
    for call in s.calls:
        if call.id == tool_use_id:
            return call
    raise Misplaced(f"event {n}: no call {tool_use_id} in this turn")


def _add(total: UsageTotals | None, turn: UsageTotals) -> UsageTotals:
    if total is None:
        return turn
    return UsageTotals(
        input_tokens=total.input_tokens + turn.input_tokens,
        output_tokens=total.output_tokens + turn.output_tokens,
        cache_creation_input_tokens=total.cache_creation_input_tokens
        + turn.cache_creation_input_tokens,
        cache_read_input_tokens=total.cache_read_input_tokens + turn.cache_read_input_tokens,
        model=turn.model or total.model,
    )


_HANDLERS: dict[str, Callable[[State, Any, int, int, bool], Any]] = {
    "run.started": _run_started,
    "user_input": _user_input,
    "system_prompt": _system_prompt,
    "model.started": _model_started,
    "text": _text,
    "tool_call": _tool_call,
    "usage": _usage,
    "model.answered": _model_answered,
    "model.failed": _model_failed,
    "tool.started": _tool_started,
    "tool_result": _tool_result,
    "run.claimed": _claimed,
    "model.attempt_failed": _attempt_failed,
    "retry": _retry,
    "model.switched": _switched,
    "run.parked": _parked,
    "call.prepared": _prepared,
    "call.reviewed": _reviewed,
    "call.waiting": _waiting,
    "child.started": _child_started,
    "child.finished": _child_finished,
    "interrupt.closed": _interrupt_closed,
    "compaction.requested": _compaction_requested,
    "compaction.made": _compaction_made,
    "compaction.skipped": _compaction_skipped,
    "context_compaction": _compacted,
    "run.amended": _amended,
    "answer_rejected": _answer_rejected,
    "output.rejected": _output_rejected,
    "budget.refused": _budget_refused,
    "run.cancel_requested": _cancel,
    "run.finished": _finished,
    "run.withdrawn": _withdrawn,
}

_STEPS: dict[Phase, dict[type[Event], tuple[Callable[..., Any] | None, Phase | None]]] = {
    phase: {
        TYPES[name]: (_HANDLERS.get(name), to[0] if len(to) == 1 else None)
        for name, to in moves.items()
    }
    for phase, moves in MOVES.items()
}
"""MOVES and handlers by class; a move with one end has it here, else the handler tells."""
