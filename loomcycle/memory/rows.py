"""The rows of one scope, folded from its events: values, byte usage, expiry.

No I/O and no clock: whoever asks says what time it is. Expired rows are invisible at once; for
``delete`` and ``created_at`` they count until a sweeper would have removed them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

from msgspec import UNSET, Struct

from events.state import MemoryWritten

_ROW_OVERHEAD_BYTES = 400
_MARK_EVERY_NS = 10_000_000_000
_MAX_MARKS = 4096


class Address(NamedTuple):
    """A scope: all rows that share a quota and are listed together."""

    tenant: str
    scope: str
    scope_id: str


class Row(Struct, frozen=True):
    """``value`` is JSON text. Times are unix nanoseconds; ``expires_at_ns`` None = never."""

    value: bytes
    expires_at_ns: int | None
    created_at_ns: int
    updated_at_ns: int

    def live_at(self, now_ns: int) -> bool:
        return self.expires_at_ns is None or self.expires_at_ns > now_ns


class Page(NamedTuple):
    """Rows by ascending key; ``truncated`` when there are more."""

    entries: list[tuple[str, Row]]
    truncated: bool


def key_bytes(key: str) -> int:
    return len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))


class ScopeRows:
    """Fold of a scope's events; ``seq`` is the stream sequence of the last one."""

    def __init__(self, sweep_ns: int | None = None) -> None:
        """``sweep_ns``: how long expired rows stay present; None = for ever."""
        self.seq = 0
        self._sweep_ns = sweep_ns
        self._rows: dict[str, Row] = {}
        self._order: list[str] = []
        self._bytes = 0
        self._live_bytes = 0
        self._expired: set[str] = set()
        self._expiries: list[tuple[int, str]] = []
        self._unswept: deque[tuple[int, str]] = deque()
        self._marks: list[tuple[int, int]] = []

    @property
    def footprint(self) -> int:
        """Roughly the bytes of memory that the rows take."""
        return self._bytes + _ROW_OVERHEAD_BYTES * len(self._rows)

    # --- folding --------------------------------------------------------------------------

    def apply(self, seq: int, event: MemoryWritten) -> None:
        """Take the next event of the scope; ``seq`` must rise."""
        self.seq = seq
        if event.value is UNSET:
            self._remove(event.key)
            return
        row = Row(bytes(event.value), event.expires_at_ns, event.created_at_ns, event.updated_at_ns)
        self._put(event.key, row)

    def mark(self, seq: int, time_ns: int) -> None:
        """Remember, now and then, when the log stored a message."""
        if self._marks and time_ns - self._marks[-1][0] < _MARK_EVERY_NS:
            return
        self._marks.append((time_ns, seq))
        if len(self._marks) > _MAX_MARKS:
            del self._marks[::2]

    def seq_before(self, time_ns: int) -> int:
        """A sequence such that every message stored at or after ``time_ns`` comes behind it."""
        index = bisect_left(self._marks, (time_ns, 0))
        return self._marks[index - 1][1] if index else 0

    def _put(self, key: str, row: Row) -> None:
        self._forget(key)
        size = key_bytes(key) + len(row.value)
        if key not in self._rows:
            insort(self._order, key)
        self._rows[key] = row
        self._bytes += size
        self._live_bytes += size
        if row.expires_at_ns is not None:
            heapq.heappush(self._expiries, (row.expires_at_ns, key))
            if len(self._expiries) > 2 * len(self._rows) + 64:
                self._rebuild_expiries()

    def _remove(self, key: str) -> None:
        if self._forget(key):
            del self._rows[key]
            del self._order[bisect_left(self._order, key)]

    def _forget(self, key: str) -> bool:
        """Take the row's bytes out of the sums; whether there is such a row."""
        row = self._rows.get(key)
        if row is None:
            return False
        size = key_bytes(key) + len(row.value)
        self._bytes -= size
        if key in self._expired:
            self._expired.remove(key)
        else:
            self._live_bytes -= size
        return True

    def _rebuild_expiries(self) -> None:
        self._expiries = [
            (row.expires_at_ns, key)
            for key, row in self._rows.items()
            if row.expires_at_ns is not None and key not in self._expired
        ]
        heapq.heapify(self._expiries)

    def _expire(self, now_ns: int) -> None:
        """Take rows that expired out of the live sum, and sweep those that did so long ago."""
        while self._expiries and self._expiries[0][0] <= now_ns:
            expires, key = heapq.heappop(self._expiries)
            row = self._rows.get(key)
            if row is None or row.expires_at_ns != expires or key in self._expired:
                continue
            self._expired.add(key)
            self._live_bytes -= key_bytes(key) + len(row.value)
            if self._sweep_ns is not None:
                self._unswept.append((expires + self._sweep_ns, key))
        while self._unswept and self._unswept[0][0] <= now_ns:
            _, key = self._unswept.popleft()
            row = self._rows.get(key)
            if row is not None and not self._present(row, now_ns):
                self._remove(key)

    # --- asking ---------------------------------------------------------------------------

    def live(self, key: str, now_ns: int) -> Row | None:
        """The row that readers see."""
        row = self._rows.get(key)
        return row if row is not None and row.live_at(now_ns) else None

    def present(self, key: str, now_ns: int) -> Row | None:
        """The row, also when it is expired and not yet swept."""
        row = self._rows.get(key)
        return row if row is not None and self._present(row, now_ns) else None

    def _present(self, row: Row, now_ns: int) -> bool:
        if row.expires_at_ns is None or self._sweep_ns is None:
            return True
        return row.expires_at_ns + self._sweep_ns > now_ns

    def used(self, now_ns: int, *, without: str) -> int:
        """Bytes of keys and values of the live rows, except the row ``without``."""
        self._expire(now_ns)
        row = self._rows.get(without)
        if row is None or without in self._expired:
            return self._live_bytes
        return self._live_bytes - key_bytes(without) - len(row.value)

    def live_keys(self, now_ns: int) -> int:
        """How many live rows there are."""
        self._expire(now_ns)
        return len(self._rows) - len(self._expired)

    def page(self, prefix: str, limit: int, now_ns: int) -> Page:
        """The first ``limit`` live rows whose key begins with ``prefix``, in byte order."""
        entries: list[tuple[str, Row]] = []
        for index in range(bisect_left(self._order, prefix), len(self._order)):
            key = self._order[index]
            if not key.startswith(prefix):
                break
            row = self._rows[key]
            if not row.live_at(now_ns):
                continue
            if len(entries) == limit:
                return Page(entries, True)
            entries.append((key, row))
        return Page(entries, False)
