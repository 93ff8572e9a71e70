"""Folds commits into runs (specification: http-runs.md 3.6, 5, 10, 14; loop.md 14).

The chain is checked where the last hash is known, in the database: a commit that does not
follow the run's last one changes nothing but the fault columns. Within a batch the links are
checked here, and commits that follow each other become one change of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from events.commit import CommitHeader, EventHeader
from events.vocabulary import (
    CallWaiting,
    CompactionMade,
    CompactionSkipped,
    Done,
    Event,
    InterruptClosed,
    ModelSwitched,
    RunFinished,
    RunStarted,
    RunWithdrawn,
    ToolCall,
    ToolResult,
    Unrecognised,
    Usage,
    UsageTotals,
)
from projections.framework import Change, Params, Projection, Write
from projections.sources import JournalCommit, JournalFault

PARKED = "run.parked"
"""A run is parked while its last event is of this type."""

_AWAITING = {"Channel": ("subscribe", "channel"), "Interruption": ("ask", "interrupted")}
"""Tool -> the operation that waits, and the awaited state that clients see."""

_FOLDED = frozenset(
    (
        RunStarted,
        RunWithdrawn,
        RunFinished,
        Usage,
        ModelSwitched,
        Done,
        ToolCall,
        ToolResult,
        CallWaiting,
        InterruptClosed,
        CompactionMade,
        CompactionSkipped,
    )
)


def fold(items: Sequence[Any]) -> list[Change]:
    """Changes of runs and of what they wait for."""
    writes: list[Change] = []
    stretches: dict[str, _Stretch] = {}
    for item in items:
        if isinstance(item, JournalCommit):
            _fold_commit(item, stretches, writes)
        elif isinstance(item, JournalFault):
            if item.run in stretches:
                writes += stretches.pop(item.run).writes()
            row = (item.run, item.tenant, item.kind, item.reason, item.seq)
            writes.append(Write("stop_fold", item.run, row))
    for stretch in stretches.values():
        writes += stretch.writes()
    return writes


def _fold_commit(item: JournalCommit, stretches: dict[str, _Stretch], writes: list[Change]) -> None:
    header = item.commit.header
    run, seq = header.run, item.seq
    stretch = stretches.get(run)
    if stretch is not None:
        if stretch.goes_on_with(header):
            stretch.add(item)
            return
        writes += stretches.pop(run).writes()
    stretch = _Stretch(item)
    link = (header.prev, header.c - 1, header.events[0].n - 1)
    if header.c > 1:
        reason = f"commit {header.c} (sequence {seq}): does not follow the commit before it"
        row = (run, item.tenant, *link, header.epoch, seq, reason)
        writes.append(Write("check_link", run, row))
    elif stretch.withdrawn:
        return
    elif stretch.started is None or link != ("", 0, 0):
        reason = f"commit 1 (sequence {seq}): does not start a run"
        writes.append(Write("stop_fold", run, (run, item.tenant, "broken", reason, seq)))
        return
    stretches[run] = stretch


class _Stretch:
    """Commits of one run that follow each other in a batch, and what their events add up to.

    A terminal event ends a stretch: what comes after it depends on the row.
    """

    __slots__ = (
        "awaits",
        "cache_creation",
        "cache_read",
        "completed_ns",
        "finished",
        "first",
        "input",
        "last",
        "max_context",
        "model",
        "output",
        "parked",
        "provider",
        "second_seq",
        "started",
        "started_ns",
        "withdrawn",
    )

    def __init__(self, first: JournalCommit) -> None:
        self.first = self.last = first
        self.second_seq = 0
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.withdrawn = False
        self.input = self.output = self.cache_creation = self.cache_read = 0
        self.max_context = self.started_ns = self.completed_ns = self.parked = 0
        self.model = self.provider = ""
        self.awaits: list[Write] = []
        self._add_up(first)

    def goes_on_with(self, header: CommitHeader) -> bool:
        last = self.last.commit
        return (
            header.prev == last.hash
            and header.c == last.header.c + 1
            and header.events[0].n == last.header.events[-1].n + 1
            and header.epoch >= last.header.epoch
            and self.finished is None
        )

    def add(self, item: JournalCommit) -> None:
        self.last = item
        self.second_seq = self.second_seq or item.seq
        self._add_up(item)

    def _add_up(self, item: JournalCommit) -> None:
        header = item.commit.header
        self.parked = int(header.events[-1].type == PARKED)
        for head, event in zip(header.events, item.events, strict=True):
            if type(event) in _FOLDED:
                _add(self, header.run, head, event)

    def use(self, usage: UsageTotals) -> None:
        self.add_up_tokens(usage)
        self.name(usage)

    def add_up_tokens(self, usage: UsageTotals) -> None:
        """Of any call; a summary's does not tell which model serves the run."""
        self.input += usage.input_tokens
        self.output += usage.output_tokens
        self.cache_creation += usage.cache_creation_input_tokens
        self.cache_read += usage.cache_read_input_tokens

    def name(self, usage: UsageTotals) -> None:
        """Names and the window are those of the last usage that has them."""
        self.max_context = usage.max_context_tokens or self.max_context
        self.model = usage.model or self.model
        self.provider = usage.provider or self.provider

    def start(self, event: RunStarted, ts: int) -> None:
        """A run starts with its first commit; ``event.started_ns`` is when it was asked for."""
        if self.started is None:
            self.started, self.started_ns = event, ts

    def finish(self, event: RunFinished, run: str, ts: int) -> None:
        """The first terminal event wins; its totals replace what was added up."""
        if self.finished is not None:
            return
        self.finished, self.completed_ns = event, ts
        if event.usage is not None:
            self.input = self.output = self.cache_creation = self.cache_read = 0
            self.use(event.usage)
        if event.status != "completed":
            self.awaits.append(Write("close_awaits", run, (run,)))

    def writes(self) -> list[Write]:
        """One change of the run's row, and those of what it waits for."""
        header = self.first.commit.header
        if header.c == 1 and self.started is not None:
            return [Write("start_run", header.run, _start(self, self.started)), *self.awaits]
        return [Write("advance_run", header.run, _advance(self)), *self.awaits]

    def sums(self) -> Params:
        """last_commit to provider, in the order of ``start_run`` and ``advance_run``."""
        header = self.last.commit.header
        last = header.events[-1]
        return (
            header.c,
            last.n,
            self.last.commit.hash,
            header.epoch,
            header.writer,
            last.ts,
            self.last.seq,
            self.first.seq,
            self.parked,
            self.input,
            self.output,
            self.cache_creation,
            self.cache_read,
            self.max_context,
            self.model,
            self.provider,
        )


