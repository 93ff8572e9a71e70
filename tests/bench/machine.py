"""What the figures were measured on: processors, memory, and how long a flush takes."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from msgspec import Struct

FLUSHES = 200
MESSAGE = b"x" * 400


class Machine(Struct):
    """``flush_ms``: median of fdatasync after appending 400 bytes, in the bench's directory."""

    cores: int
    memory_gb: float
    cpu: str
    kernel: str
    python: str
    flush_ms: float
    load: float


def this_machine(directory: Path) -> Machine:
    return Machine(
        cores=os.cpu_count() or 0,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        cpu=_cpu_model(),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        flush_ms=round(flush_ms(directory), 3),
        load=round(os.getloadavg()[0], 2),
    )


def flush_ms(directory: Path) -> float:
    """Median milliseconds of a flush in ``directory``."""
    taken = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(MESSAGE)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
