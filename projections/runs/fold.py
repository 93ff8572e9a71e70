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
from projections.framework import Params, Projection, Write
from projections.sources import JournalCommit, JournalFault

PARKING = frozenset({"awaiting_input", "run.parked"})
"""A run is parked while its last commit holds an event of one of these types."""

_AWAITING = {"Channel": ("subscribe", "channel"), "Interruption": ("ask", "interrupted")}
"""Tool -> the operation that waits, and the awaited state that clients see."""

_FOLDED = frozenset(
    str(cls.__struct_config__.tag)
    for cls in (RunStarted, RunWithdrawn, RunFinished, Usage, Done, ToolCall, ToolResult)
)


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
    link = _Link(header.prev, header.c - 1, header.events[0].n - 1, header.epoch)
    changes = _add_up(item)
    if header.c == 1:
        if changes.withdrawn:
            return
        if changes.started is None or link[:3] != ("", 0, 0):
            reason = f"commit 1 (sequence {seq}): does not start a run"
            writes.append(Write("stop_fold", run, (run, item.tenant, "broken", reason, seq)))
            return
        writes.append(_start(item, changes, changes.started))
    else:
        known = ends.get(run)
        if known is None or known[:3] != link[:3] or known.epoch > link.epoch:
            reason = f"commit {header.c} (sequence {seq}): does not follow the commit before it"
            writes.append(Write("check_link", run, (run, item.tenant, *link, seq, reason)))
        writes.append(_advance(item, changes, link))
    ends[run] = _Link(item.commit.hash, header.c, item.commit.last_n, header.epoch)
    writes += changes.awaits


class _Changes:
    """What the events of one commit add up to."""

    __slots__ = (
        "awaits",
        "cache_creation",
        "cache_read",
        "completed_ns",
        "finished",
        "input",
        "max_context",
        "model",
        "output",
        "parked",
        "provider",
        "started",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.started: Record | None = None
        self.finished: RunFinished | None = None
        self.withdrawn = False
        self.input = self.output = self.cache_creation = self.cache_read = 0
        self.max_context = self.completed_ns = self.parked = 0
        self.model = self.provider = ""
        self.awaits: list[Write] = []

    def use(self, usage: UsageTotals) -> None:
        self.input += usage.input_tokens
        self.output += usage.output_tokens
        self.cache_creation += usage.cache_creation_input_tokens
        self.cache_read += usage.cache_read_input_tokens
        self.name(usage)

    def name(self, usage: UsageTotals) -> None:
        """Names and the window are those of the last usage that has them."""
        self.max_context = usage.max_context_tokens or self.max_context
        self.model = usage.model or self.model
        self.provider = usage.provider or self.provider

    def finish(self, record: Record, event: RunFinished) -> None:
        """The first terminal event wins; its totals replace what was added up."""
        if self.finished is not None:
            return
        self.finished, self.completed_ns = event, record.header.ts
        if event.usage is not None:
            self.input = self.output = self.cache_creation = self.cache_read = 0
            self.use(event.usage)
        if event.status != "completed":
            self.awaits.append(Write("close_awaits", record.commit.run, (record.commit.run,)))

    def header(self, item: JournalCommit) -> Params:
        """last_commit to parked, in the order of ``start_run`` and ``advance_run``."""
        header = item.commit.header
        last = header.events[-1]
        hash_ = item.commit.hash
        return (
            header.c,
            last.n,
            hash_,
            header.epoch,
            header.writer,
            last.ts,
            item.seq,
            self.parked,
        )

    def usage(self) -> Params:
        """input_tokens to provider, in the order of the statements."""
        return (
            self.input,
            self.output,
            self.cache_creation,
            self.cache_read,
            self.max_context,
            self.model,
            self.provider,
        )


def _add_up(item: JournalCommit) -> _Changes:
    changes = _Changes()
    run = item.commit.run
    for record in item.records:
        kind = record.header.type
        if kind in PARKING:
            changes.parked = 1
        if kind not in _FOLDED:
            continue
        match record.event:
            case RunStarted():
                changes.started = changes.started or record
            case RunWithdrawn():
                changes.withdrawn = True
            case Usage(usage=usage):
                changes.use(usage)
            case Done(usage=usage):
                changes.name(usage)
            case RunFinished() as event:
                changes.finish(record, event)
            case ToolCall(tool_use=call):
                waits_for = awaited(call.name, call.input)
                if waits_for is not None:
                    row = (run, call.id, record.header.n, *waits_for)
                    changes.awaits.append(Write("open_await", run, row))
            case ToolResult(tool_use=call) if call.name in _AWAITING:
                changes.awaits.append(Write("close_await", run, (run, call.id)))
    return changes


def _start(item: JournalCommit, changes: _Changes, started: Record) -> Write:
    event = started.event
    assert isinstance(event, RunStarted)
    context = event.parent_context
    finished = changes.finished
    run = item.commit.run
    row = (
        run,
        event.session,
        event.tenant,
        event.agent,
        event.agent_id,
        event.user_id,
        event.user_tier,
        event.parent_agent_id,
        msgspec.json.encode(context, order="deterministic").decode() if context else "",
        event.started_ns or started.header.ts,
        int(event.interactive),
        event.origin,
        event.reader,
        event.principal,
        event.plan,
        event.machine,
        *changes.header(item),
        *changes.usage(),
        finished.status if finished else "running",
        finished.stop_reason if finished else "",
        finished.error if finished else "",
        changes.completed_ns,
        f"commit 1 (sequence {item.seq}): the run has already started",
    )
    return Write("start_run", run, row)


def _advance(item: JournalCommit, changes: _Changes, link: _Link) -> Write:
    finished = changes.finished
    run = item.commit.run
    row = (
        run,
        link.hash,
        link.commit,
        link.n,
        *changes.header(item),
        *changes.usage(),
        int(finished is not None and finished.usage is not None),
        finished.status if finished else "",
        finished.stop_reason if finished else "",
        finished.error if finished else "",
        changes.completed_ns,
    )
    return Write("advance_run", run, row)


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
    version=1,
    source="runs",
    tables={"runs": ("run_id",), "awaits": ("run_id", "tool_use_id")},
    fold=fold,
)
