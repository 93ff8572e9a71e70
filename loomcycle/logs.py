"""The process log: plain text on stderr, one line ``YYYY/MM/DD HH:MM:SS <message>`` each.

Messages carry their subsystem as a prefix (operations spec 13). No levels, no request log;
secrets are kept out by whoever logs.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

BOOT = "loomcycle.boot"
"""Logger of lines that stand without a subsystem."""

_QUIET = ("httpx", "httpcore", "uvicorn", "asyncio", "nats")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name != BOOT:
            record.msg, record.args = f"{subsystem(record.name)}: {message}", ()
        return super().format(record)


class Flood(logging.Filter):
    """Lets ``BURST`` messages of one kind through in ``WINDOW_S`` and counts the rest.

    A kind is a logger and a message before its arguments: thirty queues that lose the same
    server are one event. The next message of that kind says how many were left out.
    """

    BURST = 3
    WINDOW_S = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == BOOT:
            return True
        kind = (record.name, str(record.msg))
        now = self._clock()
        began, count = self._seen.get(kind, (now, 0))
        if now - began >= self.WINDOW_S:
            if count > self.BURST:
                left_out = count - self.BURST
                record.msg = f"{record.getMessage()} ({left_out} more like this before)"
                record.args = ()
            began, count = now, 0
        if len(self._seen) > 1000:
            self._seen.clear()
        self._seen[kind] = began, count + 1
        return count < self.BURST


def subsystem(logger: str) -> str:
    """The prefix of a logger's messages: its last part."""
    return logger.rpartition(".")[2]


def start_logging() -> None:
    """Send every logger to stderr; libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Flood())
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%Y/%m/%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
