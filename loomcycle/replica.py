"""One serving process: the runtime, its HTTP gateway, and an orderly end.

The gateway comes from the entry point group ``loomcycle.gateways`` (this package must not import
gateways). SIGINT and SIGTERM stop it; ten seconds later at the latest the process is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import Protocol

import uvloop

from events.embedded import EmbeddedServerError
from events.log import LogError
from loomcycle.address import Address
from loomcycle.config.loaded import LoadedConfig
from loomcycle.logs import BOOT
from loomcycle.runtime import Runtime, open_runtime
from loomcycle.tether import Tether

GATEWAYS = "loomcycle.gateways"
STOP_LIMIT_S = 9.5
"""After a signal; then the process ends whatever it is doing."""

SWITCH_S = 0.001
"""How long the projector's thread may keep the interpreter while a client waits."""

GC_THRESHOLDS = (10_000, 10, 30)
"""A full collection stops every client, for most of a second when ten thousand are waiting. What
waits for an answer of the log is soon free by itself and must not count as long-lived."""

boot = logging.getLogger(BOOT)


class Gateway(Protocol):
    """Serves until ``stop`` is set; calls ``ready`` with its address once it listens."""

    def __call__(
        self,
        runtime: Runtime,
        *,
        host: str,
        port: int,
        reuse_port: bool,
        stop: asyncio.Event,
        ready: Callable[[str], None],
    ) -> Awaitable[None]: ...


class NoGateway(Exception):
    """Nothing is installed that could serve HTTP."""

    code = "no_gateway"


def find_gateway(name: str) -> Gateway:
    """The gateway that the installation names ``name``. Raises NoGateway."""
    for entry in entry_points(group=GATEWAYS, name=name):
        gateway: Gateway = entry.load()
        return gateway
    raise NoGateway(
        f'no gateway "{name}" is installed (entry point group {GATEWAYS}):'
        " install the project, for example with `pip install -e .`"
    )


def run_replica(loaded: LoadedConfig, address: Address, *, tether: int = -1) -> int:
    """Serve until told to stop; returns the exit code. Call from the main thread.

    ``tether``: descriptor of the supervisor's socket, -1 without a supervisor.
    """
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_Replica(loaded, address, Tether(tether) if tether >= 0 else None).serve())
        except (EmbeddedServerError, LogError, NoGateway, OSError, ValueError) as error:
            boot.error("cannot start: %s", error)
            return 1
    return 0


class _Replica:
    def __init__(self, loaded: LoadedConfig, address: Address, tether: Tether | None) -> None:
        self._loaded = loaded
        self._address = address
        self._tether = tether
        self._stop = asyncio.Event()
        self._booting: asyncio.Task[Runtime] | None = None

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        if self._tether is not None:
            self._tether.watch(loop, self._on_signal)
        self._booting = asyncio.create_task(open_runtime(self._loaded))
        runtime, gateway = await asyncio.gather(
            self._booting, asyncio.to_thread(find_gateway, "http"), return_exceptions=True
        )
        if isinstance(runtime, BaseException):
            if self._stop.is_set():
                return
            raise runtime
        try:
            if isinstance(gateway, BaseException):
                raise gateway
            await gateway(
                runtime,
                host=self._address.host,
                port=self._address.port,
                reuse_port=self._tether is not None,
                stop=self._stop,
                ready=self._on_ready,
            )
        finally:
            await runtime.close()

    def _on_ready(self, bound: str) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        if self._tether is not None:
            self._tether.ready()
        else:
            boot.info("loomcycle listening on %s", bound)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            boot.warning("told to stop twice: ending at once")
            os._exit(1)
        if self._tether is None:
            boot.info("shutting down…")
        self._stop.set()
        if self._booting is not None:
            self._booting.cancel()
        threading.Thread(target=_end_late, name="stop-limit", daemon=True).start()


def _end_late() -> None:
    """In a thread, for the event loop may be what hangs."""
    threading.Event().wait(STOP_LIMIT_S)
    boot.error("not stopped after %g s: ending at once", STOP_LIMIT_S)
    os._exit(1)
