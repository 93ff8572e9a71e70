"""Real server processes on a data directory of their own: started, found, killed, stopped.

Shared by the bench, the kill loop and the fault tests. It looks at processes from outside only
(``/proc``, the port, the log's store) and never ends one that it did not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from events.log import EventStore
from events.nats_store import connect
from events.seals import load_master_key

ROOT = Path(__file__).resolve().parents[2]
SERVE = (sys.executable, "-P", "-m", "loomcycle.cli", "serve")
QUIET_MOCK = {
    "LOOMCYCLE_MOCK_ENABLED": "1",
    "LOOMCYCLE_MOCK_LATENCY_MS": "0",
    "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "0",
    "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
}
START_LIMIT_S = 30.0
MASTER_KEY = "5" * 64
"""Of deployments whose servers have data directories of their own."""


class NotRunning(AssertionError):
    """A server did not start, or is gone; the message ends with what it said last."""


class _Facts(msgspec.Struct):
    port: int
    pid: int
    token: str


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """A data directory and a configuration; any number of servers, one after the other or at once.

    ``config`` is the configuration's content, ``environ`` is added to a clean environment. With
    ``nats_url`` the servers use that nats-server instead of an embedded one.
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        *,
        nats_url: str = "",
    ) -> None:
        self.directory = directory
        self._nats_url = nats_url
        self.data = directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "loomcycle.yaml"
        self.config.write_text(json.dumps(config, indent=1))
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT),
            "LOOMCYCLE_DATA_DIR": str(self.data),
            **QUIET_MOCK,
            **({"LOOMCYCLE_NATS_URL": nats_url} if nats_url else {}),
            **(environ or {}),
        }
        self.servers: list[Server] = []

    def launch(
        self,
        *,
        port: int = 0,
        workers: int = 1,
        command: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Server:
        """Start a server and return at once. Port 0: a free one."""
        server = Server(self, port or free_port(), workers, command or SERVE, environ or {})
        self.servers.append(server)
        return server

    def start(self, **options: Any) -> Server:
        """Start a server and wait until it answers. Raises NotRunning."""
        server = self.launch(**options)
        server.wait_healthy()
        return server

    def replica(self, name: str, **options: Any) -> Server:
        """A server with a data directory of its own, as on another machine.

        For deployments with ``nats_url``; they need a master key in the environment.
        """
        server = self.start(environ={"LOOMCYCLE_DATA_DIR": str(self.directory / name)}, **options)
        server.wait_ready()
        return server

    def nats_pid(self) -> int:
        """The embedded nats-server of this data directory; 0 when none runs."""
        pid = self.facts().pid
        return pid if _command_of(pid) == "nats-server" else 0

    def facts(self) -> _Facts:
        """Where the embedded server is, as its owner wrote it; zeros when there is none."""
        try:
            return msgspec.json.decode((self.data / "nats/server.json").read_bytes(), type=_Facts)
        except (OSError, msgspec.DecodeError):
            return _Facts(0, 0, "")

    async def store(self, name: str = "observer") -> EventStore:
        """A connection of our own to the running deployment's log."""
        facts = self.facts()
        return await connect(
            self._nats_url or f"nats://127.0.0.1:{facts.port}",
            token=None if self._nats_url else facts.token,
            master_key=load_master_key(self.data, self.environ.get("LOOMCYCLE_MASTER_KEY", "")),
            name=name,
            connect_timeout_s=10.0,
        )

    def kill_everything(self) -> None:
        """SIGKILL to every server process and to nats-server, as one blow."""
        nats = self.nats_pid()
        for pid in [pid for server in self.servers for pid in server.python_pids()]:
            send(pid, signal.SIGKILL)
        if nats:
            send(nats, signal.SIGKILL)
        for server in self.servers:
            server.process.wait()
        wait_for(lambda: not nats or _command_of(nats) != "nats-server", "nats-server to end")

    def close(self) -> None:
        """End whatever still runs. Safe to call twice."""
        for server in self.servers:
            for pid in server.python_pids():
                send(pid, signal.SIGCONT)
        for server in self.servers:
            if server.process.poll() is None:
                server.process.terminate()
        for server in self.servers:
            try:
                server.process.wait(15)
            except subprocess.TimeoutExpired:
                for pid in server.python_pids():
                    send(pid, signal.SIGKILL)
                server.process.wait()
        nats = self.nats_pid()
        if nats:
            send(nats, signal.SIGKILL)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """One ``loomcycle serve`` with its workers."""

    def __init__(
        self,
        deployment: Deployment,
        port: int,
        workers: int,
        command: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        self.deployment = deployment
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = deployment.directory / f"server-{len(deployment.servers)}.log"
        arguments = [*command, "--config", str(deployment.config), "--listen", f"127.0.0.1:{port}"]
        if workers > 1:
            arguments += ["--workers", str(workers)]
        self.began, self.since = time.perf_counter(), time.time()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                arguments,
                cwd=deployment.directory,
                env={**deployment.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def python_pids(self) -> list[int]:
        """This server's processes: parent and workers, without nats-server."""
        if self.process.poll() is not None:
            return []
        return [
            pid for pid in (self.pid, *descendants(self.pid)) if _command_of(pid) != "nats-server"
        ]

    def wait_healthy(self, limit_s: float = START_LIMIT_S) -> float:
        """Wait for the first answer of /healthz; seconds since the start of the process."""
        deadline = time.perf_counter() + limit_s
        while time.perf_counter() < deadline:
            if self.process.poll() is not None:
                raise NotRunning(f"ended with status {self.process.returncode}: {self.tail()}")
            if answers(self.port):
                return time.perf_counter() - self.began
            time.sleep(0.002)
        raise NotRunning(f"no answer within {limit_s:g} s: {self.tail()}")

    def wait_listening(self, workers: int, limit_s: float = START_LIMIT_S) -> None:
        """Wait until all workers take connections: only those share them. Raises NotRunning."""
        deadline = time.perf_counter() + limit_s
        while f"({workers} workers)" not in self.log.read_text(errors="replace"):
            if time.perf_counter() > deadline:
                raise NotRunning(f"not {workers} workers within {limit_s:g} s: {self.tail()}")
            time.sleep(0.02)

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> float:
        """Wait until /readyz says so; seconds since the start of the process."""

        def ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
            return False

        wait_for(ready, "readiness", limit_s)
        return time.perf_counter() - self.began

    def kill(self) -> None:
        """SIGKILL to this server's Python processes."""
        for pid in self.python_pids():
            send(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, limit_s: float = 15.0) -> float:
        """SIGTERM and wait; seconds that it took."""
        began = time.perf_counter()
        self.process.terminate()
        self.process.wait(limit_s)
        return time.perf_counter() - began

    def tail(self, lines: int = 20) -> str:
        """What the server said last."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def answers(port: int) -> bool:
    """Whether GET /healthz gets a 200 on this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
            return probe.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], what: str, limit_s: float = 10.0) -> None:
    """Poll ``condition`` until it is true. Raises AssertionError naming ``what``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:g} s for {what}")
        time.sleep(0.005)


async def eventually(condition: Callable[[], Any], what: str, limit_s: float = 10.0) -> None:
    """The same on an event loop."""
    deadline = time.monotonic() + limit_s
    while True:
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:g} s for {what}")
        await asyncio.sleep(0.01)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Children of a process and theirs, oldest generation first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        offspring = children.get(todo.pop(), [])
        found += offspring
        todo += offspring
    return found


def _command_of(pid: int) -> str:
    """The name of a living process; "" for none (or one that only waits to be reaped)."""
    if pid:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            name, _, rest = stat.partition("(")[2].rpartition(")")
            return "" if rest.split()[0] == "Z" else name
    return ""
