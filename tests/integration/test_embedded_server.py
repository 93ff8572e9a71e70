"""The embedded nats-server as processes see it: owning, adopting, dying, taking over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from events.embedded import EmbeddedServer, binary
from events.log import EventStore, LogUnavailable
from events.nats_api import Api
from events.nats_link import open_link
from events.nats_store import connect
from events.server_process import Guard
from events.streams import STATE

pytestmark = pytest.mark.integration

MASTER_KEY = b"k" * 32
ROOT = Path(__file__).parents[2]

OWNER = """
import asyncio, sys
from events.embedded import EmbeddedServer

async def main():
    server = await EmbeddedServer.start(sys.argv[1], guard=sys.argv[2])
    print(server.pid, server.port, server.owned, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat_file = Path(f"/proc/{pid}/stat")
    return not stat_file.exists() or stat_file.read_text().rsplit(")", 1)[1].split()[0] != "Z"


async def open_store(server: EmbeddedServer) -> EventStore:
    return await connect(server.url, token=server.token, master_key=MASTER_KEY, name="test")


class Owner:
    """Another Python process that owns the server of a directory."""

    def __init__(self, directory: Path, guard: Guard) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(directory), guard],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        pid, port, owned = self.process.stdout.readline().split()
        self.server_pid, self.port, self.owned = int(pid), int(port), owned == "True"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    running = await EmbeddedServer.start(tmp_path)
    yield running
    await running.stop()


async def test_a_started_server_takes_appends_at_once(server: EmbeddedServer) -> None:
    assert server.owned
    store = await open_store(server)
    assert await store.log.append(store.subjects.journal("t", "r_0000000000000001"), b"x") == 1
    await store.close()


async def test_it_listens_on_loopback_only(server: EmbeddedServer) -> None:
    assert server.url == f"nats://127.0.0.1:{server.port}"
    own_address = socket.gethostbyname(socket.gethostname())
    with socket.socket() as other_address:
        other_address.bind(("127.0.0.2", server.port))
    if not own_address.startswith("127."):
        with socket.socket() as probe, pytest.raises(OSError):
            probe.connect((own_address, server.port))


async def test_a_client_without_the_token_is_refused(server: EmbeddedServer) -> None:
    for token in (None, "wrong"):
        with pytest.raises(LogUnavailable):
            await connect(
                server.url, token=token, master_key=MASTER_KEY, name="x", connect_timeout_s=0.3
            )


