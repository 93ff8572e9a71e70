"""The log and the views of one process, opened as its configuration says.

Nothing here knows what they are for; what stands on them is ``loomcycle/runtime.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from events.embedded import EmbeddedServer
from events.log import EventStore
from events.nats_store import connect
from events.seals import load_master_key
from loomcycle.config.loaded import LoadedConfig
from projections.views import Views, ViewSettings


class Stores(NamedTuple):
    """What everything else stands on. ``fresh``: this process started the log's only server."""

    store: EventStore
    views: Views
    fresh: bool


async def open_stores(loaded: LoadedConfig, process: str, stack: AsyncExitStack) -> Stores:
    """Connect to the servers that are configured, or to this process' own; end with ``stack``.

    Raises EmbeddedServerError, LogError, SealError.
    """
    config, environment = loaded.config, loaded.environment
    data_dir = _directory(environment.data_dir)
    settings: dict[str, object] = {
        "prefix": config.log.prefix,
        "master_key": load_master_key(data_dir, environment.master_key),
    }
    servers: Sequence[str] = environment.nats_servers
    fresh = False
    if servers:
        if environment.nats_creds:
            settings["credentials"] = environment.nats_creds
    else:
        embedded = await EmbeddedServer.start(data_dir, sync=config.log.sync)
        stack.push_async_callback(embedded.stop)
        watch = asyncio.create_task(embedded.watch(), name="embedded-server")
        stack.callback(watch.cancel)
        servers, fresh = [embedded.url], embedded.owned
        settings["token"] = embedded.token

    async def open_store(name: str) -> EventStore:
        return await connect(list(servers), name=name, **settings)  # type: ignore[arg-type]

    store = await open_store(process)
    stack.push_async_callback(store.close)
    views = await Views.open(view_settings(loaded), lambda: open_store(f"{process}-views"))
    stack.push_async_callback(views.close)
    await views.share(store.live)
    return Stores(store, views, fresh)


def view_settings(loaded: LoadedConfig) -> ViewSettings:
    """Where this deployment's views live."""
    storage = loaded.config.storage
    if storage.backend == "postgres":
        return ViewSettings(backend="postgres", dsn=str(storage.pg_dsn))
    return ViewSettings(path=os.path.join(loaded.environment.data_dir, "views"))


def _directory(path: str) -> Path:
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