def _add(changes: _Stretch, run: str, head: EventHeader, event: Event | Unrecognised) -> None:
    match event:
        case Usage():
            changes.use(event.usage)
        case CompactionMade(usage=UsageTotals() as usage):
            changes.add_up_tokens(usage)
        case CompactionSkipped(usage=UsageTotals() as usage):
            changes.add_up_tokens(usage)
        case ModelSwitched():
            changes.model, changes.provider = event.model, event.provider
        case Done():
            changes.name(event.usage)
        case ToolCall(tool_use=call):
            waits_for = awaited(call.name, call.input)
            if waits_for is not None:
                row = (run, call.id, head.n, *waits_for)
                changes.awaits.append(Write("open_await", run, row))
        case ToolResult(tool_use=call) if call.name in _AWAITING:
            changes.awaits.append(Write("close_await", run, (run, call.id)))
        case CallWaiting(kind="approval", ref=question):  # its await is named by its question
            row = (run, question, head.n, "interrupted", "question")
            changes.awaits.append(Write("open_await", run, row))
        case InterruptClosed(interrupt_id=question):
            changes.awaits.append(Write("close_await", run, (run, question)))
        case RunStarted():
            changes.start(event, head.ts)
        case RunFinished():
            changes.finish(event, run, head.ts)
        case RunWithdrawn():
            changes.withdrawn = True


def _start(stretch: _Stretch, event: RunStarted) -> Params:
    """Values of ``start_run``."""
    context = event.parent_context
    finished = stretch.finished
    return (
        stretch.first.commit.header.run,
        event.session,
        event.tenant,
        event.agent,
        event.agent_id,
        event.user_id,
        event.user_tier,
        event.parent_agent_id,
        event.parent.run if event.parent is not None else "",
        msgspec.json.encode(context, order="deterministic").decode() if context else "",
        stretch.started_ns,
        int(event.interactive and event.reader == "continue"),
        event.origin,
        event.reader,
        event.principal,
        event.plan,
        event.machine,
        *stretch.sums(),
        finished.status if finished else "running",
        finished.stop_reason if finished else "",
        finished.error if finished else "",
        stretch.completed_ns,
        stretch.second_seq,
        f"commit 1 (sequence {stretch.first.seq}): the run has already started",
    )


def _advance(stretch: _Stretch) -> Params:
    """Values of ``advance_run``."""
    header = stretch.first.commit.header
    finished = stretch.finished
    return (
        header.run,
        header.prev,
        header.c - 1,
        header.events[0].n - 1,
        *stretch.sums(),
        int(finished is not None and finished.usage is not None),
        finished.status if finished else "",
        finished.stop_reason if finished else "",
        finished.error if finished else "",
        stretch.completed_ns,
    )


class _AwaitInput(Struct):
    op: str = ""
    channel: str = ""
    kind: str = "question"


_decode_input = msgspec.json.Decoder(_AwaitInput).decode


def awaited(tool: str, arguments: Raw) -> tuple[str, str] | None:
    """(awaited_state, awaited_on) of a tool call, None when it waits for nobody."""
    waiting = _AWAITING.get(tool)
    if waiting is None:
        return None
    try:
        given = _decode_input(arguments)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    op, state = waiting
    if given.op != op:
        return None
    return state, given.channel if state == "channel" else given.kind


PROJECTION = Projection(
    name="runs",
    version=5,
    source="runs",
    tables={"runs": ("run_id",), "awaits": ("run_id", "tool_use_id")},
    fold=fold,
)
