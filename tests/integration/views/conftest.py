"""Views over SQLite and over a real PostgreSQL: every test of this folder runs on both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from projections.views import Views, ViewSettings
from tests.integration.postgres import fresh_database, running_server
from tests.integration.views.world import World


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ViewSettings:
    if request.param == "sqlite":
        return ViewSettings(path=str(tmp_path / "views"))
    server = request.getfixturevalue("postgres_server")
    return ViewSettings(backend="postgres", dsn=fresh_database(server))


@pytest_asyncio.fixture
async def world(settings: ViewSettings) -> AsyncIterator[World]:
    world = World(settings)
    yield world
    for views in world.opened:
        await views.close()


@pytest_asyncio.fixture
async def views(world: World) -> Views:
    views = await world.open()
    await views.ready()
    return views
