"""What Read, Glob and Grep share: input decoding, error texts, and work in a thread.

File work never runs on the event loop. When its run is cancelled the thread is told so and ends
at its next checkpoint; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable
from typing import BinaryIO, TypeVar

import msgspec

from loomcycle.tools.base import ToolOutput
from loomcycle.volumes import Located, VolumeError, open_file

Input = TypeVar("Input")


class InvalidCall(Exception):
    """Input that decodes and still cannot be worked on; the message is the tool's error text."""


class Stopped(Exception):
    """Raised at a checkpoint inside the thread after the call was cancelled."""


async def run_file_tool(
    decoder: msgspec.json.Decoder[Input],
    input_json: bytes,
    work: Callable[[Input, Callable[[], None]], str],
) -> ToolOutput:
    """Decode the input, do ``work(input, checkpoint)`` in a thread, and map what it raises."""
    try:
        request = decoder.decode(input_json)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return ToolOutput(f"invalid input: {error}", is_error=True)
    stop = threading.Event()

    def checkpoint() -> None:
        if stop.is_set():
            raise Stopped

    try:
        return ToolOutput(printable(await asyncio.to_thread(work, request, checkpoint)))
    except (InvalidCall, VolumeError) as refusal:
        return ToolOutput(printable(str(refusal)), is_error=True)
    except OSError as error:
        return ToolOutput(printable(_os_error_text(error)), is_error=True)
    finally:
        stop.set()


def open_regular(place: Located) -> BinaryIO:
    """Open a regular file for reading; raises :class:`OSError`, also for any other kind."""
    descriptor = open_file(place)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return open(descriptor, "rb", closefd=True)
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place.path)
    raise OSError(errno.EINVAL, "not a regular file", place.path)


def printable(text: str) -> str:
    """Replace what cannot be written as UTF-8 (file names may hold any bytes)."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _os_error_text(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"open {error.filename}: {reason}" if error.filename else reason
