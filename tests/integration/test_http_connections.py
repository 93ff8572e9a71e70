"""Slow, vanished, greedy and very many clients; and a server that stops under them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gateways.http import protocol
from gateways.http.server import bind
from loomcycle import worker
from loomcycle.feed import MAX_WAITING, RunFeed
from tests.wire.gateway import GatewayUnderTest, StreamReader, open_stream, serving, until
from tests.wire.vendors import FakeVendor, Hold, Part, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 2}
runtime: {reader_grace_ms: 50}
agents:
  writer: {provider: mock, model: mock-generic}
  speaker: {provider: openai, model: gpt-fake-1}
"""

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CROWD = 2000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    variables = environment(vendor, LOOMCYCLE_SSE_KEEPALIVE_MS="1000")
    async with serving(tmp_path_factory.mktemp("connections"), CONFIG, variables) as gateway:
        yield gateway


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(protocol, "HEADER_S", 0.2)
    return 0.2


@pytest.fixture
def quick_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopping worker does not wait for models that will not answer."""
    monkeypatch.setattr(worker, "LEAVE_GRACE_S", 0.1)


class Raw:
    """A client that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, gateway: GatewayUnderTest) -> Raw:
        return cls(*await asyncio.open_connection(gateway.host, gateway.port))

    def post(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def head(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def until_closed(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.reader.read()

    def reset(self) -> None:
        """Vanish: the other side gets no farewell but a reset."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


def speech(*parts: str, end: bool = True) -> Reply:
    pieces: list[Part] = [sse(openai_chunk({"content": part})) for part in parts]
    last = sse(openai_chunk(finish="stop"), done=True) if end else Hold(asyncio.Event())
    return Reply([*pieces, last])


# Heads


async def test_a_head_that_comes_byte_by_byte_is_understood(gateway: GatewayUnderTest) -> None:
    client = await Raw.connect(gateway)
    for n in range(len(HEALTH)):
        client.writer.write(HEALTH[n : n + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.head()).startswith(b"HTTP/1.1 200 OK")
    client.writer.close()


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HT", HEALTH[:-2], b"\r\n"])
async def test_a_head_must_be_complete_in_time(
    gateway: GatewayUnderTest, short_deadline: float, beginning: bytes
) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(beginning)
    assert await client.until_closed() == b""


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: b\r\n"])
async def test_a_head_names_one_host(gateway: GatewayUnderTest, hosts: bytes) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n")
    assert (await client.head()).startswith(b"HTTP/1.1 400 ")
    assert await client.until_closed()


async def test_a_trickling_head_does_not_buy_time(
    gateway: GatewayUnderTest, short_deadline: float
) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(b"GET /healthz HTTP/1.1\r\n")

    async def trickle() -> None:
        with contextlib.suppress(ConnectionError):
            for n in range(100):
                client.writer.write(b"X-%d: y\r\n" % n)
                await client.writer.drain()
                await asyncio.sleep(short_deadline / 10)

    trickling = asyncio.create_task(trickle())
    assert await client.until_closed() == b""
    trickling.cancel()


async def test_an_idle_connection_is_kept_longer_than_a_head_may_take(
    gateway: GatewayUnderTest, short_deadline: float
) -> None:
    idle, doomed = await Raw.connect(gateway), None
    idle.writer.write(HEALTH)
    await idle.head()
    for _ in range(2):
        doomed = await Raw.connect(gateway)
        await doomed.until_closed()
    idle.writer.write(HEALTH)
    assert b"200 OK" in await idle.head()
    idle.writer.close()


async def test_a_slow_body_has_all_the_time_it_needs(
    gateway: GatewayUnderTest, short_deadline: float
) -> None:
    body = b'{"agent":"writer","prompt":"hi"}'
    client = await Raw.connect(gateway)
    head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    client.writer.write(head % len(body))
    for n in range(len(body)):
        client.writer.write(body[n : n + 1])
        await asyncio.sleep(short_deadline / 16)
    assert b"event: done" in await client.until_closed()


async def test_endless_headers_are_refused(gateway: GatewayUnderTest) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"y" * (2 * 2**20))
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await client.until_closed()
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""


async def test_a_body_announced_as_too_long_is_not_asked_for(gateway: GatewayUnderTest) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n")
    client.writer.write(b"Content-Length: 1048577\r\n\r\n")
    assert (await client.head()).startswith(b"HTTP/1.1 400 ")
    client.writer.close()


@pytest.mark.parametrize(
    ("path", "limit"), [("/v1/runs", 2**20), ("/v1/runs:batch", 8 * 2**20), ("/v1/hooks", 2**20)]
)
async def test_who_sends_all_of_a_body_that_is_too_long_reads_the_refusal(
    gateway: GatewayUnderTest, path: str, limit: int
) -> None:
    client = await Raw.connect(gateway)
    size = limit + 6 * 2**20
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    client.writer.write(head.encode() + b" " * size)
    await client.writer.drain()
    answer = await client.until_closed()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"request body too large" in answer


async def test_who_asks_for_a_web_socket_gets_plain_http(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Raw.connect(gateway)
    upgrade = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    client.writer.write(b"GET /v1/runs HTTP/1.1\r\n" + upgrade)
    assert (await client.head()).startswith(b"HTTP/1.1 405 ")
    client.writer.close()
    assert caplog.messages == []


# Streams


async def test_a_silent_stream_is_kept_alive_by_comments(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(speech("one\n", end=False))
    client = await Raw.connect(gateway)
    client.post({"agent": "speaker", "prompt": "hi"})
    async with asyncio.timeout(5):
        await client.reader.readuntil(b": keepalive\n\n")
    client.writer.close()


async def test_a_client_that_vanishes_cancels_its_run(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(speech("one\n", end=False))
    client = await Raw.connect(gateway)
    client.post({"agent": "speaker", "prompt": "hi", "agent_id": "a_vanished"})
    await client.reader.readuntil(b"one")
    client.reset()
    status = await gateway.ended("a_vanished")
    assert (status["status"], status["stop_reason"]) == ("cancelled", "client disconnected")


async def test_a_client_that_vanishes_while_sending_starts_nothing(
    gateway: GatewayUnderTest,
) -> None:
    client = await Raw.connect(gateway)
    client.writer.write(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await client.writer.drain()
    client.reset()
    assert (await gateway.http.get("/v1/_concurrency/stats")).json()["queued"] == 0


async def test_a_slow_reader_costs_bounded_memory_and_misses_nothing(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    parts = [f"{n:06}" + "x" * 10_000 + "\n" for n in range(1000)]
    vendor.script(speech(*parts))
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_slow"}
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)]
    transport = httpx.AsyncHTTPTransport(socket_options=small)
    async with (
        httpx.AsyncClient(transport=transport, base_url=gateway.http.base_url) as http,
        http.stream("POST", "/v1/runs", json=body) as response,
    ):
        stream = StreamReader(response)
        run_id = (await stream.until("agent")).data["run_id"]
        (feed,) = gateway.runtime.services.live._topics[run_id].readers
        assert isinstance(feed, RunFeed)
        await gateway.ended("a_slow")
        assert len(feed._queue) <= MAX_WAITING
        assert not feed.ended
        frames = await stream.rest()
    assert frames[-1].event == "done"
    assert "".join(f.data["text"] for f in frames if f.event == "text") == "".join(parts)


async def test_thousands_of_idle_connections_cost_little(gateway: GatewayUnderTest) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    crowd = min(CROWD, (hard - 500) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * crowd + 500), hard))
    loop = asyncio.get_running_loop()
    gc.collect()
    before = _resident_bytes()
    clients: list[socket.socket] = []
    try:
        for _ in range(crowd):
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, (gateway.host, gateway.port))
            await loop.sock_sendall(client, HEALTH)
            assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")
            clients.append(client)
        assert (_resident_bytes() - before) / crowd < 40_000
        assert (await gateway.run())[-1].event == "done"
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# The server stops


async def test_a_stop_breaks_streams_off_and_is_no_disconnect(
    tmp_path: Path, vendor: FakeVendor, quick_handover: None
) -> None:
    body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_survives"}
    vendor.script(speech("one\n", end=False))
    async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
            await stream.until("text")
            gateway.stop.set()
            with pytest.raises(httpx.RemoteProtocolError):
                await stream.rest()
        await gateway.task
        with pytest.raises(httpx.TransportError):
            await gateway.http.get("/healthz")
    vendor.script(speech("two\n"))
    async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
        status = await gateway.ended("a_survives")
        assert status["status"] == "completed"


async def test_a_start_that_waits_when_the_server_stops_is_told_to_try_again(
    tmp_path: Path, vendor: FakeVendor, quick_handover: None
) -> None:
    vendor.script(*(speech("busy\n", end=False) for _ in range(2)))
    async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
        body = {"agent": "speaker", "prompt": "hi", "agent_id": "a_waits"}
        async with contextlib.AsyncExitStack() as streams:
            busy = [
                await streams.enter_async_context(
                    open_stream(gateway, "POST", "/v1/runs", json={**body, "agent_id": name})
                )
                for name in ("a_busy1", "a_busy2")
            ]
            for stream in busy:
                await stream.until("text")
            waiting = asyncio.create_task(gateway.http.post("/v1/runs", json=body))
            await until(partial(_queued, gateway))
            gateway.stop.set()
            response = await waiting
        assert response.status_code == 503, response.text
        assert response.json()["code"] == "shutting_down"
        assert response.headers["retry-after"] == "1"
        await gateway.task


async def _queued(gateway: GatewayUnderTest) -> bool | None:
    stats = (await gateway.http.get("/v1/_concurrency/stats")).json()
    return stats["queued"] == 1 or None


async def test_several_processes_can_share_a_port() -> None:
    first = bind("127.0.0.1", 0, shared=True)
    port = first.getsockname()[1]
    with contextlib.closing(first), contextlib.closing(bind("127.0.0.1", port, shared=True)):
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    with (
        contextlib.closing(bind("127.0.0.1", 0)) as alone,
        pytest.raises(OSError, match="in use"),
    ):
        bind("127.0.0.1", alone.getsockname()[1])
