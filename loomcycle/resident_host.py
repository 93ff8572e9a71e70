"""The child that holds one code-js program at its frontier. Started by ``resident_program.py``.

A script for an isolated interpreter without site-packages: it may import built-in modules and the
engine, nothing of the project. Whatever is unusual here ends the process without a word: the
parent then runs the program again, and that decides. Standard input is the socket to the parent.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn  # takes as long to import as all the rest

SOCKET = 0
MINT, SEAL, FEED, RUN, REPORT = range(5)
ADDRESS_SPACE = 512 << 20
"""Bytes that interpreter, engine and messages may have beside the program and its results."""
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def gone(*_: object) -> NoReturn:
    os._exit(1)


def receive() -> bytes:
    """The next message: four bytes of length, then so many bytes."""
    return _exactly(int.from_bytes(_exactly(4), "big"))


def _exactly(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(SOCKET, min(size, 1 << 20)) or gone()
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(text: str) -> None:
    data = text.encode()
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(SOCKET, data) :]


class Peak:
    """Whether the program has ever used more than half of its memory.

    A program that catches its lack of memory could notice how the limit differs between this
    process and a new execution. It is small: no program that kept below half of its memory met it.
    Address space counts, because memory that was never written to is also the program's.
    """

    def __init__(self, program_memory: int) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._most = self._kilobytes() + program_memory // 2048
        self._faults = 0

    def check(self) -> None:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if faults != self._faults:
            self._faults = faults
            if self._kilobytes() > self._most:
                gone()

    def _kilobytes(self) -> int:
        status = os.pread(self._status, 8192, 0)
        return int(status.partition(b"VmPeak:")[2].split(None, 1)[0])


def limit(memory: int, time_s: int) -> None:
    """What the system enforces should the engine be taken over, or the parent be gone."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def execute(engine: Any, given: dict[str, Any]) -> str:
    """Run the program to its end, passing on each call that is not recorded; the report."""
    context = engine.Context()

    def ask(waiting: str) -> str:
        peak.check()
        send(waiting)
        return str(receive(), "utf-8")

    context.add_callable("ask", ask)
    host = context.eval(given["prelude"])
    context.set_time_limit(0.0)
    try:
        host(MINT)
    except engine.JSException:
        context.set_time_limit(-1.0)
    host(SEAL)
    context.set_max_stack_size(given["stack"])
    for page in given.pop("pages"):
        host(FEED, *page)
    peak = Peak(given["program_memory"])
    context.set_memory_limit(given["memory"])
    host(RUN, *given["arguments"])
    peak.check()
    context.set_memory_limit(given["memory"] + given["report_memory"])
    context.set_time_limit(given["report_time_s"])
    report: str = host(REPORT)
    return report


def main(parent: int, library: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        gone()
    sys.path.append(library)
    engine = importlib.import_module("_quickjs")
    time_s, given = marshal.loads(receive())
    limit(ADDRESS_SPACE + 8 * given["memory"], time_s)
    send(execute(engine, given))
    receive()  # the parent's end closes when it has read the report


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2])
    finally:
        gone()
