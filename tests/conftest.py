"""Fixtures that many tests share: one real nats-server, and stores on it that do not meet."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import hypothesis
import pytest
import pytest_asyncio

from events.embedded import EmbeddedServer
from events.log import EventStore
from events.nats_api import Api
from events.nats_link import open_link
from events.nats_store import connect
from events.streams import STREAMS

# The first use of st.text() builds a Unicode table, and CI machines are busy.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

OpenStore = Callable[..., Awaitable[EventStore]]

MASTER_KEY = bytes(range(32))


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A real nats-server that flushes every message; one for the whole test run."""
    server = asyncio.run(EmbeddedServer.start(tmp_path_factory.mktemp("shared-nats")))
    yield server
    asyncio.run(server.stop())


@pytest_asyncio.fixture
async def open_store(nats_server: EmbeddedServer) -> AsyncIterator[OpenStore]:
    """``await open_store("name")`` connects one more process to this test's own deployment."""
    prefix = "t" + secrets.token_hex(6)
    stores: list[EventStore] = []

    async def open_one(name: str = "test", **options: Any) -> EventStore:
        options = {"prefix": prefix, "master_key": MASTER_KEY, **options}
        store = await connect(nats_server.url, token=nats_server.token, name=name, **options)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await store.close()
    link = await open_link(nats_server.url, name="cleaner", token=nats_server.token)
    api = Api(link)
    for stream in await api.configs(f"{prefix}.>"):
        await api.call(f"STREAM.DELETE.{stream}", None, dict, write=True)
    assert {spec.stream(prefix) for spec in STREAMS}.isdisjoint(await api.configs(f"{prefix}.>"))
    await link.close()


@pytest_asyncio.fixture
async def nats_store(open_store: OpenStore) -> EventStore:
    """One store on the shared nats-server, empty."""
    return await open_store()
