"""A nats-server of a test's own, which nobody restarts: to be away, full, or traced.

Settings are those of the embedded one unless the test asks for others.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from events.embedded import MAX_PAYLOAD, binary
from tests.bench.deployment import descendants, free_port, send, wait_for


class NatsServer:
    """``tracer``: a command that runs the server, such as strace with its options."""

    def __init__(self, directory: Path, *, tracer: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self._tracer = tracer
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With the token in it, as an operator would give it."""
        return f"nats://{self.token}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of nats-server itself, also under a tracer; 0 when it does not run."""
        if self._process is None:
            return 0
        return descendants(self._process.pid)[0] if self._tracer else self._process.pid

    def start(self, *, max_file_store: str = "20GB") -> None:
        """Start and wait for the greeting. Raises AssertionError with what it said."""
        settings = self._directory / "server.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: tests\nmax_payload: {MAX_PAYLOAD}\n'
            f'authorization {{ token: "{self.token}" }}\n'
            f'jetstream {{ store_dir: "{self._directory / "store"}", sync_interval: always,'
            f" max_memory_store: 1GB, max_file_store: {max_file_store} }}\n"
        )
        output = self._directory / "server.log"
        with output.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._tracer, str(binary()), "-c", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        process = self._process
        wait_for(lambda: process.poll() is not None or self._greets(), "nats-server", 20.0)
        if process.poll() is not None:
            self._process = None
            raise AssertionError(output.read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL; it stays away until started again."""
        if self._process is not None:
            for pid in (*descendants(self._process.pid), self._process.pid):
                send(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as probe:
                return probe.recv(5) == b"INFO "
        except OSError:
            return False

    def __enter__(self) -> NatsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
