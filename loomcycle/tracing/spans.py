"""Spans of one run from its journal: a pure fold, no clock, no I/O.

Ids follow from the run and the number of an event, so that whoever folds a journal, wherever,
makes the same spans: the run of a sub-agent hangs under its parent's call without asking.
A span is only made of what the journal tells; docs/tracing.md says what that leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

from events.commit import Commit, Record
from events.plan import RunPlan
from events.vocabulary import (
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    ModelAnswered,
    ModelAttemptFailed,
    ModelFailed,
    ModelSwitched,
    Retry,
    RunFinished,
    RunStarted,
    ToolCall,
    ToolResult,
    ToolUse,
)
from replay.machine import CODE_PROVIDER
from replay.program import CODE_MODEL

RUN, ITERATION = "loomcycle.run", "loomcycle.iteration"
PROVIDER_CALL, TOOL_CALL, MCP_CALL = (
    "loomcycle.provider.call",
    "loomcycle.tool.call",
    "loomcycle.mcp.call",
)
COMPACTION = "context.compaction"

MAX_STATUS_BYTES = 500
MAX_NAME_BYTES = 128
"""Of an attribute: a tool's name is the model's word, and need not be one of a tool."""

ELLIPSIS = "…"
MCP_PREFIX = "mcp__"

Attributes = dict[str, str | int]


class SpanEvent(Struct, frozen=True):
    """``ts``: unix nanoseconds."""

    name: str
    ts: int
    attributes: Attributes


class Span(Struct, kw_only=True):
    """``trace_id`` has 128 bits, span ids have 64; ``parent_id`` is 0 at the top of a trace.

    ``start`` and ``end`` are unix nanoseconds. ``error`` is the description of a failure's
    status, None when nothing failed.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    attributes: Attributes
    events: list[SpanEvent] = []
    error: str | None = None


def trace_id_of(facts: RunStarted) -> int:
    """The trace of a run and of all runs that came of it: named after the one at the top."""
    return _id(16, facts.root or facts.run)


def span_id_of(name: str, run: str, n: int) -> int:
    """The span ``name`` that event ``n`` of a run began, or told the end of."""
    return _id(8, f"{name} {run} {n}")


