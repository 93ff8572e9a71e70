"""Folds commits into runs (specification: http-runs.md 3.6, 5, 10, 14; loop.md 14).

The chain is checked where the last hash is known, in the database: a commit that does not
follow the run's last one changes nothing but the fault columns. Within a batch the links are
also checked here, which spares most of those checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from events.commit import Record
from events.vocabulary import (
    Done,
    RunFinished,
    RunStarted,
    RunWithdrawn,
    ToolCall,
    ToolResult,
    Usage,
    UsageTotals,
)
from projections.framework import Projection, Write
from projections.sources import JournalCommit, JournalFault

PARKING = frozenset({"awaiting_input", "run.parked"})
"""A run is parked while its last commit holds an event of one of these types."""

_AWAITING = {"Channel": ("subscribe", "channel"), "Interruption": ("ask", "interrupted")}
"""Tool -> the operation that waits, and the awaited state that clients see."""


class _Link(NamedTuple):
    """Where a run's chain ends: what the next commit must name."""

    hash: str
    commit: int
    n: int
    epoch: int


def fold(items: Sequence[Any]) -> list[Write]:
    """Changes of runs and of what they wait for."""
    writes: list[Write] = []
    ends: dict[str, _Link] = {}
    for item in items:
        if isinstance(item, JournalCommit):
            _fold_commit(item, ends, writes)
        elif isinstance(item, JournalFault):
            ends.pop(item.run, None)
            row = (item.run, item.tenant, item.kind, item.reason, item.seq)
            writes.append(Write("stop_fold", item.run, row))
    return writes


def _fold_commit(item: JournalCommit, ends: dict[str, _Link], writes: list[Write]) -> None:
    header = item.commit.header
    run, seq = header.run, item.seq
    first_n = header.events[0].n
    if header.c == 1:
        started = next((r for r in item.records if isinstance(r.event, RunStarted)), None)
        if started is None:
            if not any(isinstance(r.event, RunWithdrawn) for r in item.records):
                reason = f"commit 1 (sequence {seq}): holds no run.started"
                writes.append(Write("stop_fold", run, (run, item.tenant, "broken", reason, seq)))
            return
        writes.append(_start(started, seq))
        ends[run] = _Link("", 0, 0, 0)
    link = _Link(header.prev, header.c - 1, first_n - 1, header.epoch)
    known = ends.get(run)
    if known is None or known[:3] != link[:3] or known.epoch > link.epoch:
        reason = f"commit {header.c} (sequence {seq}): does not follow the commit before it"
        writes.append(Write("check_link", run, (run, item.tenant, *link, seq, reason)))
    ends[run] = _Link(item.commit.hash, header.c, item.commit.last_n, header.epoch)
    writes.append(_advance(item, link))
    _fold_awaits(item, writes)


def _start(record: Record, seq: int) -> Write:
    event = record.event
    assert isinstance(event, RunStarted)
    context = event.parent_context
    row = (
        record.commit.run,
        event.session,
        event.tenant,
        event.agent,
        event.agent_id,
        event.user_id,
        event.user_tier,
        event.parent_agent_id,
        msgspec.json.encode(context, order="deterministic").decode() if context else "",
        event.started_ns or record.ts,
        int(event.interactive),
        event.origin,
        event.reader,
        event.principal,
        event.plan,
        event.machine,
        seq,
        f"commit 1 (sequence {seq}): the run has already started",
    )
    return Write("start_run", record.commit.run, row)


def _advance(item: JournalCommit, link: _Link) -> Write:
    """One ``advance_run``: the commit's header and what its events add up to."""
    header = item.commit.header
    usage = _Sum()
    finished: RunFinished | None = None
    completed_ns = parked = 0
    for record in item.records:
        event = record.event
        if isinstance(event, Usage):
            usage.add(event.usage)
        elif isinstance(event, Done):
            usage.name(event.usage)
        elif isinstance(event, RunFinished) and finished is None:
            finished, completed_ns = event, record.ts
        if record.type in PARKING:
            parked = 1
    final = finished is not None and finished.usage is not None
    if finished is not None and finished.usage is not None:
        usage.replace(finished.usage)
    row = (
        header.run,
        link.hash,
        link.commit,
        link.n,
        header.c,
        item.commit.last_n,
        item.commit.hash,
        header.epoch,
        header.writer,
        header.events[-1].ts,
        item.seq,
        parked,
        usage.input,
        usage.output,
        usage.cache_creation,
        usage.cache_read,
        usage.max_context,
        usage.model,
        usage.provider,
        int(final),
        finished.status if finished else "",
        finished.stop_reason if finished else "",
        finished.error if finished else "",
        completed_ns,
    )
    return Write("advance_run", header.run, row)


class _Sum:
    """Token counts of one commit; names and the window are those of the last that has them."""

    __slots__ = (
        "cache_creation",
        "cache_read",
        "input",
        "max_context",
        "model",
        "output",
        "provider",
    )

    def __init__(self) -> None:
        self.input = self.output = self.cache_creation = self.cache_read = self.max_context = 0
        self.model = self.provider = ""

    def add(self, usage: UsageTotals) -> None:
        self.input += usage.input_tokens
        self.output += usage.output_tokens
        self.cache_creation += usage.cache_creation_input_tokens
        self.cache_read += usage.cache_read_input_tokens
        self.name(usage)

    def replace(self, totals: UsageTotals) -> None:
        self.input = self.output = self.cache_creation = self.cache_read = 0
        self.add(totals)

    def name(self, usage: UsageTotals) -> None:
        self.max_context = usage.max_context_tokens or self.max_context
        self.model = usage.model or self.model
        self.provider = usage.provider or self.provider


class _AwaitInput(Struct):
    op: str = ""
    channel: str = ""
    kind: str = "question"


_decode_input = msgspec.json.Decoder(_AwaitInput).decode


def _fold_awaits(item: JournalCommit, writes: list[Write]) -> None:
    run = item.commit.run
    for record in item.records:
        event = record.event
        if isinstance(event, ToolCall):
            waits_for = awaited(event.tool_use.name, event.tool_use.input)
            if waits_for is not None:
                row = (run, event.tool_use.id, record.n, *waits_for)
                writes.append(Write("open_await", run, row))
        elif isinstance(event, ToolResult) and event.tool_use.name in _AWAITING:
            writes.append(Write("close_await", run, (run, event.tool_use.id)))
        elif isinstance(event, RunFinished) and event.status != "completed":
            writes.append(Write("close_awaits", run, (run,)))


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
    version=1,
    source="runs",
    tables={"runs": ("run_id",), "awaits": ("run_id", "tool_use_id")},
    fold=fold,
)
