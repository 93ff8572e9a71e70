"""When the last reader of a plain run leaves, also while the log is away.

In virtual time, over the log in memory.
"""

from __future__ import annotations

import asyncio

from events.log import EventStore
from events.memory_store import MemoryServer
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.providers.registry import Registry
from loomcycle.readers import Readers
from loomcycle.services import Services
from tests.virtual_time import play

RUN = "r_ab00000000000001"
GRACE_S = 2.0
OUTAGE_S = 600.0


class Reader:
    def on_commit(self, commit: object) -> None:
        """It only is there."""

    def on_delta(self, delta: object) -> None:
        """It only is there."""


class Process:
    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store: EventStore = self.server.connect("w1")
        self.live = LiveRuns(self.store.live)
        services = Services(
            store=self.store,
            live=self.live,
            plans=Plans(self.store),
            providers=Registry({}, {}),
            tools={},
            process="w1",
            now_ns=lambda: 1,
        )
        self.readers = Readers(services, grace_s=GRACE_S)

    async def cancels(self) -> int:
        """Messages in the run's inbox."""
        return len(await self.store.log.read(self.store.subjects.inbox("", RUN)))


def test_a_reader_that_left_while_the_log_was_away_is_remembered() -> None:
    async def story() -> None:
        process = Process()
        process.server.cut_off("w1")
        process.readers.left("", RUN)
        await asyncio.sleep(OUTAGE_S)
        process.server.restore("w1")
        await asyncio.sleep(2 * GRACE_S)
        assert await process.cancels() == 1
        await asyncio.sleep(OUTAGE_S)
        assert await process.cancels() == 1

    play(story)


def test_who_comes_to_read_during_the_outage_keeps_the_run() -> None:
    async def story() -> None:
        process = Process()
        process.server.cut_off("w1")
        process.readers.left("", RUN)
        await asyncio.sleep(2 * GRACE_S)
        reader = Reader()
        process.live.attach(RUN, reader)
        await asyncio.sleep(OUTAGE_S)
        process.server.restore("w1")
        await asyncio.sleep(OUTAGE_S)
        assert await process.cancels() == 0
        process.live.detach(RUN, reader)
        await asyncio.sleep(2 * GRACE_S)
        assert await process.cancels() == 1

    play(story)
