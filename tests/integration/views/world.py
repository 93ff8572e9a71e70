"""One log in memory and any number of views over it, as several processes would see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET, Raw

from events import state
from events import vocabulary as v
from events.commit import NewEvent
from events.log import EventStore
from events.memory_store import MemoryServer
from events.streams import RUN_STREAM_NAMES
from projections.views import Views, ViewSettings
from tests.integration.journals import Journal, plain_run

RUN = "r_00000000000000a1"
SESSION = "s_00000000000000a1"
OTHER = "r_ff000000000000b2"
STREAMS = (*RUN_STREAM_NAMES, "STATE")


class World:
    """``settings`` say which database all of its views share."""

    def __init__(self, settings: ViewSettings) -> None:
        self.settings = settings
        self.server = MemoryServer()
        self.store: EventStore = self.server.connect("writer")
        self.opened: list[Views] = []

    async def open(self, **options: Any) -> Views:
        async def factory() -> EventStore:
            return self.server.connect(f"views-{len(self.opened)}")

        views = await Views.open(self.settings, factory, own_thread=False, **options)
        self.opened.append(views)
        return views

    async def append(self, journal: Journal, *events: v.Event | NewEvent) -> int:
        return await journal.append(self.store.log, self.store.subjects, *events)

    async def play(self, run: str, **fields: Any) -> None:
        """A whole plain run."""
        journal, commits = plain_run(run, **fields)
        for data in commits:
            await self.store.log.append(journal.subject(self.store.subjects), data)

    async def remember(self, key: str, value: str | None, **fields: Any) -> int:
        given: dict[str, Any] = {
            "scope": "user",
            "scope_id": "u1",
            "op": "set",
            "created_at_ns": 1,
            "updated_at_ns": 2,
        } | fields
        event = state.MemoryWritten(
            key=key, value=UNSET if value is None else Raw(value.encode()), **given
        )
        subject = self.store.subjects.memory(event.tenant, event.scope, event.scope_id, key)
        return await self.store.log.append(subject, state.encode(event))

    async def catch_up(self, views: Views) -> None:
        await views.barrier(await self.store.log.ends(STREAMS))


async def eventually(check: Callable[[], Awaitable[bool]], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await check():  # noqa: ASYNC110  (another process' state has no event)
            await asyncio.sleep(0.005)


async def is_reader(views: Views, detail: str = "") -> bool:
    """Whether another process writes."""
    status = await views.status()
    return status.state == "reader" and detail in status.detail


async def rebuilt(views: Views, times: int) -> bool:
    """Whether this process has served ``times`` new sets of tables."""
    return (await views.status()).rebuilds == times
