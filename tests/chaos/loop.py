"""The kill loop: clients at work, processes killed at random points, everything checked after."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from events.log import EventStore
from loomcycle.loading import opening
from tests.bench.deployment import Deployment, Server, eventually, send
from tests.chaos.absence import view_differences
from tests.chaos.agents import LOOPING, WHOLE_LOOP, body_of
from tests.chaos.clients import ENVIRON, Clients, Tracked
from tests.chaos.doubles import Doubles
from tests.chaos.invariants import Log, settle, violations
from tests.chaos.loop_invariants import loop_violations
from tests.chaos.people import People
from tests.wire.vendors import environment as vendor_environment

Victim = Literal["server", "nats-server", "both"]
VICTIMS: tuple[Victim, ...] = ("server", "nats-server", "both")
WAITING = ("asking", "talker")
"""Agents whose runs wait for people."""

LONGEST_QUIET_S = {1: 2.0, 2: 8.0}
"""Between two kills, by number of servers: takeover waits for a lease of 4 s."""


class Settings(Struct, frozen=True, kw_only=True):
    """``servers``: 1, or 2 processes on one data directory that take over from each other.

    ``width``: children of each branch in the trees of runs that one more client starts.
    """

    kills: int
    seed: int
    servers: int = 1
    clients: int = 8
    width: int = 8


class Outcome(Struct, kw_only=True):
    """``violations`` is empty when every promise was kept; ``events`` counts those in journals."""

    kills: dict[str, int]
    runs: int
    journals: int
    resumed: int
    reconnects: int
    clients: dict[str, int]
    people: dict[str, int]
    events: dict[str, int]
    seconds: float
    violations: list[str]


class KillLoop:
    """One use: :meth:`run`."""

    def __init__(self, directory: Path, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._random = random.Random(settings.seed)
        self._directory = directory
        self._servers: list[Server] = []
        self._kills: Counter[str] = Counter()

    async def run(self) -> Outcome:
        """Raises NotRunning when a server does not come back."""
        async with Doubles(self._settings.seed) as doubles:
            environ = vendor_environment(doubles, **ENVIRON)
            self._deployment = Deployment(self._directory, WHOLE_LOOP, environ)
            try:
                return await self._run(doubles)
            finally:
                await asyncio.to_thread(self._deployment.close)

    async def _run(self, doubles: Doubles) -> Outcome:
        began = time.monotonic()
        settings = self._settings
        for _ in range(settings.servers):
            self._servers.append(await self._start(0))
        people = People(self._ports, settings.seed)
        await people.register_hook(f"{doubles.url}/hook")
        people.start()
        crowd, planter = self._clients(people, LOOPING, 0), self._clients(people, ["tree"], 1)
        crowd.start(settings.clients)
        planter.start(1)
        for number in range(settings.kills):
            await asyncio.sleep(self._random.random() * LONGEST_QUIET_S[settings.servers])
            victim = self._random.choice(VICTIMS)
            await self._kill(victim)
            self._kills[victim] += 1
            self._say(f"kill {number + 1}: {victim}; {len(crowd.runs)} runs accepted")
        await asyncio.gather(crowd.finish(), planter.finish())
        await people.finish()
        runs = [*crowd.runs, *planter.runs]
        log, found = await self._judge(runs, people)
        return Outcome(
            kills=dict(self._kills),
            runs=len(runs),
            journals=len(log.journals),
            resumed=log.resumed(),
            reconnects=sum(run.reconnects for run in runs),
            clients=dict(crowd.tally + planter.tally),
            people=dict(people.notes.tally),
            events=log.counted(),
            seconds=time.monotonic() - began,
            violations=found,
        )

    def _ports(self) -> list[int]:
        return [server.port for server in self._servers]

    def _clients(self, people: People, agents: Sequence[str], number: int) -> Clients:
        return Clients(
            self._ports,
            f"{self._settings.seed}-{number}",
            agents,
            width=self._settings.width,
            body=body_of,
            told=people.told,
        )

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

    async def _judge(self, runs: Sequence[Tracked], people: People) -> tuple[Log, list[str]]:
        store = await self._deployment.store("judge")
        try:
            await self._end_what_nobody_knows(store, runs, people)
            log = await settle(store)
            found = await violations(store, log, runs)
            found += loop_violations(log, runs, people.notes)
            found += await view_differences(self._deployment, log)
        finally:
            await store.close()
        return log, found

    async def _end_what_nobody_knows(
        self, store: EventStore, runs: Sequence[Tracked], people: People
    ) -> None:
        """Runs that wait for people whose start no client was told of: nobody talks to them."""
        known = {run.run_id for run in runs}
        log = await Log.read(store)
        for run in log.unfinished():
            started = opening(log.journals["", run][0])
            if started is not None and run not in known and started.agent in WAITING:
                await people.cancel(started.agent_id)
