"""Proves that the served tables are what the log says: folds it again and compares every row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct

from events.log import EventStore, Message
from projections.database import Backend, Row, Tables
from projections.feed import BATCH_MESSAGES, Feed
from projections.framework import Position, Projection
from projections.sources import Source, sources_of
from projections.statements import Statement

DIFFERENCES = 5
"""Differences that are reported for each table."""


class Difference(Struct, frozen=True):
    """The first row that differs: None where one side has no such row."""

    table: str
    row: int
    expected: str | None
    found: str | None


class Report(Struct, frozen=True):
    """``rows``: rows compared per table. Equal views have no differences."""

    rows: dict[str, int]
    differences: list[Difference]
    positions: dict[str, int]

    @property
    def equal(self) -> bool:
        return not self.differences


async def verify(backend: Backend, projections: Sequence[Projection], store: EventStore) -> Report:
    """Fold the log up to the served positions into scratch tables and compare.

    Works beside a running writer, in any process. Raises ViewUnavailable, LogError, Damaged.
    """
    sources = sources_of(store.subjects)
    starts = {s.stream: s.first - 1 for s in sources}
    async with (
        backend.snapshot() as served,
        backend.scratch(projections, starts) as scratch,
    ):
        goal = await served.positions()
        feed = Feed(
            store=store,
            tables=scratch,
            dialect=backend.dialect,
            projections=projections,
            sources=sources,
            moved=lambda _: None,
        )
        feed.positions = await scratch.positions()
        for source in sources:
            await _fold_up_to(feed, store, source, goal[source.stream])
        rows: dict[str, int] = {}
        differences: list[Difference] = []
        for projection in projections:
            queries = projection.queries(backend.dialect)
            for table in projection.tables:
                query = queries[f"all_of_{table}"]
                rows[table] = await _compare(table, query, scratch, served, differences.append)
    return Report(rows, differences, {s: p.seq for s, p in goal.items()})


async def _fold_up_to(feed: Feed, store: EventStore, source: Source, goal: Position) -> None:
    """Apply exactly the messages up to ``goal``, purged ones left out."""
    last = min(goal.seq, await source.last_stored(store.log))
    if last < source.first:
        return
    batch: list[Message] = []
    async for messages in store.log.tail(source.stream, after=source.first - 1):
        batch += (m for m in messages if m.seq <= last)
        reached = messages[-1].seq >= last
        if len(batch) >= BATCH_MESSAGES or reached:
            await feed.apply({source.stream: batch})
            batch = []
        if reached:
            return


async def _compare(
    table: str,
    query: Statement,
    expected: Tables,
    found: Tables,
    report: Callable[[Difference], None],
) -> int:
    """Walk both tables in the same order; a missing row ends the walk, for all shift after it."""
    count = reported = 0
    async with (
        aclosing(_each(expected.rows(query))) as left,
        aclosing(_each(found.rows(query))) as right,
    ):
        while True:
            a, b = await asyncio.gather(anext(left, None), anext(right, None))
            if a is None and b is None:
                return count
            count += 1
            if a == b:
                continue
            report(Difference(table, count, _show(a), _show(b)))
            reported += 1
            if reported == DIFFERENCES or a is None or b is None or a[0] != b[0]:
                return count


async def _each(pages: AsyncGenerator[Sequence[Row], None]) -> AsyncGenerator[Row, None]:
    async with aclosing(pages):
        async for page in pages:
            for row in page:
                yield row


def _show(row: Row | None) -> str | None:
    return None if row is None else repr(row)[:2000]
