"""The world of one seed: a log server, processes that fail, callers that watch, and the rules.

:func:`simulate` plays one seed and says what was wrong. Rules and faults are drawn from the
seed's own generator, which rules are allowed at all too (a world without crashes can demand more).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from events.commit import Commit
from events.memory_store import Fault, MemoryServer
from events.vocabulary import RunClaimed, RunParked
from loomcycle.commands.requests import RunRequest
from tests.sim.agents import Witness
from tests.sim.checks import check_all, locked_sessions
from tests.sim.clients import EXPECTED_ERRORS, Client, Habits
from tests.sim.host import SUBJECT, Host, Logs
from tests.sim.index import Index, RunRow
from tests.sim.loop import SimLoop
from tests.sim.people import People

EPOCH_NS = 1_700_000_000_000_000_000
QUEUE_TIMEOUT_S = 40.0
LATENCY_S = 0.004
QUIET_S = 60.0
"""So long after the last fault everything must have come to an end."""


@dataclass
class Trap:
    """A process meets its end (or a pause) at its next operation of a kind."""

    host: Host
    operation: str
    spring: Callable[[], None]
    skip: int = 0


@dataclass
class Outcome:
    """What one seed came to. ``trace`` has a line for each thing that happened."""

    seed: int
    violations: list[str]
    trace: list[str]
    runs: int
    turns: int
    virtual_s: float
    met: set[str] = field(default_factory=set)


class World:
    """What rules, processes and callers share. ``fault_rate``: faults per operation."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.seed, self.loop, self.rng = seed, loop, loop.rng
        self.user_cap = 1000 if seed % 2 else 0
        """With a cap, starts of named users go through the queue, however idle their process."""
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.met: set[str] = set()
        self.witness = Witness()
        self.hosts: dict[str, Host] = {}
        self.clients: list[Client] = []
        self.fault_rate = 0.0
        self.core_loss = 0.0
        self.queue_timeout_s = QUEUE_TIMEOUT_S
        self.disturbed_at = -1.0
        self.called_busy: list[tuple[Client, float]] = []
        self.traps: list[Trap] = []
        self.steps = False
        self._context = copy_context()
        self.server = MemoryServer(self._hook, now_ns=self.now_ns)
        self.index = Index(self.server, self._stored)
        self._lease_faults: set[str] = set()

    # -- time, notes, tasks

    def now_ns(self) -> int:
        return EPOCH_NS + int(self.loop.time() * 1e9)

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self.loop.time():9.4f} {who:>8} {what}")

    def violation(self, what: str) -> None:
        self.note("!!", what)
        self.violations.append(what)

    def later(self, seconds: float, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` when the time comes, whatever becomes of the process that asks."""
        self.loop.call_later(seconds, function, *args, context=self._context)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work, context=self._context.copy())
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violation(f"the simulation itself: {error!r}")

    # -- processes

    def add_host(self, *, slots: int = 3, skew_ns: int = 0, alone: bool = False) -> Host:
        name = f"w{len(self.hosts) + 1}"
        host = Host(self, name, slots=slots, skew_ns=skew_ns, alone=alone)
        self.hosts[name] = host
        self.note(name, "boots")
        host.booting = host.boot()
        return host

    def well(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.well]

    async def some_host(self) -> Host:
        """A process that takes connections; waits while there is none."""
        while True:
            hosts = [host for host in self.hosts.values() if host.open]
            if hosts:
                return self.rng.choice(hosts)
            await asyncio.sleep(0.2)

    async def answer(self, host: Host, task: asyncio.Task[Any]) -> Any:
        """What a process answered, or None when it died before."""
        while not task.done():
            if host.dead:
                return None
            await asyncio.sleep(0.05)
        return None if task.cancelled() else task.result()

    def crash(self, host: Host, why: str = "crashes") -> None:
        if not host.dead:
            self.note(host.name, why)
            self.met.add("crash")
            self.disturbed_at = self.loop.time()
            host.crash()

    def suspend(self, host: Host, seconds: float) -> None:
        if host.dead or host.suspended:
            return
        self.note(host.name, f"is suspended for {seconds:.1f} s")
        self.met.add("suspend")
        self.disturbed_at = self.loop.time()
        host.suspend()
        self.later(seconds, self.resume, host)

    def resume(self, host: Host) -> None:
        if host.suspended and not host.dead:
            self.note(host.name, "goes on")
            self.disturbed_at = self.loop.time()
            host.resume()

    # -- the log's faults

    async def _hook(self, client: str, operation: str) -> Fault | None:
        host = self.hosts[client]
        kind = operation
        if operation.startswith("log.append"):
            kind = f"{operation}/{SUBJECT.get()}"
        if self.steps:
            self.note(client, kind)
        if await self._trapped(host, kind):
            return None
        if not operation.endswith(":after"):
            await asyncio.sleep(self.rng.random() * LATENCY_S)
        fault = self._fault(client, operation)
        if fault is not None:
            self.note(client, f"{kind}: {fault.name}")
            self.met.add(fault.name)
            self.disturbed_at = self.loop.time()
        return fault

    async def _trapped(self, host: Host, kind: str) -> bool:
        for trap in self.traps:
            if trap.host is host and kind.startswith(trap.operation):
                if trap.skip:
                    trap.skip -= 1
                    return False
                self.traps.remove(trap)
                self.note(host.name, f"trapped at {kind}")
                trap.spring()
                await asyncio.sleep(0)
                return True
        return False

    def _fault(self, client: str, operation: str) -> Fault | None:
        """No process loses its lease by faults alone: two in a row are not drawn."""
        if not self.fault_rate or self.rng.random() >= self.fault_rate:
            self._lease_faults.discard(client)
            return None
        if operation.startswith("leases."):
            if client in self._lease_faults:
                return None
            self._lease_faults.add(client)
        if operation.endswith(":after"):
            return Fault.UNKNOWN_STORED
        return self.rng.choice(list(Fault))

    def loses_core_message(self) -> bool:
        return self.core_loss > 0 and self.rng.random() < self.core_loss

    # -- what is watched all the time

    def _stored(self, row: RunRow, commit: Commit, owner_before: str) -> None:
        names = " ".join(event.type for event in commit.header.events)
        self.note(commit.header.writer, f"{row.id[:6]} c{commit.c} e{commit.header.epoch} {names}")
        for record in commit.records():
            if isinstance(record.event, RunParked):
                self.met.add(f"parked for {record.event.reason}")
            if isinstance(record.event, RunClaimed):
                self.met.add("takeover")
                owner = self.hosts.get(owner_before)
                if owner is not None and not owner.lost:
                    self.violation(
                        f"{row.id} was claimed by {record.event.worker}, but its owner"
                        f" {owner_before} was well"
                    )

    def refused(self, client: Client, code: str) -> None:
        self.met.add(code)
        if code not in EXPECTED_ERRORS:
            self.violation(f"{client.name} was refused with {code}")
        if code == "session_not_found":
            self.violation(f"{client.name}: session {client.habits.session} is not found")
        if code == "session_busy" and self.disturbed_at < client.waited_since:
            self.called_busy.append((client, self.loop.time()))
        if code == "backpressure" and self.disturbed_at < client.waited_since:
            self.violation(f"{client.name} waited in vain although nothing was wrong")

    # -- the end

    async def calm_down(self) -> bool:
        """No more faults: whether all comes to its end in time."""
        self.note("world", "calm")
        self.fault_rate = self.core_loss = 0.0
        self.traps.clear()
        for host in self.hosts.values():
            self.resume(host)
        if not any(host.open for host in self.hosts.values()):
            self.add_host()
        in_time = await self._rest()
        for session in locked_sessions(self) if in_time else ():
            self.note("world", f"tries session {session}, whose last start never began")
            self.met.add("abandoned session")
            habits = Habits(request=RunRequest(prompt='{"turns":[]}'), session=session)
            client = Client(self, f"probe{len(self.clients)}", habits)
            self.clients.append(client)
            self.spawn(client.live())
            in_time = await self._rest()
            if not client.complete:
                self.violation(f"session {session} cannot be continued: {client.outcome}")
        return in_time

    def conclude(self, in_time: bool) -> None:
        """Check what is left."""
        check_all(self, in_time)

    async def _rest(self) -> bool:
        deadline = self.loop.time() + QUIET_S
        while self.loop.time() < deadline:
            await asyncio.sleep(0.5)
            if self._is_over():
                return True
        return False

    def _is_over(self) -> bool:
        return (
            all(client.done for client in self.clients)
            and all(row.ended for row in self.index.runs.values())
            and not len(self.server.starts.stream)
            and not len(self.server.wakes.stream)
            and all(host.worker.active == 0 for host in self.well())
        )


Play = Callable[[World], Coroutine[Any, Any, None]]


def simulate(
    seed: int,
    play: Play,
    *,
    steps: bool = False,
    make: Callable[[int, SimLoop], World] = World,
) -> Outcome:
    """Play one seed in a loop of its own and check what is left. ``make`` makes its world."""
    loop = SimLoop(random.Random(seed))
    logger = logging.getLogger("loomcycle")
    level, propagate = logger.level, logger.propagate
    collecting = gc.isenabled()
    gc.disable()
    asyncio.set_event_loop(loop)
    try:
        world = loop.run_until_complete(_made(partial(make, seed, loop)))
        world.steps = steps
        logs = Logs(world)
        logger.addHandler(logs)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        loop.set_exception_handler(
            lambda _, context: world.violation(f"unhandled: {context.get('exception', context)!r}")
        )
        try:
            loop.run_until_complete(_play(world, play))
            return Outcome(
                seed=seed,
                violations=list(world.violations),
                trace=list(world.trace),
                runs=len(world.index.runs),
                turns=loop.turns,
                virtual_s=loop.time(),
                met=set(world.met),
            )
        finally:
            logger.removeHandler(logs)
            logger.setLevel(logging.CRITICAL + 1)
            loop.set_exception_handler(lambda _, context: None)
            loop.bury_all()
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()


async def _made(make: Callable[[], World]) -> World:
    """A server wants to be made inside a running loop."""
    return make()


async def _play(world: World, play: Play) -> None:
    world.spawn(People(world).live())
    await play(world)
    in_time = await world.calm_down()
    world.conclude(in_time)