def _id(size: int, text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1


def is_sampled(trace_id: int, ratio: float) -> bool:
    """Whether a trace is among the ``ratio`` of all (0..1): one answer for all its runs."""
    return trace_id % 2**64 < ratio * 2**64


def cut(text: str, limit: int = MAX_STATUS_BYTES) -> str:
    """``text`` in at most ``limit`` bytes of UTF-8, with an ellipsis where it was longer."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - len(ELLIPSIS.encode())].decode(errors="ignore") + ELLIPSIS


class RunSpans:
    """The fold: give it the commits of a run in their order, then take its ``spans``.

    They are there once the run has ended, its own first. A run that was never begun has none.
    What is added behind the end of a run is no part of its trace.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.spans: list[Span] = []
        self._plan = plan
        self._provider, self._effort = plan.provider, plan.effort
        self._model = CODE_MODEL if plan.provider == CODE_PROVIDER else plan.model
        self._code_hash = sha256((plan.code or "").encode()).hexdigest()
        self._facts: RunStarted | None = None
        self._run: Span | None = None
        self._iteration: Span | None = None
        self._iterations = 0
        self._tools: dict[str, Span] = {}
        self._asked: list[tuple[Record, ToolUse]] = []
        """Calls of the turn that is being answered."""
        self._due = 0
        """Since when a model call may be under way; 0 while none is due."""
        self._since = 0
        """Since when the model's turn is due, or was."""
        self._before = 0
        """Time of the commit before."""
        self._parked = self._spoke = self._ended = False
        self._failed_in = 0
        """The commit in which an attempt failed; the wait that follows it there is its own."""
        self._complaint = ""

    def add(self, commit: Commit) -> None:
        """Raises FutureEvent, BrokenChain (a body that does not decode)."""
        for record in commit.records():
            step = None if self._ended else _STEPS.get(record.type)
            if step is not None and (self._facts is not None or record.type == "run.started"):
                step(self, record, record.event)
        self._before = commit.header.events[-1].ts

    # --- the run ----------------------------------------------------------------------------

    def _started(self, record: Record, event: RunStarted) -> None:
        self._facts = facts = event
        parent = facts.parent
        waited_ms = (record.ts - facts.started_ns) // 1_000_000 if facts.started_ns else 0
        self._run = self._open(
            RUN,
            record.n,
            record.ts,
            parent_id=span_id_of(TOOL_CALL, parent.run, parent.n) if parent is not None else 0,
            run_id=facts.run,
            agent_id=facts.agent_id,
            agent_name=facts.agent,
            user_id=facts.user_id,
            parent_agent_id=facts.parent_agent_id,
            queue_wait_ms=max(0, waited_ms),
        )

    def _finished(self, record: Record, event: RunFinished) -> None:
        cancelled = event.status == "cancelled"
        if self._due and self._spoke:
            self._call(record, None)
        elif cancelled and 0 < self._due < record.ts:
            self._turn(record)
        for span in self._tools.values():
            span.end = record.ts
        self._close_iteration(record.ts)
        run = self._root
        run.end = record.ts
        usage = event.usage
        if usage is not None:
            _put(
                run.attributes,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cache_read_input_tokens,
            )
        _put(run.attributes, stop_reason="cancelled" if cancelled else event.stop_reason)
        if event.status == "failed":
            run.error = cut(event.error)
        for span in self.spans:  # the clocks of two owners may differ
            span.end = max(span.start, span.end)
        self._ended = True

    # --- the model --------------------------------------------------------------------------

    def _is_due(self, record: Record, event: Event) -> None:
        self._due = self._since = record.ts

    def _parks(self, record: Record, event: Event) -> None:
        self._parked = True

    def _claimed(self, record: Record, event: Event) -> None:
        if self._parked and self._due:
            self._due = record.ts
        self._parked = False

    def _repeated(self, record: Record, event: Event) -> None:
        self._spoke = False
        self._due = record.ts

    def _speaks(self, record: Record, event: Event) -> None:
        self._spoke = True

    def _asks(self, record: Record, event: ToolCall) -> None:
        self._spoke = True
        self._asked.append((record, event.tool_use))

    def _answered(self, record: Record, event: ModelAnswered) -> None:
        self._call(record, None)
        asked, self._asked = self._asked, []
        self._due = 0
        if asked and event.stop_reason == "tool_use":
            for call, use in asked:
                self._begin_tool(call, use)
        else:
            self._close_iteration(record.ts)

    def _failed(self, record: Record, event: ModelFailed) -> None:
        self._call(record, event.error)
        self._close_iteration(record.ts)
        self._due = 0

    def _attempt_failed(self, record: Record, event: ModelAttemptFailed) -> None:
        self._call(record, event.error)
        self._failed_in = record.commit.c
        self._due = record.ts

    def _waits(self, record: Record, event: Retry) -> None:
        if self._failed_in != record.commit.c:
            self._call(record, f"rate limited: {event.retry.reason}")
        self._due = record.ts + event.retry.wait_ms * 1_000_000

    def _switched(self, record: Record, event: ModelSwitched) -> None:
        self._provider, self._model = event.provider, event.model
        if event.effort is not None:
            self._effort = event.effort
        self._due = record.ts

    def _refused(self, record: Record, event: Event) -> None:
        self._due = 0

    # --- tools ------------------------------------------------------------------------------

    def _begin_tool(self, record: Record, use: ToolUse) -> None:
        name = cut(use.name, MAX_NAME_BYTES)
        parent = self._turn(record).span_id
        span = self._open(TOOL_CALL, record.n, record.ts, parent_id=parent, tool=name)
        self._tools[use.id] = span

    def _result(self, record: Record, event: ToolResult) -> None:
        use = event.tool_use
        span = self._tools.pop(use.id, None)
        if span is None:
            return
        span.end = record.ts
        if event.is_error:
            span.error = cut(event.text.strip().partition("\n")[0])
        if use.name.startswith(MCP_PREFIX):
            server, _, tool = use.name.removeprefix(MCP_PREFIX).partition("__")
            called = self._open(
                MCP_CALL,
                record.n,
                span.start,
                parent_id=span.span_id,
                mcp_server=cut(server, MAX_NAME_BYTES),
                mcp_tool=cut(tool, MAX_NAME_BYTES),
            )
            called.end, called.error = span.end, span.error
        if not self._tools:
            self._close_iteration(record.ts)
            self._is_due(record, event)

    # --- compaction -------------------------------------------------------------------------

    def _complains(self, record: Record, event: Error) -> None:
        self._complaint = event.error

    def _summarised(self, record: Record, event: CompactionMade | CompactionSkipped) -> None:
        """The call that wrote, or did not write, a summary: of a turn, or of nobody's turn."""
        if event.request:
            failed = isinstance(event, CompactionSkipped) and event.reason == "failed"
            turn_is_due = self._due > 0
            self._call(
                record,
                self._complaint if failed else None,
                model=self._plan.compaction.model or self._model,
                parent=None if turn_is_due else self._root,
            )
            if turn_is_due:
                self._due = record.ts

    def _compacted(self, record: Record, event: ContextCompaction) -> None:
        body = event.context_compaction
        span = self._turn(record) if self._due else self._root
        facts: Attributes = {
            "compaction.trigger": body.trigger,
            "compaction.before_tokens": body.before_tokens,
            "compaction.after_tokens": body.after_tokens,
        }
        span.events = [*span.events, SpanEvent(COMPACTION, record.ts, facts)]

    # --- spans ------------------------------------------------------------------------------

    @property
    def _root(self) -> Span:
        assert self._run is not None
        return self._run

    def _turn(self, record: Record) -> Span:
        """The iteration under way, begun when it became due."""
        if self._iteration is None:
            parent = self._root.span_id
            start = self._since if self._due else self._before
            self._iteration = self._open(ITERATION, record.n, start, parent_id=parent)
            self._iteration.attributes[ITERATION] = self._iterations
        return self._iteration

    def _close_iteration(self, ts: int) -> None:
        if self._iteration is not None:
            self._iteration.end = ts
            self._iteration = None
            self._iterations += 1

    def _call(
        self, record: Record, error: str | None, *, model: str = "", parent: Span | None = None
    ) -> None:
        """One request to a provider, from when it was due until ``record`` told how it ended."""
        start = min(self._due or self._before, record.ts)
        parent = parent or self._turn(record)
        span = self._open(
            PROVIDER_CALL,
            record.n,
            start,
            parent_id=parent.span_id,
            provider=self._provider,
            model=model or self._model,
            effort=self._effort,
        )
        if self._provider == CODE_PROVIDER:
            span.attributes["loomcycle.provider.kind"] = "synthetic-code"
            span.attributes["loomcycle.provider.code_hash"] = self._code_hash
        span.end = record.ts
        span.error = None if error is None else cut(error)
        self._spoke = False

    def _open(
        self, name: str, n: int, start: int, *, parent_id: int, **attributes: str | int
    ) -> Span:
        assert self._facts is not None
        span = Span(
            name=name,
            trace_id=trace_id_of(self._facts),
            span_id=span_id_of(name, self._facts.run, n),
            parent_id=parent_id,
            start=start,
            end=start,
            attributes={},
        )
        _put(span.attributes, **attributes)
        self.spans.append(span)
        return span


def _put(attributes: Attributes, **values: str | int) -> None:
    """Add what is not empty under the names of this runtime."""
    for name, value in values.items():
        if value:
            attributes[f"loomcycle.{name}"] = value


_STEPS: Mapping[str, Callable[[RunSpans, Record, Any], None]] = {
    "run.started": RunSpans._started,
    "started": RunSpans._is_due,
    "user_input": RunSpans._is_due,
    "answer_rejected": RunSpans._is_due,
    "output.rejected": RunSpans._is_due,
    "run.parked": RunSpans._parks,
    "run.claimed": RunSpans._claimed,
    "model.started": RunSpans._repeated,
    "text": RunSpans._speaks,
    "tool_call": RunSpans._asks,
    "model.answered": RunSpans._answered,
    "model.failed": RunSpans._failed,
    "model.attempt_failed": RunSpans._attempt_failed,
    "retry": RunSpans._waits,
    "model.switched": RunSpans._switched,
    "budget.refused": RunSpans._refused,
    "tool_result": RunSpans._result,
    "error": RunSpans._complains,
    "compaction.made": RunSpans._summarised,
    "compaction.skipped": RunSpans._summarised,
    "context_compaction": RunSpans._compacted,
    "run.finished": RunSpans._finished,
}
