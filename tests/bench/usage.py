"""What processes cost, read from ``/proc``: processor seconds and resident memory."""

from __future__ import annotations

import os
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


def resident_mb(pid: int) -> float:
    """Resident memory in megabytes (10^6 bytes)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
