"""The kill loop: clients at work, processes killed at random points, everything checked after."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from tests.bench.deployment import Deployment, Server, eventually, send
from tests.chaos.absence import view_differences
from tests.chaos.clients import CONFIG, ENVIRON, Clients
from tests.chaos.invariants import Log, settle, violations

Victim = Literal["server", "nats-server", "both"]
VICTIMS: tuple[Victim, ...] = ("server", "nats-server", "both")
LONGEST_QUIET_S = {1: 1.2, 2: 8.0}
"""Between two kills, by number of servers: takeover waits for a lease of 4 s."""


class Settings(Struct, frozen=True, kw_only=True):
    """``servers``: 1, or 2 processes on one data directory that take over from each other."""

    kills: int
    seed: int
    servers: int = 1
    clients: int = 8


class Outcome(Struct, kw_only=True):
    """``violations`` is empty when every promise was kept."""

    kills: dict[str, int]
    runs: int
    journals: int
    resumed: int
    reconnects: int
    clients: dict[str, int]
    seconds: float
    violations: list[str]


class KillLoop:
    """One use: :meth:`run`."""

    def __init__(self, directory: Path, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._random = random.Random(settings.seed)
        self._deployment = Deployment(directory, CONFIG, ENVIRON)
        self._servers: list[Server] = []
        self._kills: Counter[str] = Counter()

    async def run(self) -> Outcome:
        """Raises NotRunning when a server does not come back."""
        began = time.monotonic()
        settings = self._settings
        try:
            for _ in range(settings.servers):
                self._servers.append(await self._start(0))
            clients = Clients(lambda: [server.port for server in self._servers], settings.seed)
            clients.start(settings.clients)
            for number in range(settings.kills):
                await asyncio.sleep(self._random.random() * LONGEST_QUIET_S[settings.servers])
                victim = self._random.choice(VICTIMS)
                await self._kill(victim)
                self._kills[victim] += 1
                self._say(f"kill {number + 1}: {victim}; {len(clients.runs)} runs accepted")
            await clients.finish()
            log, found = await self._judge(clients)
            return Outcome(
                kills=dict(self._kills),
                runs=len(clients.runs),
                journals=len(log.journals),
                resumed=log.resumed(),
                reconnects=sum(run.reconnects for run in clients.runs),
                clients=dict(clients.tally),
                seconds=time.monotonic() - began,
                violations=found,
            )
        finally:
            await asyncio.to_thread(self._deployment.close)

    async def _start(self, port: int) -> Server:
        server = self._deployment.launch(port=port)
        await asyncio.to_thread(server.wait_healthy)
        return server

    async def _kill(self, victim: Victim) -> None:
        """Kill, and wait until what was killed is there again."""
        nats = self._deployment.nats_pid()
        place = self._random.randrange(len(self._servers))
        server = self._servers[place]
        if victim != "nats-server":
            await asyncio.to_thread(server.kill)
        if victim != "server" and nats:
            send(nats, signal.SIGKILL)
        if victim != "nats-server":
            self._servers[place] = await self._start(server.port)
        await eventually(self._has_nats, "nats-server", 30.0)

    def _has_nats(self) -> bool:
        return bool(self._deployment.nats_pid())

    async def _judge(self, clients: Clients) -> tuple[Log, list[str]]:
        store = await self._deployment.store("judge")
        try:
            log = await settle(store)
            found = await violations(store, log, clients.runs)
            found += await view_differences(self._deployment, log)
        finally:
            await store.close()
        return log, found
