"""Folds public events into transcript rows (specification: http-runs.md section 8).

Rows name their run only; the session of a run stands in the view of runs, and so does the
sequence at which a damaged journal ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.frames import transcript_row
from projections.framework import Projection, Write
from projections.sources import JournalCommit


def fold(items: Sequence[Any]) -> list[Write]:
    """One row for each public event among ``items``."""
    writes: list[Write] = []
    for item in items:
        if not isinstance(item, JournalCommit):
            continue
        run = item.commit.run
        for record in item.records:
            row = transcript_row(record)
            if row is None:
                continue
            payload = None if row.payload is None else row.payload.decode("utf-8", "replace")
            body = row.event.decode("utf-8", "replace")
            writes.append(
                Write("add_row", row.seq, (row.seq, run, record.header.ts, row.type, body, payload))
            )
    return writes


PROJECTION = Projection(
    name="transcripts",
    version=1,
    source="runs",
    tables={"transcripts": ("seq",)},
    fold=fold,
)
