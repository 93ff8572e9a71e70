"""What processes cost, read from ``/proc``: processor seconds and resident memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes, all threads; dead ones count nothing."""
    return sum(_ticks(pid) for pid in pids) * _TICK_S


def busy_seconds() -> float:
    """Processor time spent by everything on this machine since it started."""
    fields = Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
    user, nice, system, _, _, irq, softirq = map(int, fields)
    return (user + nice + system + irq + softirq) * _TICK_S


class Share:
    """Of the machine's processors, what processes other than ours and ``pids`` take from now."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._began, self._ours, self._busy = time.perf_counter(), self._used(), busy_seconds()

    def others(self) -> float:
        """Percent since the start; processes that ended meanwhile count as others."""
        busy = busy_seconds() - self._busy - (self._used() - self._ours)
        whole = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        return max(0.0, 100 * busy / whole)

    def _used(self) -> float:
        return cpu_seconds(self._pids) + time.process_time()


def resident_mb(pid: int) -> float:
    """Resident memory in megabytes (10^6 bytes)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
