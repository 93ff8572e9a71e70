"""The directory that holds SQLite views: its files, the served slot, and requests to the writer.

Knows names and nothing of SQL.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from projections.database import Request, Slot, other

_REQUESTS: tuple[Request, ...] = ("rebuild", "damaged")
"""The later one wins when both were asked for."""


class SqliteFolder:
    """``views-a.db``, ``views-b.db``, ``serving`` (names one of them) and ``writer.lock``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pointer = path / "serving"
        self.writer_lock = path / "writer.lock"

    def file(self, slot: Slot) -> Path:
        return self.path / f"views-{slot}.db"

    def serving(self) -> Slot | None:
        """The served slot, None when there is none."""
        try:
            text = self.pointer.read_text()
        except FileNotFoundError:
            return None
        return "a" if text == "a" else "b" if text == "b" else None

    def serve(self, slot: Slot) -> None:
        """Point readers to ``slot`` and delete the other one."""
        fresh = self.pointer.with_suffix(".new")
        fresh.write_text(slot)
        os.replace(fresh, self.pointer)
        remove(self.file(other(slot)))

    def withdraw(self, slot: Slot) -> None:
        """Serve nothing; the file of ``slot`` is kept aside as ``.damaged``."""
        self.pointer.unlink(missing_ok=True)
        path = self.file(slot)
        if path.is_file():
            os.replace(path, path.with_suffix(".damaged"))
        remove(path)

    def ask(self, request: Request) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / f"asked-{request}").touch()

    def asked(self) -> Request | None:
        """Take the request that was left, if any."""
        found: Request | None = None
        for request in _REQUESTS:
            with contextlib.suppress(FileNotFoundError):
                (self.path / f"asked-{request}").unlink()
                found = request
        return found


def remove(path: Path) -> None:
    """Delete a database file and what SQLite keeps beside it."""
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)
