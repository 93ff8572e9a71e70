"""The line between the supervisor and one of its children: a socket pair, one end in each.

The child writes a byte when it serves, and learns from the end of the stream that its parent is
gone. On Linux the kernel's death signal says so too, even before the event loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_READY = b"\x01"


class Tether:
    """The child's end. ``fd`` was inherited from the supervisor; call from the main thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._socket.set_inheritable(False)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch(self, loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Call ``gone`` once when the parent has ended."""

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                if self._socket.recv(1):
                    return
                loop.remove_reader(self._socket)
                gone()

        loop.add_reader(self._socket, readable)

    def ready(self) -> None:
        """Tell the parent that this process serves."""
        with contextlib.suppress(OSError):
            self._socket.send(_READY)


class ParentEnd:
    """The supervisor's end, for one child."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @property
    def child_fd(self) -> int:
        """To be inherited by the child."""
        return self._theirs.fileno()

    def started(self) -> None:
        """The child runs and has its own copy."""
        self._theirs.close()

    async def ready(self) -> bool:
        """Wait for the child's word; False when it ended before."""
        with contextlib.suppress(OSError):
            return bool(await asyncio.get_running_loop().sock_recv(self._ours, 1))
        return False

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
