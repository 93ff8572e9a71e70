"""One process of the runtime: everything wired together, started and stopped in order.

Gateways get a :class:`Runtime` and nothing else. There is no other place where parts meet.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from events.ids import random_hex
from events.log import EventStore, LogError
from loomcycle import __version__
from loomcycle.admission import Admission
from loomcycle.auth import Authenticator
from loomcycle.background import Background
from loomcycle.budget.budgets import Budgets
from loomcycle.budget.prices import Prices
from loomcycle.build import UNKNOWN, this_build
from loomcycle.child_plans import ChildPlanner
from loomcycle.children import PARENT_CANCELLED
from loomcycle.cluster import Cluster, Member
from loomcycle.commands.cancel import cancel_run
from loomcycle.commands.compact import Compactions
from loomcycle.commands.hooks import HookCommands
from loomcycle.commands.inputs import Inputs
from loomcycle.commands.interrupts import Interrupts
from loomcycle.commands.pause import PauseCommands
from loomcycle.commands.resolver import ResolverCommands
from loomcycle.commands.runs import RunCommands
from loomcycle.config.loaded import LoadedConfig
from loomcycle.definitions import Definitions
from loomcycle.evaluations.store import Evaluations
from loomcycle.hooks.chain import HookChain
from loomcycle.hooks.client import HookClient
from loomcycle.hooks.registry import HookRegistry
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.lookups import Lookups
from loomcycle.masking import Redaction
from loomcycle.memory.seeding import apply_seeds, read_seeds
from loomcycle.memory.store import RowStore
from loomcycle.parked import ParkedRuns
from loomcycle.pause import Pause
from loomcycle.promises import Limits
from loomcycle.providers.registry import Registry, build_providers
from loomcycle.questions import Questions
from loomcycle.readers import Readers
from loomcycle.redaction import Redactor
from loomcycle.routing.matrix import Matrix
from loomcycle.routing.probes import Prober
from loomcycle.run_facts import RunReader
from loomcycle.run_states import RunStates
from loomcycle.services import Services
from loomcycle.stores import Stores, open_stores
from loomcycle.sweeper import Sweeper
from loomcycle.timers import DueTimers
from loomcycle.tools.builtin import builtin_tools
from loomcycle.tools.context.configured import operations as context_operations
from loomcycle.tools.context.history import Transcripts
from loomcycle.tracing.ended import EndedRuns
from loomcycle.worker import Worker
from projections.views import Views

log = logging.getLogger("loomcycle.runtime")

THREAD_STACK_BYTES = 16 << 20
"""Programs of code-js agents recurse on the stack of the thread that runs them."""


@dataclass
class Runtime:
    """A running process. Made by :func:`open_runtime`, ended by :meth:`close`."""

    config: LoadedConfig
    store: EventStore
    services: Services
    cluster: Cluster
    worker: Worker
    views: Views
    lookups: Lookups
    commands: RunCommands
    readers: Readers
    auth: Authenticator
    providers: Registry
    resolver: ResolverCommands
    hooks: HookCommands
    inputs: Inputs
    interrupts: Interrupts
    compactions: Compactions
    pausing: PauseCommands
    run_states: RunStates
    started_ns: int
    version: str
    commit: str
    _stack: AsyncExitStack

    async def close(self) -> None:
        """Stop taking work, hand runs over, leave; returns within 10 s."""
        await self._stack.aclose()


class _Effects(NamedTuple):
    """What runs are made of: definitions, and all that performing their effects needs."""

    services: Services
    definitions: Definitions
    providers: Registry
    matrix: Matrix
    prober: Prober
    rows: RowStore
    questions: Questions
    hooks: HookRegistry


class _Advancing(NamedTuple):
    """What takes runs up and brings them on."""

    cluster: Cluster
    worker: Worker
    pause: Pause
    sweeper: Sweeper
    lookups: Lookups
    readers: Readers
    started_ns: int


async def open_runtime(loaded: LoadedConfig, *, process: str = "") -> Runtime:
    """Start everything of one process. Raises EmbeddedServerError, LogError, SealError."""
    stack = AsyncExitStack()
    try:
        return await _open(loaded, process or f"p_{random_hex()}", stack)
    except BaseException:
        await stack.aclose()
        raise


async def _open(loaded: LoadedConfig, process: str, stack: AsyncExitStack) -> Runtime:
    threading.stack_size(THREAD_STACK_BYTES)
    stores = await open_stores(loaded, process, stack)
    effects = await _open_effects(loaded, process, stores, stack)
    advancing = await _begin_to_advance(loaded, process, stores, effects, stack)
    return await _open_commands(loaded, stores, effects, advancing, stack)


async def _open_effects(
    loaded: LoadedConfig, process: str, stores: Stores, stack: AsyncExitStack
) -> _Effects:
    """Providers, tools, hooks, budgets, and the definitions that say who may use which."""
    config, environment = loaded.config, loaded.environment
    store, views, _ = stores
    plans = Plans(store)
    redactor = Redactor.from_environment(loaded.environ)
    redaction = Redaction(redactor)
    providers = build_providers(loaded.environ)
    stack.push_async_callback(providers.close)
    matrix = Matrix(providers.configured(), providers.excluded())
    prober = Prober(
        matrix, providers.configured(), interval_s=environment.resolve_probe_interval_ms / 1000
    )
    stack.push_async_callback(prober.stop)
    rows = RowStore(
        store.log, store.subjects, redactor=redactor, sweep_ms=environment.memory_sweep_ms
    )
    questions = Questions(store, views, time.time_ns)
    evaluations = Evaluations(store, views, plans, redactor=redactor)
    tools = builtin_tools(
        rows,
        environment,
        questions,
        skills=loaded.skills,
        evaluations=evaluations,
        context=context_operations(loaded, evaluations, Transcripts(store, views)),
    )
    definitions = Definitions(
        loaded,
        providers,
        tools,
        plans,
        read_body=read_text,
        stored=redaction.plan,
        availability=matrix,
    )
    hooks = HookRegistry(store)
    await hooks.start()
    stack.push_async_callback(hooks.stop)
    callbacks = HookClient()
    stack.push_async_callback(callbacks.close)
    services = Services(
        store=store,
        live=LiveRuns(store.live),
        plans=plans,
        providers=providers,
        tools=tools,
        process=process,
        now_ns=time.time_ns,
        redaction=redaction,
        availability=matrix,
        budgets=Budgets(store, plans, Prices(config.prices)),
        hooks=HookChain(hooks, callbacks, config.hooks.permit_host_widen.owners),
        child_plans=ChildPlanner(definitions, config.volumes, plans),
        resume_fanout=environment.resume_fanout,
    )
    _begin_to_trace(loaded, services, stack)
    return _Effects(services, definitions, providers, matrix, prober, rows, questions, hooks)


def _begin_to_trace(loaded: LoadedConfig, services: Services, stack: AsyncExitStack) -> None:
    """Trace the runs that end here, if a collector is named."""
    environment = loaded.environment
    endpoint, ratio = environment.otel_exporter_otlp_endpoint, environment.otel_traces_sampler_ratio
    if not endpoint or not ratio:
        return
    from loomcycle.tracing.export import OtlpSink  # slow to import, and large

    sink = OtlpSink(endpoint, environment.otel_exporter_otlp_headers, environment.otel_service_name)
    stack.push_async_callback(sink.close)
    runs = EndedRuns(services.store, services.plans, sink, ratio=ratio)
    runs.start()
    stack.push_async_callback(runs.stop)
    services.ended = runs.ended


async def _begin_to_advance(
    loaded: LoadedConfig,
    process: str,
    stores: Stores,
    effects: _Effects,
    stack: AsyncExitStack,
) -> _Advancing:
    """Join the cluster, take work, and look after runs that nobody advances."""
    store, services = stores.store, effects.services
    slots = loaded.config.concurrency.max_concurrent_runs
    lookups = Lookups(store, stores.views)
    readers = Readers(services, grace_s=loaded.config.runtime.reader_grace_ms / 1000)
    started_ns = time.time_ns()
    member = Member(
        slots=slots,
        replica=loaded.environment.replica_id,
        version=__version__,
        host=platform.node(),
        started_ns=started_ns,
    )
    cluster = Cluster(store, process, member, alone_at_boot=stores.fresh)
    worker = Worker(
        services,
        cluster,
        Admission(store),
        slots=slots,
        seen_elsewhere=readers.seen_elsewhere,
    )
    pause = Pause(store, cluster, now_ns=time.time_ns)
    pause.runs = worker
    services.paused = pause.paused
    parked = ParkedRuns(
        store,
        lookups,
        cluster,
        paused=pause.paused,
        cancel=lambda tenant, run: cancel_run(services, tenant, run, PARENT_CANCELLED),
        now_ns=time.time_ns,
    )
    sweeper = Sweeper(
        store,
        lookups,
        cluster,
        process=process,
        owns=worker.owns,
        now_ns=time.time_ns,
        also=[parked],
    )
    pause.resumed = sweeper.hurry
    background = Background()

    def members_changed(members: dict[str, Member]) -> None:
        sweeper.hurry()
        background.add(_limit_queue(store, loaded, members))

    cluster.changed = members_changed
    await pause.open()
    await cluster.start()
    stack.push_async_callback(cluster.stop)
    pause.start()
    stack.push_async_callback(pause.stop)
    await worker.start()
    stack.push_async_callback(worker.stop)
    sweeper.start()
    stack.push_async_callback(sweeper.stop)
    timers = DueTimers(store)
    timers.start()
    stack.push_async_callback(timers.stop)
    background.add(_seed(effects.rows, loaded))
    return _Advancing(cluster, worker, pause, sweeper, lookups, readers, started_ns)


async def _open_commands(
    loaded: LoadedConfig,
    stores: Stores,
    effects: _Effects,
    advancing: _Advancing,
    stack: AsyncExitStack,
) -> Runtime:
    """What gateways ask of this process."""
    environment, concurrency = loaded.environment, loaded.config.concurrency
    store, services, definitions = stores.store, effects.services, effects.definitions
    cluster, lookups, readers = advancing.cluster, advancing.lookups, advancing.readers
    commands = RunCommands(
        services,
        definitions,
        lookups,
        cluster,
        advancing.worker,
        Limits(
            queue_timeout_s=concurrency.queue_timeout_ms / 1000,
            queue_depth=concurrency.max_queue_depth,
            user_cap=_user_cap(loaded),
        ),
    )
    stack.push_async_callback(commands.close)
    pausing = PauseCommands(
        services,
        advancing.pause,
        cluster,
        lookups,
        wake_parked=advancing.sweeper.hurry,
        default_timeout_s=environment.pause_default_timeout_ms / 1000,
    )
    stack.push_async_callback(pausing.close)
    run_states = RunStates(store)
    stack.push_async_callback(run_states.close)
    stack.push_async_callback(readers.close)
    commit = (await asyncio.to_thread(this_build)).commit
    effects.prober.start()
    run_reader = RunReader(store)
    return Runtime(
        config=loaded,
        store=store,
        services=services,
        cluster=cluster,
        worker=advancing.worker,
        views=stores.views,
        lookups=lookups,
        commands=commands,
        readers=readers,
        auth=Authenticator(environment.auth_token, loaded.principals),
        providers=effects.providers,
        resolver=ResolverCommands(effects.providers, effects.matrix, effects.prober, time.time_ns),
        hooks=HookCommands(services, effects.hooks, lookups),
        inputs=Inputs(services, run_reader),
        interrupts=Interrupts(services, run_reader, effects.questions),
        compactions=Compactions(services, run_reader, definitions),
        pausing=pausing,
        run_states=run_states,
        started_ns=advancing.started_ns,
        version=__version__,
        commit=commit if commit != UNKNOWN else "",
        _stack=stack,
    )


def read_text(path: str) -> str:
    """A code-js body. Raises OSError."""
    return Path(path).read_text(encoding="utf-8")


def _user_cap(loaded: LoadedConfig) -> int:
    own = loaded.environment.max_concurrent_runs_per_user
    return loaded.config.concurrency.max_concurrent_runs_per_user if own is None else own


async def _seed(rows: RowStore, loaded: LoadedConfig) -> None:
    """Write ``memory.entries`` for every tenant that this configuration knows."""
    tenants = {"", "default", *(principal.tenant for principal in loaded.principals)}
    for tenant in sorted(tenants):
        seeds, notes = read_seeds(loaded.config.memory.entries, tenant)
        for note in [*notes, *await apply_seeds(rows, seeds, time.time_ns())]:
            log.warning("%s", note)


async def _limit_queue(
    store: EventStore, loaded: LoadedConfig, members: Mapping[str, Member]
) -> None:
    """Starts in slots and queue together are bounded by what all members have room for."""
    slots = sum(member.slots for member in members.values())
    depth = loaded.config.concurrency.max_queue_depth
    try:
        await store.starts.limit(slots + depth, _user_cap(loaded))
    except LogError as cause:
        log.warning("bounds of the start queue not set: %s", cause)
