"""One simulated process: the parts of ``loomcycle/runtime.py`` wired over the log in memory.

It can crash (nothing of it ever runs again), be suspended (time goes on without it) or stop in
good order. The gateway here is the core of ``gateways/http/routes/runs.py`` without HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from events.blobs import ChunkedBlobs
from events.log import EventStore, Live, Log, LogError
from events.seals import LogSeals, Sealer
from loomcycle.admission import Admission
from loomcycle.auth import OPEN
from loomcycle.child_plans import ChildPlanner
from loomcycle.children import PARENT_CANCELLED
from loomcycle.cluster import Cluster, Member
from loomcycle.commands.cancel import cancel_run
from loomcycle.commands.requests import RunRequest
from loomcycle.commands.runs import RunCommands, StartedRun
from loomcycle.config.loaded import LoadedConfig
from loomcycle.config.schema import Config
from loomcycle.config.variables import Environment
from loomcycle.definitions import Definitions
from loomcycle.errors import CommandError, LogAway
from loomcycle.feed import FeedFrame, Position, RunFeed
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.parked import ParkedRuns
from loomcycle.promises import Limits
from loomcycle.providers.registry import Registry
from loomcycle.readers import Readers
from loomcycle.services import Services
from loomcycle.sweeper import Sweeper
from loomcycle.timers import DueTimers
from loomcycle.worker import Worker
from tests.sim.agents import AGENTS, ScriptedModel, tools_of
from tests.sim.index import SimLookups
from tests.sim.loop import OWNER

if TYPE_CHECKING:
    from tests.sim.world import World

SUBJECT: ContextVar[str] = ContextVar("subject", default="")
"""What kind of subject the append under way is for: journal, inbox, mem, …"""

READER_GRACE_S = 2.0
KEEPALIVE_S = 20.0

CONFIG = LoadedConfig(
    config=Config(agents=AGENTS),
    environment=Environment(),
    files=(),
    base_dir=Path(),
    warnings=(),
    notes=(),
    environ={},
    auth_env=(),
    principals=(),
    skills={},
    agent_files={},
)


class NamedLog:
    """The log, telling what kind of subject each append is for."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.last, self.first, self.read, self.tail = log.last, log.first, log.read, log.tail
        self.ends, self.purge = log.ends, log.purge

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        after: int | None = None,
        scope: str | None = None,
        msg_id: str | None = None,
    ) -> int:
        first, _, rest = subject.partition(".")[2].partition(".")
        SUBJECT.set(rest.rpartition(".")[2] if first == "run" else first)
        return await self._log.append(subject, data, after=after, scope=scope, msg_id=msg_id)


