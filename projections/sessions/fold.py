"""Folds ``run.started`` into sessions. The earliest run of a session describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from events.vocabulary import RunStarted
from projections.framework import Projection, Write
from projections.sources import JournalCommit


def fold(items: Sequence[Any]) -> list[Write]:
    """Sessions opened by the commits among ``items``."""
    writes: list[Write] = []
    for item in items:
        if not isinstance(item, JournalCommit) or item.commit.c != 1:
            continue
        for record in item.records:
            event = record.event
            if isinstance(event, RunStarted):
                row = (
                    event.session,
                    event.tenant,
                    event.agent,
                    event.user_id,
                    event.started_ns or record.ts,
                )
                writes.append(Write("open_session", event.session, row))
                break
    return writes


PROJECTION = Projection(
    name="sessions",
    version=1,
    source="runs",
    tables={"sessions": ("session_id",)},
    fold=fold,
)
