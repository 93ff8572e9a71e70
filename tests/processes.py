"""A process as far as it owns and advances runs, over the log in memory: no queues, no gateway."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from events.commit import decode
from events.log import EventStore
from events.memory_store import MemoryServer
from events.plan import RunPlan
from events.vocabulary import Event, RunStarted
from loomcycle.activation import Activation
from loomcycle.admission import Admission
from loomcycle.cluster import Cluster, Member
from loomcycle.journal import RunJournal
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.ownership import Ownership
from loomcycle.providers.mock import MockProvider, MockSettings
from loomcycle.providers.registry import Registry
from loomcycle.services import Services
from loomcycle.starts import Start, StartItem
from replay.state import State
from tests.stories import PLAN, opens

TENANT, RUN = "t", "r_ab00000000000001"


class Nobody:
    def committed(self, *_: object) -> None:
        """Nobody reads along."""


class Process:
    """Its model answers "ok" and ends."""

    def __init__(
        self, server: MemoryServer, name: str, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.store: EventStore = server.connect(name)
        mock = MockProvider("mock", MockSettings(latency_ms=0, jitter_ms=0), rng=random.Random(1))
        self.services = Services(
            store=self.store,
            live=LiveRuns(self.store.live),
            plans=Plans(self.store),
            providers=Registry({"mock": mock}, {}),
            tools={},
            process=name,
            now_ns=now_ns,
        )
        self.cluster = Cluster(self.store, name, Member(slots=1), alone_at_boot=True)
        self.ownership = Ownership(self.services, self.cluster, Admission(self.store))

    async def has(self, *events: Event, run: str = RUN, plan: RunPlan = PLAN) -> RunJournal:
        """A run of this process that one commit has brought to ``events``."""
        started = events[0]
        assert isinstance(started, RunStarted)
        journal = RunJournal(
            self.store,
            State(plan),
            tenant=TENANT,
            run_id=run,
            worker=self.services.process,
            epoch=0,
            now_ns=self.services.now_ns,
            observer=Nobody(),
        )
        for event in events:
            journal.stage(event)
        await journal.commit()
        return journal

    async def opening(self, plan: RunPlan = PLAN, **facts: Any) -> list[Event]:
        """``opens`` with a plan that the log has."""
        return opens(tenant=TENANT, plan=await self.services.plans.put(plan), **facts)

    async def start(self, text: str = "hi", **facts: Any) -> Start:
        """A start as the queue hands it out: ``facts`` of its ``run.started``, and ``text``."""
        opening = (await self.opening(text=text, **facts))[:2]
        started = opening[0]
        assert isinstance(started, RunStarted)
        item = StartItem(
            run=started.run,
            session=started.session,
            tenant=TENANT,
            agent_id=started.agent_id,
            gateway=self.services.process,
            not_after_ns=0,
            opens_session=started.previous is None,
            claims_handle="agent_id" in facts,
        )
        return Start(item, opening)

    async def takes(self, run: str = RUN) -> Activation | None:
        """Take the run over, if there is something to do."""
        owned = await self.ownership.take_over(TENANT, run, None)
        if owned is None:
            return None
        return Activation(
            self.services,
            owned.journal,
            resumed_n=owned.resumed_n,
            unparked=owned.unparked,
            timed=owned.timed,
        )


async def types_of(store: EventStore, run: str = RUN) -> list[list[str]]:
    """The event types of each stored commit."""
    messages = await store.log.read(store.subjects.journal(TENANT, run))
    return [[e.type for e in decode(m.data, m.seq).header.events] for m in messages]
