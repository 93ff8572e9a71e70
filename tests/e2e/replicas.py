"""Replicas as processes of their own, so that a test can kill one without warning."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.wire.gateway import Json, until

ROOT = Path(__file__).resolve().parents[2]

_LISTENING = re.compile(r"listening on (\S+)")


class Replica:
    """One process. ``log`` is the file that its stderr goes to."""

    def __init__(self, directory: Path, name: str) -> None:
        self.log = directory / f"{name}.log"
        self._config = directory / "loomcycle.yaml"
        self._process: asyncio.subprocess.Process | None = None
        self._http: httpx.AsyncClient | None = None

    @property
    def http(self) -> httpx.AsyncClient:
        assert self._http is not None
        return self._http

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, environ: Mapping[str, str]) -> None:
        """Start and wait until it serves. May be called again after :meth:`kill`."""
        with self.log.open("ab") as stderr:
            began = stderr.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.e2e.replica", str(self._config),
                cwd=ROOT, env=dict(environ), stderr=stderr,
            )  # fmt: skip

        async def address() -> str | None:
            assert self._process is not None
            told = self.log.read_text(errors="replace")[began:]
            assert self._process.returncode is None, told
            found = _LISTENING.search(told)
            return found[1] if found else None

        url = f"http://{await until(address)}"
        self._http = httpx.AsyncClient(base_url=url, timeout=30)

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait for its end and close what is left of its clients."""
        if self._process is not None:
            await self._process.wait()
        if self._http is not None:
            await self._http.aclose()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
        await self.gone()

    async def status(self, agent_id: str) -> Json:
        response = await self.http.get(f"/v1/agents/{agent_id}")
        assert response.status_code == 200, response.text
        status: Json = response.json()
        return status

    async def ended(self, agent_id: str) -> Json:
        async def state() -> Json | None:
            status = await self.status(agent_id)
            return status if status["status"] != "running" else None

        return await until(state)


def settings(directory: Path, **variables: str) -> dict[str, str]:
    """The environment of replicas in ``directory``: nothing of the tests' own but PATH."""
    return {
        "PATH": os.environ["PATH"],
        "LOOMCYCLE_DATA_DIR": str(directory / "data"),
        "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
        "LOOMCYCLE_MOCK_ENABLED": "1",
        "LOOMCYCLE_MOCK_LATENCY_MS": "0",
        "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "0",
        **variables,
    }


@asynccontextmanager
async def replicas(
    directory: Path, config: str, environ: Mapping[str, str], *names: str
) -> AsyncIterator[list[Replica]]:
    """Start one replica after the other on one data directory; stops what still runs."""
    (directory / "loomcycle.yaml").write_text(textwrap.dedent(config))
    started = [Replica(directory, name) for name in names]
    try:
        for replica in started:
            await replica.start(environ)
        yield started
    finally:
        for replica in started:
            await replica.stop()
