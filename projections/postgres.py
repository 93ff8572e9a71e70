"""Views in PostgreSQL: one schema per slot, for one writer and many readers.

The writer is whoever holds an advisory lock, which ends with its connection; the position check
in every transaction keeps a writer out that lost its lock unnoticed.
PostgreSQL text cannot hold U+0000: it is stored as U+FFFD.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, cast

import asyncpg as untyped_asyncpg

from projections.database import Request, Row, Slot, other
from projections.framework import (
    Damaged,
    DatabaseBusy,
    Group,
    Manifest,
    Move,
    Params,
    Position,
    PositionMoved,
    Projection,
    Value,
    ViewUnavailable,
)
from projections.statements import Dialect, Statement, load

asyncpg: Any = untyped_asyncpg
"""The driver carries no usable types."""

_PAGE = 2000
_POOL = 4
_SCHEMA = {"a": "loomcycle_views_a", "b": "loomcycle_views_b", "": "loomcycle_views_scratch"}
_UNREACHABLE = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, TimeoutError)
_GONE = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.DataCorruptedError,
    asyncpg.IndexCorruptedError,
)


def _slots() -> dict[str, Statement]:
    return load("projections.slots", "slots", "postgres")


@contextlib.contextmanager
def _failures() -> Any:
    """Turn the driver's errors into the three that the projector knows."""
    try:
        yield
    except _GONE as cause:
        raise Damaged(f"PostgreSQL: {cause}") from cause
    except (*_UNREACHABLE, asyncpg.PostgresError) as cause:
        raise DatabaseBusy(f"PostgreSQL: {type(cause).__name__}: {cause}") from cause


def _storable(rows: list[Params]) -> list[Params]:
    """``rows`` without U+0000 in text."""
    if not any(isinstance(v, str) and "\0" in v for row in rows for v in row):
        return rows
    return [tuple(map(_replace_nul, row)) for row in rows]


def _replace_nul(value: Value) -> Value:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


class PostgresTables:
    """One schema, through a connection of its own."""

    def __init__(self, connection: Any) -> None:
        self._db = connection
        self._queries = load("projections.positions", "queries", "postgres")
        self._writes = load("projections.positions", "writes", "postgres")
        self._lock_positions = _slots()["lock_positions"]

    @classmethod
    async def connect(cls, dsn: str, slot: str) -> PostgresTables:
        with _failures():
            connection = await asyncpg.connect(dsn)
            await connection.execute(_slots()["use_schema"].sql, _SCHEMA[slot])
            return cls(connection)

    async def create(
        self, projections: Sequence[Projection], starts: dict[str, int], vocabulary: str
    ) -> None:
        schema = list(load("projections.positions", "schema", "postgres").values())
        for projection in projections:
            schema += projection.schema("postgres")
        write = self._writes
        with _failures():
            async with self._db.transaction():
                for statement in schema:
                    await self._db.execute(statement.sql)
                versions = [(p.name, p.version) for p in projections]
                await self._db.executemany(write["set_version"].sql, versions)
                await self._db.executemany(write["set_position"].sql, list(starts.items()))
                await self._db.execute(write["set_vocabulary"].sql, vocabulary)

    async def settle(self, projections: Sequence[Projection]) -> None:
        with _failures():
            async with self._db.transaction():
                for projection in projections:
                    for statement in projection.indexes("postgres"):
                        await self._db.execute(statement.sql)

    async def manifest(self) -> Manifest:
        versions = await self.fetch(self._queries["versions"])
        vocabulary = await self.fetch(self._queries["vocabulary"])
        return Manifest(
            {cast(str, name): cast(int, version) for name, version in versions},
            cast(str, vocabulary[0][0]) if vocabulary else "",
        )

    async def positions(self) -> dict[str, Position]:
        rows = await self.fetch(self._queries["positions"])
        return {cast(str, s): Position(cast(int, seq), cast(str, held)) for s, seq, held in rows}

    async def commit(self, groups: Sequence[Group], moves: Sequence[Move]) -> None:
        db = self._db
        with _failures():
            async with db.transaction():
                found = dict(tuple(r) for r in await db.fetch(self._lock_positions.sql))
                for move in moves:
                    if found.get(move.stream) != move.before:
                        raise PositionMoved(f"{move.stream} is not at {move.before}")
                for statement, rows in groups:
                    await db.executemany(statement.sql, _storable(rows))
                moved = [(m.stream, *m.after) for m in moves]
                await db.executemany(self._writes["move_position"].sql, moved)

    async def note_vocabulary(self, fingerprint: str) -> None:
        with _failures():
            async with self._db.transaction():
                await self._db.execute(self._writes["forget_vocabulary"].sql)
                await self._db.execute(self._writes["set_vocabulary"].sql, fingerprint)

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        with _failures():
            return [tuple(r) for r in await self._db.fetch(query.sql, *params)]

    async def rows(self, query: Statement) -> AsyncGenerator[Sequence[Row], None]:
        with _failures():
            if self._db.is_in_transaction():
                async for page in self._pages(query):
                    yield page
                return
            async with self._db.transaction():
                async for page in self._pages(query):
                    yield page

    async def _pages(self, query: Statement) -> AsyncIterator[Sequence[Row]]:
        cursor = await self._db.cursor(query.sql)
        while page := await cursor.fetch(_PAGE):
            yield [tuple(r) for r in page]

    async def check(self) -> None:
        with _failures():
            await self._db.fetch(self._queries["versions"].sql)

    async def close(self) -> None:
        with contextlib.suppress(*_UNREACHABLE, asyncpg.PostgresError):
            await self._db.close(timeout=2)


