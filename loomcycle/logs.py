"""The process log: plain text on stderr, one line ``YYYY/MM/DD HH:MM:SS <message>`` each.

Messages carry their subsystem as a prefix (operations spec 13). No levels, no request log;
secrets are kept out by whoever logs.
"""

from __future__ import annotations

import logging
import sys

BOOT = "loomcycle.boot"
"""Logger of lines that stand without a subsystem."""

_QUIET = ("httpx", "httpcore", "uvicorn", "asyncio", "nats")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name != BOOT:
            record.msg, record.args = f"{subsystem(record.name)}: {message}", ()
        return super().format(record)


def subsystem(logger: str) -> str:
    """The prefix of a logger's messages: its last part."""
    return logger.rpartition(".")[2]


def start_logging() -> None:
    """Send every logger to stderr; libraries speak from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%Y/%m/%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
