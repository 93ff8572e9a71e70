"""Folds parks, and the children that a run still expects to hear from (kernel.md sections 2, 6).

A parked run has a row from the commit that parked it to the claim that takes it up again. A run
that never parks and has no children costs this view nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.vocabulary import ChildFinished, ChildStarted, RunClaimed, RunFinished, RunParked
from projections.framework import Change, Projection, Write
from projections.sources import InboxPost, JournalCommit

_FOLDED = frozenset(
    {"run.parked", "run.claimed", "run.finished", "child.started", "child.finished"}
)


def fold(items: Sequence[Any]) -> list[Change]:
    """Changes of parks and of expected children."""
    writes: list[Change] = []
    for item in items:
        if isinstance(item, JournalCommit):
            if not _FOLDED.isdisjoint([head.type for head in item.commit.header.events]):
                _fold_commit(item, writes)
        elif isinstance(item, InboxPost):
            writes.append(Write("call_park", item.run, (item.run, item.seq)))
    return writes


def _fold_commit(item: JournalCommit, writes: list[Change]) -> None:
    header = item.commit.header
    run = header.run
    for event in item.events:
        match event:
            case RunParked(reason=reason, until_ns=until_ns):
                row = (run, reason, until_ns, header.c, item.seq)
                writes.append(Write("put_park", run, row))
            case ChildStarted():
                place = (run, event.tool_use_id, event.index)
                writes.append(Write("expect_child", run, (*place, event.run)))
            case ChildFinished():
                place = (run, event.tool_use_id, event.index)
                writes.append(Write("forget_child", run, place))
            case RunFinished(status=status) if status != "completed":
                writes.append(Write("forget_children", run, (run,)))
            case RunClaimed():
                writes.append(Write("end_park", run, (run,)))


PROJECTION = Projection(
    name="parks",
    version=1,
    source="runs",
    tables={
        "parks": ("run_id",),
        "expected_children": ("parent_run", "tool_use_id", "child_index"),
    },
    fold=fold,
)
