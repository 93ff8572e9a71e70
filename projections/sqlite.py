"""Views in SQLite: a directory with one file per slot, for one writer and many readers.

The writer uses the stock module and runs each batch as one blocking call, in the projector's own
thread: a transaction without an await inside cannot be half cancelled. Readers use aiosqlite.
``synchronous=NORMAL`` may lose the last batches with the machine; the log still has them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from projections.database import Reader, Request, Row, Slot
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
    ViewUnavailable,
)
from projections.sqlite_folder import SqliteFolder, remove
from projections.sqlite_reader import NOT_SERVED, DirectReader, SqliteReader, primary_code
from projections.statements import Dialect, Statement, load

_PAGE = 2000
_BUSY = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)
_SETUP = ("PRAGMA busy_timeout=2000",)

_SERVING = (
    "PRAGMA cache_size=-8192",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA wal_autocheckpoint=8000",
)
_FILLING = (
    "PRAGMA cache_size=-16384",
    "PRAGMA journal_mode=MEMORY",
    "PRAGMA synchronous=OFF",
)
"""Nobody reads yet, and what a crash leaves behind is never served."""


def _failure(cause: sqlite3.Error) -> Damaged | DatabaseBusy:
    """Statements are fixed and tested, so whatever is not passing is damage."""
    if primary_code(cause) in _BUSY:
        return DatabaseBusy(f"SQLite: {cause}")
    return Damaged(f"SQLite: {cause}")


class SqliteTables:
    """One database file, opened for the projector."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._db = connection
        self._files = self._identity()
        self._queries = load("projections.positions", "queries", "sqlite")
        self._writes = load("projections.positions", "writes", "sqlite")

    @classmethod
    def open(cls, path: Path, *, create: bool) -> SqliteTables:
        """Raises Damaged when there is no such file (``create`` False) or it is no database."""
        if not create and not path.is_file():
            raise Damaged(f"{path.name} is missing")
        try:
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in (*_SETUP, *(_FILLING if create else _SERVING)):
                db.execute(pragma).fetchall()
        except sqlite3.Error as cause:
            raise _failure(cause) from None
        return cls(path, db)

    def _identity(self) -> list[tuple[int, int] | None]:
        """Device and inode of the file and its write-ahead log; None where absent or empty."""
        found: list[tuple[int, int] | None] = []
        for name in (str(self._path), f"{self._path}-wal"):
            try:
                status = os.stat(name)
                found.append((status.st_dev, status.st_ino) if status.st_size else None)
            except FileNotFoundError:
                found.append(None)
        return found

    async def check(self) -> None:
        for now, before in zip(self._identity(), self._files, strict=True):
            if before is not None and now != before:
                raise Damaged(f"{self._path.name} was deleted, replaced or emptied")

    def create(
        self, projections: Sequence[Projection], starts: dict[str, int], vocabulary: str
    ) -> None:
        """Create all tables and first positions in one transaction."""
        schema = list(load("projections.positions", "schema", "sqlite").values())
        for projection in projections:
            schema += projection.schema("sqlite")
        write = self._writes
        with self._transaction():
            for statement in schema:
                self._db.execute(statement.sql)
            versions = [(p.name, p.version) for p in projections]
            self._db.executemany(write["set_version"].sql, versions)
            self._db.executemany(write["set_position"].sql, list(starts.items()))
            self._db.execute(write["set_vocabulary"].sql, (vocabulary,))
        self._files = self._identity()

    async def settle(self, projections: Sequence[Projection]) -> None:
        with self._transaction():
            for projection in projections:
                for statement in projection.indexes("sqlite"):
                    self._db.execute(statement.sql)
        try:
            for pragma in _SERVING:
                self._db.execute(pragma).fetchall()
        except sqlite3.Error as cause:
            raise _failure(cause) from None
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._files = self._identity()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("COMMIT")
        except BaseException as cause:
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            if isinstance(cause, sqlite3.Error):
                raise _failure(cause) from cause
            raise

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
        await self.check()
        db = self._db
        with self._transaction():
            found = {s: seq for s, seq, _ in db.execute(self._queries["positions"].sql)}
            for move in moves:
                if found.get(move.stream) != move.before:
                    raise PositionMoved(f"{move.stream} is not at {move.before}")
            for statement, rows in groups:
                db.executemany(statement.sql, rows)
            db.executemany(self._writes["move_position"].sql, [(m.stream, *m.after) for m in moves])
        if None in self._files:
            self._files = self._identity()

    async def note_vocabulary(self, fingerprint: str) -> None:
        with self._transaction():
            self._db.execute(self._writes["forget_vocabulary"].sql)
            self._db.execute(self._writes["set_vocabulary"].sql, (fingerprint,))

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        try:
            return self._db.execute(query.sql, params).fetchall()
        except sqlite3.Error as cause:
            raise _failure(cause) from None

    async def rows(self, query: Statement) -> AsyncGenerator[Sequence[Row], None]:
        try:
            cursor = self._db.execute(query.sql)
            while page := cursor.fetchmany(_PAGE):
                yield page
        except sqlite3.Error as cause:
            raise _failure(cause) from None

    def freeze(self) -> None:
        """Begin a read transaction: every later read sees this moment."""
        try:
            self._db.execute("BEGIN")
            self._db.execute(self._queries["positions"].sql).fetchall()
        except sqlite3.Error as cause:
            raise _failure(cause) from None

    async def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


class SqliteBackend:
    """The two files of a directory, one of them served."""

    dialect: Dialect = "sqlite"

    def __init__(self, folder: Path, *, direct: bool = False) -> None:
        """``direct``: readers block the loop instead of using threads (for simulation)."""
        self._folder = SqliteFolder(folder)
        self._direct = direct
        self._lock_fd: int | None = None

    async def lock(self) -> bool:
        self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._folder.writer_lock, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    async def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def serving(self) -> Slot | None:
        return self._folder.serving()

    async def open(self, slot: Slot) -> SqliteTables:
        return SqliteTables.open(self._folder.file(slot), create=False)

    async def create(
        self,
        slot: Slot,
        projections: Sequence[Projection],
        starts: dict[str, int],
        vocabulary: str,
    ) -> SqliteTables:
        path = self._folder.file(slot)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove(path)
        tables = SqliteTables.open(path, create=True)
        tables.create(projections, starts, vocabulary)
        return tables

    async def serve(self, slot: Slot) -> None:
        self._folder.serve(slot)

    async def withdraw(self, slot: Slot) -> None:
        self._folder.withdraw(slot)

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqliteTables]:
        slot = self._folder.serving()
        if slot is None:
            raise ViewUnavailable(NOT_SERVED)
        tables = SqliteTables.open(self._folder.file(slot), create=False)
        try:
            tables.freeze()
            yield tables
        finally:
            await tables.close()

    @contextlib.asynccontextmanager
    async def scratch(
        self, projections: Sequence[Projection], starts: dict[str, int]
    ) -> AsyncIterator[SqliteTables]:
        path = self._folder.path / f"verify-{os.getpid()}.db"
        remove(path)
        tables = SqliteTables.open(path, create=True)
        try:
            tables.create(projections, starts, "")
            yield tables
        finally:
            await tables.close()
            remove(path)

    async def ask(self, request: Request) -> None:
        self._folder.ask(request)

    async def asked(self) -> Request | None:
        return self._folder.asked()

    def reader(self) -> Reader:
        return DirectReader(self._folder) if self._direct else SqliteReader(self._folder)

    async def close(self) -> None:
        await self.unlock()