class PostgresBackend:
    """A database that may hold other things too; the views live in schemas of their own."""

    dialect: Dialect = "postgres"

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._home: Any | None = None

    async def home(self) -> Any:
        """The writer's connection: it holds the lock and changes slots."""
        if self._home is None or self._home.is_closed():
            with _failures():
                self._home = await asyncpg.connect(self.dsn)
        return self._home

    async def _run(self, *names: str) -> None:
        db = await self.home()
        with _failures():
            async with db.transaction():
                for name in names:
                    await db.execute(_slots()[name].sql)

    async def lock(self) -> bool:
        db = await self.home()
        with _failures():
            if not await db.fetchval(_slots()["lock"].sql):
                return False
        await self._run("create_home", "create_serving", "create_requests")
        return True

    async def unlock(self) -> None:
        home, self._home = self._home, None
        if home is not None and not home.is_closed():
            with contextlib.suppress(*_UNREACHABLE, asyncpg.PostgresError):
                await home.close(timeout=2)

    async def serving(self) -> Slot | None:
        db = await self.home()
        return await read_serving(db)

    async def open(self, slot: Slot) -> PostgresTables:
        tables = await PostgresTables.connect(self.dsn, slot)
        try:
            await tables.check()
        except Damaged:
            await tables.close()
            raise
        return tables

    async def create(
        self,
        slot: Slot,
        projections: Sequence[Projection],
        starts: dict[str, int],
        vocabulary: str,
    ) -> PostgresTables:
        await self._run(f"drop_{slot}", f"create_{slot}")
        tables = await PostgresTables.connect(self.dsn, slot)
        await tables.create(projections, starts, vocabulary)
        return tables

    async def serve(self, slot: Slot) -> None:
        db = await self.home()
        with _failures():
            async with db.transaction():
                await db.execute(_slots()["clear_serving"].sql)
                await db.execute(_slots()["set_serving"].sql, slot)
                await db.execute(_slots()[f"drop_{other(slot)}"].sql)

    async def withdraw(self, slot: Slot) -> None:
        await self._run("clear_serving", f"drop_{slot}")

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PostgresTables]:
        with _failures():
            db = await asyncpg.connect(self.dsn)
        try:
            with _failures():
                async with db.transaction(isolation="repeatable_read", readonly=True):
                    slot = await read_serving(db)
                    if slot is None:
                        raise ViewUnavailable("no view is being served yet")
                    await db.execute(_slots()["use_schema"].sql, _SCHEMA[slot])
                    yield PostgresTables(db)
        finally:
            await db.close(timeout=2)

    @contextlib.asynccontextmanager
    async def scratch(
        self, projections: Sequence[Projection], starts: dict[str, int]
    ) -> AsyncIterator[PostgresTables]:
        db = await asyncpg.connect(self.dsn)
        try:
            for name in ("drop_scratch", "create_scratch"):
                await db.execute(_slots()[name].sql)
            await db.execute(_slots()["use_schema"].sql, _SCHEMA[""])
            tables = PostgresTables(db)
            await tables.create(projections, starts, "")
            yield tables
            await db.execute(_slots()["drop_scratch"].sql)
        finally:
            await db.close(timeout=2)

    async def ask(self, request: Request) -> None:
        with _failures():
            db = await asyncpg.connect(self.dsn)
            try:
                await db.execute(_slots()["ask"].sql, request)
            finally:
                await db.close(timeout=2)

    async def asked(self) -> Request | None:
        db = await self.home()
        with _failures():
            found = {r[0] for r in await db.fetch(_slots()["take_requests"].sql)}
        return "damaged" if "damaged" in found else "rebuild" if "rebuild" in found else None

    def reader(self) -> PostgresReader:
        return PostgresReader(self.dsn)

    async def close(self) -> None:
        await self.unlock()


async def read_serving(db: Any) -> Slot | None:
    """The served slot, None when there is none or no writer was ever here."""
    try:
        slot = await db.fetchval(_slots()["serving"].sql)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    return "a" if slot == "a" else "b" if slot == "b" else None


class PostgresReader:
    """A pool on the served schema, replaced when that schema is gone."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._pool: Any | None = None

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        try:
            try:
                return await self._try(query, params)
            except _GONE:
                await self.close()
                return await self._try(query, params)
        except (*_UNREACHABLE, asyncpg.PostgresError) as cause:
            raise ViewUnavailable(
                f"the views cannot be read now: {type(cause).__name__}: {cause}"
            ) from None

    async def _try(self, query: Statement, params: Params) -> list[Row]:
        pool = self._pool or await self._connect()
        safe = tuple(map(_replace_nul, params))
        return [tuple(r) for r in await pool.fetch(query.sql, *safe)]

    async def _connect(self) -> Any:
        db = await asyncpg.connect(self._dsn)
        try:
            slot = await read_serving(db)
        finally:
            await db.close()
        if slot is None:
            raise ViewUnavailable("the views are being built from the log: try again")
        pool = await asyncpg.create_pool(
            self._dsn,
            min_size=1,
            max_size=_POOL,
            server_settings={"search_path": _SCHEMA[slot]},
        )
        if self._pool is not None:  # another task was faster
            await pool.close()
            return self._pool
        self._pool = pool
        return pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()
