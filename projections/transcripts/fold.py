"""Folds public events into transcript rows (specification: http-runs.md section 8).

Rows name their run only; the session of a run stands in the view of runs, and so does the
sequence at which a damaged journal ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.commit import SEQ_PER_MESSAGE
from events.frames import row_texts
from events.vocabulary import is_public
from projections.framework import Change, Params, Projection, Rows
from projections.sources import JournalCommit


def fold(items: Sequence[Any]) -> list[Change]:
    """One row for each public event among ``items``."""
    rows: list[Params] = []
    for item in items:
        if not isinstance(item, JournalCommit):
            continue
        header, bodies = item.commit.header, item.commit.bodies
        run, c, first = header.run, header.c, item.seq * SEQ_PER_MESSAGE
        for i, (head, event) in enumerate(zip(header.events, item.events, strict=True)):
            kind = head.type
            if not is_public(kind):
                continue
            text, payload = row_texts(event, bodies[i])
            shown = None if payload is None else payload.decode("utf-8", "replace")
            rows.append((first + i, run, c, head.ts, kind, text.decode("utf-8", "replace"), shown))
    return [Rows("add_row", rows)]


PROJECTION = Projection(
    name="transcripts",
    version=2,
    source="runs",
    tables={"transcripts": ("seq",)},
    fold=fold,
)