async def test_nobody_else_can_read_its_files(server: EmbeddedServer) -> None:
    directory = server.directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("server.conf", "server.json", "token", "owner.lock", "server.lock"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert server.token not in (directory / "server.log").read_text()


@pytest.mark.parametrize("name", ["node", "cluster-1", "cluster-2", "cluster-3"])
def test_the_configurations_for_operators_are_valid(name: str) -> None:
    environment = {**os.environ, "LOOM_NATS_TOKEN": "t", "LOOM_NATS_ROUTE_PASSWORD": "p"}
    for index in (1, 2, 3):
        environment[f"LOOM_NATS_ROUTE_{index}"] = f"nats://route:p@nats-{index}:6222"
    checked = subprocess.run(
        [binary(), "-t", "-c", ROOT / "nats" / f"{name}.conf"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


async def test_every_message_is_flushed_unless_told_otherwise(tmp_path: Path) -> None:
    for sync in ("always", "2s"):
        server = await EmbeddedServer.start(tmp_path / sync, sync=sync)
        assert f"sync_interval: {sync}\n" in (server.directory / "server.conf").read_text()
        await server.stop()


async def test_a_second_process_on_the_same_directory_adopts_the_server(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "prctl")
    try:
        adopted = await EmbeddedServer.start(tmp_path)
        assert owner.owned
        assert not adopted.owned
        assert (adopted.pid, adopted.port) == (owner.server_pid, owner.port)
        store = await open_store(adopted)
        await store.close()
        await adopted.stop()
        assert alive(owner.server_pid)
    finally:
        owner.kill()


@pytest.mark.parametrize("guard", ["prctl", "pipe"])
async def test_the_server_dies_with_its_killed_owner(tmp_path: Path, guard: Guard) -> None:
    if guard == "prctl" and sys.platform != "linux":
        pytest.skip("a death signal of the kernel exists on Linux only")
    owner = Owner(tmp_path, guard)
    assert alive(owner.server_pid)
    owner.kill()
    await until(lambda: not alive(owner.server_pid))


async def test_a_survivor_restarts_the_server_on_the_same_port_with_the_same_token(
    tmp_path: Path,
) -> None:
    owner = Owner(tmp_path, "prctl")
    survivor = await EmbeddedServer.start(tmp_path)
    url, token = survivor.url, survivor.token
    watching = asyncio.create_task(survivor.watch())
    store = await open_store(survivor)
    journal = store.subjects.journal("t", "r_0000000000000001")
    await store.log.append(journal, b"before")
    owner.kill()
    await until(lambda: survivor.owned)
    assert (survivor.url, survivor.token) == (url, token)
    await until(store.connected)
    seq = await append_when_possible(store, journal, b"after")
    assert [m.data for m in await store.log.read(journal)] == [b"before", b"after"]
    assert seq == 2
    await store.close()
    await survivor.stop()
    await watching
    assert not alive(survivor.pid)


async def test_of_two_survivors_one_takes_over_and_the_other_goes_on(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "prctl")
    survivors = [await EmbeddedServer.start(tmp_path) for _ in range(2)]
    watching = [asyncio.create_task(s.watch()) for s in survivors]
    owner.kill()
    await until(lambda: any(s.owned for s in survivors))
    assert sorted(s.owned for s in survivors) == [False, True]
    loser = next(s for s in survivors if not s.owned)
    winner = next(s for s in survivors if s.owned)
    await until(lambda: loser.pid == winner.pid)
    store = await open_store(loser)
    await store.close()
    for survivor in survivors:
        await survivor.stop()
    await asyncio.gather(*watching)


async def test_a_server_that_died_is_started_again_by_its_owner(server: EmbeddedServer) -> None:
    watching = asyncio.create_task(server.watch())
    store = await open_store(server)
    journal = store.subjects.journal("t", "r_0000000000000001")
    await store.log.append(journal, b"kept")
    first, port = server.pid, server.port
    os.kill(first, signal.SIGKILL)
    await until(lambda: server.pid != first)
    assert server.port == port
    assert await append_when_possible(store, journal, b"new") == 2
    assert [m.data for m in await store.log.read(journal)] == [b"kept", b"new"]
    await store.close()
    await server.stop()
    await watching


async def test_a_new_start_finds_the_messages_of_the_last(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        server = await EmbeddedServer.start(tmp_path)
        store = await open_store(server)
        journal = store.subjects.journal("t", "r_0000000000000001")
        await store.log.append(journal, b"")
        assert len(await store.log.read(journal)) == count
        await store.close()
        await server.stop()
        assert not alive(server.pid)


async def append_when_possible(store: EventStore, subject: str, data: bytes) -> int:
    deadline = time.monotonic() + 10
    while True:
        try:
            return await store.log.append(subject, data)
        except LogUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


async def test_a_stream_of_an_older_version_gets_the_subjects_of_this_one(
    server: EmbeddedServer,
) -> None:
    link = await open_link(server.url, name="older", token=server.token)
    api = Api(link)
    config = STATE.config("loom")
    kept = [subject for subject in config["subjects"] if not subject.startswith("loom.budget.")]
    await api.create_stream({**config, "subjects": kept, "max_bytes": 1 << 30})
    store = await open_store(server)
    assert await store.log.append(store.subjects.state("budget", "t", "r_1"), b"x") == 1
    settings = (await api.configs("loom.>"))["loom-STATE"]
    assert (set(settings["subjects"]), settings["max_bytes"]) == (set(config["subjects"]), 1 << 30)
    await store.close()
    await link.close()
