"""One fixed story in which each operation on the log, in turn, goes wrong once.

Two processes; a caller starts a run through the first: a turn with two tools, a second turn that
is cancelled while the model speaks. Only operations of the first process are struck.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from events.memory_store import Fault
from events.vocabulary import ToolResult
from loomcycle.commands.requests import RunRequest
from loomcycle.tool_turn import UNKNOWN_OUTCOME
from tests.sim.agents import TALKER, Script, Turn
from tests.sim.checks import memory_events
from tests.sim.clients import Client, Habits
from tests.sim.host import Host
from tests.sim.loop import SimLoop
from tests.sim.world import World, simulate

UPKEEP = ("leases.", "log.ends", "wakes.waiting")
"""Operations that a process makes without a run; the seeds strike these."""

STRUCK = "w1"
CANCEL_AFTER_S = 0.9

SETTLED_S = 5.0
"""Both processes know each other, and the server is old enough to tell the dead."""

STORY = Script(
    [Turn(words=1, calls=("Charge", "Memory"), pace_s=0.01), Turn(words=4, pace_s=0.5)],
)


@dataclass(frozen=True)
class Strike:
    """``how`` befalls the ``at``-th operation (from 0); None is a crash at that point."""

    at: int
    how: Fault | None


@dataclass
class Ending:
    """``charge`` is what the model was told of its charge, "" when it was told nothing."""

    violations: list[str]
    trace: list[str]
    operations: list[str]
    client: str
    cancelled: bool
    status: str
    counter: int
    charges: int
    charge: str


class StruckWorld(World):
    """Strikes once and is calm otherwise."""

    def __init__(self, loop: SimLoop, strike: Strike | None) -> None:
        super().__init__(0, loop)
        self._strike = strike
        self.operations: list[str] = []
        self.counter = 0

    def conclude(self, in_time: bool) -> None:
        super().conclude(in_time)
        self.counter = len(memory_events(self.server))

    async def some_host(self) -> Host:
        first = self.hosts[STRUCK]
        return first if first.open else await super().some_host()

    async def _hook(self, client: str, operation: str) -> Fault | None:
        if client != STRUCK or operation.startswith(UPKEEP) or not self.clients:
            return await super()._hook(client, operation)
        at = len(self.operations)
        self.operations.append(operation)
        strike = self._strike
        if strike is None or strike.at != at:
            return await super()._hook(client, operation)
        self.disturbed_at = self.loop.time()
        self.note(client, f"struck at {operation}: {strike.how.name if strike.how else 'crash'}")
        if strike.how is None:
            self.crash(self.hosts[client])
            await asyncio.sleep(0)
        return strike.how


async def _story(world: World) -> None:
    for _ in range(2):
        world.add_host()
    await asyncio.sleep(SETTLED_S)
    request = RunRequest(agent=TALKER, prompt=msgspec.json.encode(STORY).decode())
    client = Client(world, "caller", Habits(request=request, cancels_s=CANCEL_AFTER_S))
    world.clients.append(client)
    await client.live()


def tell(strike: Strike | None = None) -> Ending:
    """Play the story with ``strike`` and say how it ended."""
    worlds: list[StruckWorld] = []

    def make(seed: int, loop: SimLoop) -> World:
        worlds.append(StruckWorld(loop, strike))
        return worlds[0]

    outcome = simulate(0, _story, make=make)
    world = worlds[0]
    rows = [row for row in world.index.runs.values() if row.started is not None]
    told = [
        event.text
        for row in rows
        for event in row.events()
        if isinstance(event, ToolResult) and event.tool_use.name == "Charge"
    ]
    return Ending(
        violations=outcome.violations,
        trace=outcome.trace,
        operations=world.operations,
        client=world.clients[0].outcome,
        cancelled=world.clients[0].cancelled,
        status=rows[0].status if rows else "",
        counter=world.counter,
        charges=sum(world.witness.charges.values()),
        charge="unknown" if UNKNOWN_OUTCOME in told else "".join(told),
    )
