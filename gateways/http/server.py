"""The HTTP listener: uvicorn with our limits, started and stopped by the process around it.

Signals, the event loop (uvloop) and the runtime's own end are that process' business, not ours.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from starlette.applications import Starlette

from gateways.http.app import build_app
from gateways.http.clients import Clients
from gateways.http.protocol import HeaderDeadlineProtocol
from loomcycle.address import Address
from loomcycle.runtime import Runtime

KEEP_ALIVE_S = 120
GRACE_S = 3
"""How long requests that do not stream may take to end once the server stops."""

BACKLOG = 4096
TICK_S = 1.0
PROBE_S = 15
"""A silent connection is probed this often, so that vanished clients are noticed."""


async def serve(
    runtime: Runtime,
    *,
    host: str,
    port: int,
    reuse_port: bool,
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve HTTP until ``stop`` is set (entry point ``http`` of ``loomcycle.gateways``).

    ``ready`` is called with the bound address once connections are taken. Raises OSError.
    """
    listener = bind(host, port, shared=reuse_port)
    bound = Address(*listener.getsockname()[:2])
    server = HttpServer(build_app(runtime), [listener], ready=lambda: ready(str(bound)))

    async def stop_when_told() -> None:
        await stop.wait()
        server.stop()

    watcher = asyncio.create_task(stop_when_told())
    try:
        await server.serve()
    finally:
        watcher.cancel()


class HttpServer(uvicorn.Server):
    """Serves ``app`` on ``listeners`` until :meth:`stop`; streams are broken off then."""

    def __init__(
        self,
        app: Starlette,
        listeners: Sequence[socket.socket],
        *,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HeaderDeadlineProtocol,
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._listeners = list(listeners)
        self._ready = ready
        self._stopped = asyncio.Event()
        self._clients: Clients = app.state.clients

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Return when the server has stopped and all connections are closed."""
        await super().serve(sockets or self._listeners)

    def stop(self) -> None:
        """Take no more connections and make :meth:`serve` return; on the loop's thread."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Tick once a second, for the Date header, instead of ten times to look for the end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), TICK_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._clients.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; an empty ``host`` means every IPv4 address, port 0 a free one.

    ``shared``: several processes may bind the same port, the kernel spreads connections.
    Raises OSError, which names the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _probe_silent_clients(listener)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise OSError(f"cannot listen on {Address(host, port)}: {reason}") from error
    listener.setblocking(False)
    return listener


def _probe_silent_clients(listener: socket.socket) -> None:
    """TCP keepalive, which accepted connections inherit."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), PROBE_S)
