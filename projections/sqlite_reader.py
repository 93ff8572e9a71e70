"""Reading SQLite views, from any process and while they are being replaced.

A reader finds the served file by the pointer in the directory; it writes nothing but the request
to repair what it could not read.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from typing import cast

import aiosqlite

from projections.database import Row
from projections.framework import Params, ViewUnavailable
from projections.sqlite_folder import SqliteFolder
from projections.statements import Statement

_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
    }
)
"""What a reader reports to the writer; a missing column may just be another version's table."""

_READERS = 2

NOT_SERVED = "the views are being built from the log: try again"

Served = tuple[int, int]
"""Inode and time of the pointer: changes whenever another slot is served."""


class SqliteReader:
    """A few read-only connections, opened again when another slot is served."""

    def __init__(self, folder: SqliteFolder) -> None:
        self._folder = folder
        self._free: list[tuple[Served, aiosqlite.Connection]] = []
        self._slots = asyncio.Semaphore(_READERS)

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        async with self._slots:
            try:
                served = _served(self._folder)
                db = await self._take(served)
                try:
                    rows = cast(list[Row], await db.execute_fetchall(query.sql, params))
                except BaseException:
                    await db.close()
                    raise
                self._free.append((served, db))
            except sqlite3.Error as cause:
                raise _unreadable(self._folder, cause) from None
        return rows

    async def _take(self, served: Served) -> aiosqlite.Connection:
        while self._free:
            opened_for, db = self._free.pop()
            if opened_for == served:
                return db
            await db.close()
        return await aiosqlite.connect(_uri(self._folder), uri=True, isolation_level=None)

    async def close(self) -> None:
        while self._free:
            _, db = self._free.pop()
            await db.close()


class DirectReader:
    """One connection used in the loop's own thread: same answers, same timing, every time."""

    def __init__(self, folder: SqliteFolder) -> None:
        self._folder = folder
        self._open: tuple[Served, sqlite3.Connection] | None = None

    async def fetch(self, query: Statement, params: Params = ()) -> list[Row]:
        try:
            served = _served(self._folder)
            if self._open is None or self._open[0] != served:
                await self.close()
                db = sqlite3.connect(_uri(self._folder), uri=True, isolation_level=None)
                self._open = served, db
            return self._open[1].execute(query.sql, params).fetchall()
        except sqlite3.Error as cause:
            await self.close()
            raise _unreadable(self._folder, cause) from None

    async def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _served(folder: SqliteFolder) -> Served:
    """Raises ViewUnavailable when nothing is served."""
    try:
        status = os.stat(folder.pointer)
    except FileNotFoundError:
        raise ViewUnavailable(NOT_SERVED) from None
    return status.st_ino, status.st_mtime_ns


def _uri(folder: SqliteFolder) -> str:
    slot = folder.serving()
    if slot is None:
        raise ViewUnavailable(NOT_SERVED)
    return f"{folder.file(slot).absolute().as_uri()}?mode=ro"


def _unreadable(folder: SqliteFolder, cause: sqlite3.Error) -> ViewUnavailable:
    if primary_code(cause) in _DAMAGE:
        folder.ask("damaged")
    return ViewUnavailable(f"the views cannot be read now: {cause}")


def primary_code(cause: sqlite3.Error) -> int:
    """SQLite's result code without its details; 0 for errors of the module itself."""
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF
