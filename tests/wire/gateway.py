"""A whole server in the test's process: the real runtime, its own log, HTTP on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from gateways.http.server import serve
from loomcycle.config.loading import load
from loomcycle.runtime import Runtime, open_runtime
from tests.wire.journals import proofs

Json = dict[str, Any]
T = TypeVar("T")

PATIENCE_S = 10.0


class SseFrame(NamedTuple):
    id: str
    event: str
    data: Any


@dataclass
class GatewayUnderTest:
    """``http`` is a client of the server at ``host:port``."""

    runtime: Runtime
    http: httpx.AsyncClient
    host: str
    port: int
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def run(self, agent: str = "writer", prompt: str = "hi", **fields: Any) -> list[SseFrame]:
        """Start a run and read its stream to the end."""
        response = await self.http.post(
            "/v1/runs", json={"agent": agent, "prompt": prompt, **fields}
        )
        assert response.status_code == 200, response.text
        return sse_frames(response.text)

    async def status(self, agent_id: str) -> Json:
        response = await self.http.get(f"/v1/agents/{agent_id}")
        assert response.status_code == 200, response.text
        status: Json = response.json()
        return status

    async def ended(self, agent_id: str) -> Json:
        """The status of a run once it has ended."""
        return await until(lambda: self._ended(agent_id))

    async def _ended(self, agent_id: str) -> Json | None:
        status = await self.status(agent_id)
        return status if status["status"] != "running" else None


class StreamReader:
    """Frames of an open stream, one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> SseFrame:
        async with asyncio.timeout(PATIENCE_S):
            lines: list[str] = []
            async for line in self._lines:
                if line.startswith(":"):
                    continue
                if line:
                    lines.append(line)
                elif lines:
                    return _frame(lines)
        raise EOFError

    async def until(self, event: str) -> SseFrame:
        while (frame := await self.next()).event != event:
            pass
        return frame

    async def rest(self) -> list[SseFrame]:
        frames: list[SseFrame] = []
        with suppress(EOFError):
            while True:
                frames.append(await self.next())
        return frames


@asynccontextmanager
async def serving(
    directory: Path, config: str, environ: dict[str, str] | None = None, *, proven: bool = True
) -> AsyncIterator[GatewayUnderTest]:
    """Boot a server in ``directory`` with ``config`` (YAML) and stop it afterwards.

    Every journal in its log must then be ``proven``, those of unfinished runs as far as they go.
    """
    file = directory / "loomcycle.yaml"
    file.write_text(textwrap.dedent(config))
    variables = {
        "LOOMCYCLE_DATA_DIR": str(directory / "data"),
        "LOOMCYCLE_MOCK_ENABLED": "1",
        "LOOMCYCLE_MOCK_LATENCY_MS": "0",
        "LOOMCYCLE_MOCK_LATENCY_JITTER_MS": "0",
        **(environ or {}),
    }
    runtime = await open_runtime(load([file], variables, directory))
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(
        serve(
            runtime,
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            stop=stop,
            ready=bound.set_result,
        )
    )
    try:
        host, _, port = (await bound).partition(":")
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}", timeout=30, limits=limits
        ) as http:
            yield GatewayUnderTest(runtime, http, host, int(port), stop, task)
            if proven:
                unproven = [report for report in await proofs(runtime.store) if not report.ok]
                assert not unproven
    finally:
        stop.set()
        await task
        await runtime.close()


@asynccontextmanager
async def open_stream(
    gateway: GatewayUnderTest, method: str, path: str, **options: Any
) -> AsyncIterator[StreamReader]:
    async with gateway.http.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        yield StreamReader(response)


def sse_frames(text: str) -> list[SseFrame]:
    """Frames of a whole stream; comments are skipped."""
    blocks = [
        [line for line in block.split("\n") if not line.startswith(":")]
        for block in text.split("\n\n")
    ]
    return [_frame(block) for block in blocks if any(block)]


def _frame(lines: list[str]) -> SseFrame:
    fields = dict(line.split(": ", 1) for line in lines)
    return SseFrame(fields["id"], fields["event"], json.loads(fields["data"]))


async def until(question: Callable[[], Awaitable[T | None]]) -> T:
    """Ask until there is an answer. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await question()
            if answer is not None:
                return answer
            await asyncio.sleep(0.01)
