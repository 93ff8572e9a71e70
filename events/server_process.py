"""A nats-server as a child process that cannot outlive us, and the port it listens on.

The kernel's death signal guards it on Linux, a shell at the end of a pipe elsewhere. Nothing here
knows data directories, locks or configuration: that is ``events/embedded.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1

Guard = Literal["prctl", "pipe"]
"""How the server learns that its owner died: a signal from the kernel (Linux), or a pipe."""

DEFAULT_GUARD: Guard = "prctl" if sys.platform == "linux" else "pipe"


class ServerProcess:
    """One running child, in its own process group, so that Ctrl-C reaches us first."""

    def __init__(
        self, binary: Path, config: Path, *, output: Path, guard: Guard, keep_open: int
    ) -> None:
        """Start it. ``keep_open`` is a descriptor that it inherits; ``output`` is appended to.

        With the guard ``prctl`` it ends with the thread that starts it. Raises OSError.
        """
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        with open(output, "ab") as file:
            self._child = subprocess.Popen(
                [str(binary), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(keep_open,),
                preexec_fn=_die_with_parent(os.getpid()) if guard == "prctl" else None,
                process_group=0,
            )
        if guard == "pipe":
            self._start_guardian()

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        """The exit status, None while it runs; to be called until it is known."""
        status = self._child.poll()
        if status is not None:
            self._end_guardian()
        return status

    async def ended(self) -> None:
        """Return when it has ended; at once where the kernel would not tell."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(self.pid)
                try:
                    await _readable(handle)
                finally:
                    os.close(handle)

    def terminate(self) -> None:
        """Ask it to end."""
        self._end_guardian()
        self._child.terminate()

    def kill(self) -> None:
        """End it now, and wait."""
        self._end_guardian()
        self._child.kill()
        self._child.wait()

    def _start_guardian(self) -> None:
        """A shell that reads a pipe only we hold open, and ends the server when we are gone."""
        read_end, self._pipe = os.pipe()
        try:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", f"read _; kill -TERM {self.pid}"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        finally:
            os.close(read_end)

    def _end_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.kill()
            self._guardian.wait()
            self._guardian = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(handle, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(handle)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """For the forked child (Linux): ask the kernel for SIGTERM when the parent dies.

    And be scheduled as a batch process: each flush wakes threads of the server, and without this
    each of them pushes an event loop off its processor (docs/performance.md has the figures).
    """
    if threading.current_thread() is not threading.main_thread():
        log.warning("nats-server is started outside the main thread and ends with this thread")
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether a NATS server greets on this port."""
    try:
        with socket.create_connection((HOST, port), timeout=0.2) as probe:
            return probe.recv(5) == b"INFO "
    except OSError:
        return False