class OwnLive:
    """Core messages that arrive in the process that follows, not in the one that publishes."""

    def __init__(self, live: Live, host: Host) -> None:
        self._live, self._host = live, host
        self.publish, self.poke = live.publish, live.poke

    async def follow(self, run_id: str, receive: Callable[[bytes], None]) -> Callable[[], None]:
        return await self._live.follow(run_id, lambda data: self._arrive(receive, data))

    async def pokes(self, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        return await self._live.pokes(lambda run_id, data: self._arrive(receive, run_id, data))

    def _arrive(self, receive: Callable[..., None], *message: Any) -> None:
        if not self._host.world.loses_core_message():
            self._host.call(receive, *message)


class Connection:
    """A client's stream from a gateway: what was sent and not yet read, and how it ended."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.frames: deque[FeedFrame] = deque()
        self.run: StartedRun | None = None
        self.ending = ""
        """"": open; ``end``: complete; ``broken``; else the code of a typed error."""
        self.left = False
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def send(self, frames: list[FeedFrame]) -> None:
        self.frames.extend(frames)
        self._changed.set()

    def close(self, ending: str) -> None:
        if not self.ending:
            self.ending = ending
            self._changed.set()

    def leave(self) -> None:
        """The client goes away; the gateway learns of it when it runs."""
        self.left = True
        self.frames.clear()
        self.close("broken")
        if self.task is not None:
            self.host.call(self.task.cancel)

    async def read(self) -> FeedFrame | None:
        """The next frame; None when the stream has ended."""
        while not self.frames:
            if self.ending:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.frames.popleft()


class Host:
    """One process of the cluster. ``lost`` once its runs may be taken over."""

    def __init__(self, world: World, name: str, *, slots: int, skew_ns: int, alone: bool) -> None:
        self.world, self.name, self.slots = world, name, slots
        self.lane = world.loop.lane(name)
        self._context = Context()
        self._context.run(OWNER.set, self.lane)
        self.connections: list[Connection] = []
        self.booted = self.stopping = self.dead = self.lost = False
        self.suspended = False
        self.booting: asyncio.Task[Any] | None = None
        self.skew_ns = skew_ns
        self._alone = alone
        self._parts: list[Callable[[], Awaitable[None]]] = []

    @property
    def open(self) -> bool:
        """Whether clients can connect."""
        return self.booted and not self.stopping and not self.dead

    @property
    def well(self) -> bool:
        return self.open and not self.suspended

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function`` in this process, when it runs."""
        self.world.loop.call_soon(function, *args, context=self._context)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.world.loop.create_task(work, context=self._context.copy())
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.violation(f"{self.name}: {type(error).__name__}: {error}")

    def now_ns(self) -> int:
        return self.world.now_ns() + self.skew_ns

    # -- life and death

    def boot(self) -> asyncio.Task[Any]:
        return self.spawn(self._boot())

    def crash(self) -> None:
        self.dead = self.lost = True
        self.lane.dead = True
        self.world.server.disconnect(self.name)
        for connection in self.connections:
            connection.close("broken")

    def suspend(self) -> None:
        self.suspended = self.lost = True
        self.lane.frozen = True

    def resume(self) -> None:
        self.suspended = self.lane.frozen = False

    def stop(self) -> asyncio.Task[Any]:
        """SIGTERM: hand runs over and go."""
        self.stopping = self.lost = True
        return self.spawn(self._stop())

    async def _boot(self) -> None:
        world = self.world
        store = self.store = self._store(world.server.connect(self.name))
        self.live = LiveRuns(store.live)
        plans = Plans(store)
        model = ScriptedModel(world.rng)
        tools = tools_of(store, world.witness, world.rng)
        providers = Registry({model.id: model}, {})
        self.services = services = Services(
            store=store,
            live=self.live,
            plans=plans,
            providers=providers,
            tools=tools,
            process=self.name,
            now_ns=self.now_ns,
            new_hex=lambda: f"{world.rng.getrandbits(64):016x}",
        )
        self.lookups = SimLookups(store, world.index)
        self.readers = Readers(services, grace_s=READER_GRACE_S)
        member = Member(slots=self.slots)
        self.cluster = Cluster(store, self.name, member, alone_at_boot=self._alone)
        self.worker = Worker(
            services,
            self.cluster,
            Admission(store),
            slots=self.slots,
            seen_elsewhere=self.readers.seen_elsewhere,
        )
        sweeper = Sweeper(
            store,
            self.lookups,
            self.cluster,
            process=self.name,
            owns=self.worker.owns,
            now_ns=self.now_ns,
            also=[
                ParkedRuns(
                    store,
                    self.lookups,
                    self.cluster,
                    paused=services.paused,
                    cancel=lambda t, run: cancel_run(services, t, run, PARENT_CANCELLED),
                    now_ns=self.now_ns,
                )
            ],
        )
        definitions = Definitions(CONFIG, providers, tools, plans, read_body=str)
        services.child_plans = ChildPlanner(definitions, {}, plans)
        timers = DueTimers(store)
        self.commands = RunCommands(
            services,
            definitions,
            cast(Any, self.lookups),
            self.cluster,
            self.worker,
            Limits(
                queue_timeout_s=world.queue_timeout_s, queue_depth=1024, user_cap=world.user_cap
            ),
        )
        self.cluster.changed = lambda members: sweeper.hurry()
        while True:
            try:
                await self.cluster.start()
                break
            except LogError:
                await asyncio.sleep(0.5)
        await self.worker.start()
        sweeper.start()
        timers.start()
        self._parts = [
            timers.stop,
            self.readers.close,
            self.commands.close,
            sweeper.stop,
            self.worker.stop,
            self.cluster.stop,
        ]
        self.booted = True

    def _store(self, store: EventStore) -> EventStore:
        log = NamedLog(store.log)
        return replace(
            store,
            log=log,
            blobs=ChunkedBlobs(log, store.subjects),
            seals=LogSeals(log, store.subjects, Sealer(b"\0" * 32)),
            live=OwnLive(store.live, self),
        )

    async def _stop(self) -> None:
        for connection in self.connections:
            if not connection.ending and connection.task is not None:
                connection.task.cancel()
        for stop in self._parts:
            await stop()
        self.world.note(self.name, "gone")
        self.crash()

    # -- the gateway

    def start_run(self, request: RunRequest) -> Connection:
        return self._connect(lambda: self.commands.start(request, OPEN))

    def continue_session(self, session_id: str, request: RunRequest) -> Connection:
        return self._connect(lambda: self.commands.continue_session(session_id, request, OPEN))

    def attach(self, run_id: str, after: Position) -> Connection:
        connection = Connection(self)
        self.connections.append(connection)
        connection.task = self.spawn(self._attach(connection, run_id, after))
        return connection

    def cancel(self, tenant: str, run_id: str, reason: str) -> asyncio.Task[bool | None]:
        return self.spawn(self._cancel(tenant, run_id, reason))

    async def _cancel(self, tenant: str, run_id: str, reason: str) -> bool | None:
        """Whether the cancel was accepted; None when nobody knows."""
        try:
            return await cancel_run(self.services, tenant, run_id, reason)
        except LogError:
            return None

    def _connect(self, start: Callable[[], Awaitable[StartedRun]]) -> Connection:
        connection = Connection(self)
        self.connections.append(connection)
        connection.task = self.spawn(self._serve(connection, start))
        return connection

    async def _serve(
        self, connection: Connection, start: Callable[[], Awaitable[StartedRun]]
    ) -> None:
        run: StartedRun | None = None
        try:
            run = await start()
            connection.run = run
            try:
                connection.send(run.first)
                await self._follow(connection, run.feed)
            finally:
                run.feed.close()
        except CommandError as error:
            connection.close(error.code)
        except LogError:
            connection.close("broken" if run is not None else LogAway.code)
        except asyncio.CancelledError:
            connection.close("broken")
        if connection.left and run is not None and run.reader == "cancel" and not run.feed.ended:
            self.readers.left(run.tenant, run.run_id)

    async def _attach(self, connection: Connection, run_id: str, after: Position) -> None:
        with contextlib.suppress(asyncio.CancelledError, LogError):
            row = await self.lookups.run(OPEN, run_id)
            if row is None:
                connection.close("run_not_found")
                return
            feed = RunFeed(
                self.store,
                self.live,
                row.tenant,
                run_id,
                process=self.name,
                after=after,
                replay=True,
                alone=self.cluster.alone,
            )
            async with feed:
                await self._follow(connection, feed)
        connection.close("broken")

    async def _follow(self, connection: Connection, feed: RunFeed) -> None:
        while not feed.ended:
            connection.send(await feed.next(KEEPALIVE_S))
        connection.close("end")


class Logs(logging.Handler):
    """Puts what the product logs into the trace; errors are violations."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        lane = OWNER.get(None)
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._world.note(lane.name if lane is not None else "world", f"log: {text}")
        if record.levelno >= logging.ERROR:
            self._world.violation(f"logged as an error: {text}")
