"""``serve --workers N``: a parent that owns nothing but its N equal children.

The children share the port (SO_REUSEPORT); the first one up starts the embedded nats-server and
the others join it. A child that dies is started again, later each time. The parent reads no
log, serves nothing, and takes its children with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from pathlib import Path

from loomcycle.address import Address
from loomcycle.logs import BOOT
from loomcycle.own_process import own_command, own_environ
from loomcycle.tether import ParentEnd

FIRST_DELAY_S = 0.2
LAST_DELAY_S = 30.0
STEADY_S = 60.0
"""A child that lived so long is started again without delay the next time it dies."""

OTHERS_STOP_S = 5.0
"""So long the child that may own nats-server goes on serving while the others stop."""

STOP_LIMIT_S = 9.8

log = logging.getLogger(__name__)
boot = logging.getLogger(BOOT)


def supervise(workers: int, address: Address, options: Sequence[str | Path]) -> int:
    """Run ``workers`` replicas on ``address`` until told to stop; returns the exit code.

    ``options`` are passed on to each ``serve``. Call from the main thread.
    """
    try:
        with reserve(address) as bound:
            return asyncio.run(Supervisor(workers, bound, list(map(str, options))).run())
    except OSError as error:
        boot.error("cannot listen on %s: %s", address, error.strerror or error)
        return 1


@contextlib.contextmanager
def reserve(address: Address) -> Iterator[Address]:
    """Hold the port without listening, so that only our children share it.

    Yields the address with its port (0 asks for a free one). Raises OSError when it is taken.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host or "0.0.0.0", address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        port = probe.getsockname()[1]
    with socket.socket(family, kind, protocol) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((where[0], port, *where[2:]))
        yield Address(address.host, port)


class Supervisor:
    """Keeps ``workers`` children alive. One use: :meth:`run`."""

    def __init__(self, workers: int, address: Address, options: Sequence[str]) -> None:
        self._address = address
        self._command = own_command("serve", *options, "--listen", str(address))
        self._children = [Child(number) for number in range(1, workers + 1)]
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Start the children one after the other's boot, keep them, end them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        first, *others = self._children
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(self._stop.wait())
            served = await self._boot(first, stopped)
            if not served and not self._stop.is_set():
                boot.error("worker 1 ended with status %s before it served", await first.ended())
                stopped.cancel()
                return 1
            keeping = [tasks.create_task(self._keep(child)) for child in self._children[:1]]
            if served:
                up = await asyncio.gather(*(self._boot(child, stopped) for child in others))
                keeping += [tasks.create_task(self._keep(child)) for child in others]
                if all(up) and not self._stop.is_set():
                    boot.info("loomcycle listening on %s (%d workers)", self._address, len(keeping))
            await self._stop.wait()
            await self._end()
            for task in keeping:
                task.cancel()
        return 0

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            boot.info("shutting down…")
        self._stop.set()

    async def _boot(self, child: Child, stopped: asyncio.Task[bool]) -> bool:
        """Start ``child``; False when it ended, or when told to stop, before it served."""
        starting = asyncio.create_task(child.start(self._command))
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        return False

    async def _keep(self, child: Child) -> None:
        """Start ``child`` again whenever it ends."""
        delay = 0.0
        while True:
            status = await child.ended()
            if self._stop.is_set():
                return
            delay = 0.0 if child.age_s >= STEADY_S else delay
            delay = min(delay * 2 or FIRST_DELAY_S, LAST_DELAY_S)
            log.warning(
                "worker %d ended with status %s; starting it again in %.1f s",
                child.number,
                status,
                delay,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()
                    return
            if await child.start(self._command):
                log.info("worker %d serves again", child.number)

    async def _end(self) -> None:
        """The first child last, for it most likely owns nats-server; nobody after the limit."""
        deadline = time.monotonic() + STOP_LIMIT_S
        first, *others = self._children
        for group, limit in ((others, OTHERS_STOP_S), ([first], STOP_LIMIT_S)):
            for child in group:
                child.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(limit, max(0.0, deadline - time.monotonic()))):
                    await asyncio.gather(*(child.ended() for child in group))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await asyncio.gather(*(child.ended() for child in self._children))
        for child in self._children:
            child.signal(signal.SIGKILL)


class Child:
    """One replica process, started any number of times."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.serving = False
        self._process: Process | None = None
        self._tether: ParentEnd | None = None
        self._started = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since the last start."""
        return time.monotonic() - self._started

    async def start(self, command: Sequence[str]) -> bool:
        """Start the process and wait until it serves; False when it ended before."""
        if self._tether is not None:
            self._tether.close()
        tether = self._tether = ParentEnd()
        self.serving = False
        self._started = time.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *command,
            "--tether",
            str(tether.child_fd),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(tether.child_fd,),
            process_group=0,  # Ctrl-C reaches the parent, which decides
            env=own_environ(),
        )
        tether.started()
        self.serving = await tether.ready()
        return self.serving

    async def ended(self) -> int:
        """Wait for the end of the process; its status."""
        return await self._process.wait() if self._process is not None else 0

    def signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
