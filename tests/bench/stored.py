"""What a deployment keeps: bytes in its log, rows and bytes in its views. Read from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

import nats
from tests.bench.deployment import Deployment


class Stored(NamedTuple):
    """``log_bytes`` with the log's own headers; ``view_rows`` of all tables of the views."""

    log_bytes: int
    view_rows: int
    view_bytes: int

    def each(self, before: Stored, count: int) -> tuple[float, float, float]:
        """What each of ``count`` things added."""
        log, rows, size = ((a - b) / count for a, b in zip(self, before, strict=True))
        return log, rows, size


async def stored(made: Deployment) -> Stored:
    """Of a running server with SQLite views and an embedded log, at rest."""
    return Stored(await _log_bytes(made), *_views(made))


async def _log_bytes(made: Deployment) -> int:
    facts = made.facts()
    client = await nats.connect(f"nats://127.0.0.1:{facts.port}", token=facts.token)
    try:
        streams = await client.jetstream().streams_info()
        return sum(stream.state.bytes for stream in streams)
    finally:
        await client.close()


def _views(made: Deployment) -> tuple[int, int]:
    """Rows and bytes of the tables that are served."""
    (serving,) = made.data.rglob("serving")
    path = serving.with_name(f"views-{serving.read_text().strip()}.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        tables = [
            name
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")
        ]
        rows = sum(db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)
        ((pages,),) = db.execute("PRAGMA page_count")
        ((size,),) = db.execute("PRAGMA page_size")
    return rows, pages * size
