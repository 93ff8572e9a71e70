"""The log of a data directory or a NATS server, for commands that read it without a server.

Joins the nats-server of a running ``serve``, or starts one on the data directory for the time
of the command (longer than the ``serve`` that it joined, if need be). Appends nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from events.commit import Commit, JournalError, decode
from events.embedded import EmbeddedServer, EmbeddedServerError
from events.log import EventStore, LogError, Message
from events.nats_store import connect
from events.seals import KEY_BYTES
from events.subjects import MAX_NAME_BYTES
from loomcycle.auth import OPEN
from loomcycle.cli.errors import BadInvocation, CommandFailed
from loomcycle.config.loaded import LoadedConfig
from loomcycle.loading import opening, whole_commit

T = TypeVar("T")

PROCESS = "cli"


@dataclass(frozen=True)
class LogAccess:
    """``open_store`` makes one more connection, for code with a loop of its own."""

    store: EventStore
    open_store: Callable[[], Awaitable[EventStore]]


@asynccontextmanager
async def open_log(loaded: LoadedConfig) -> AsyncIterator[LogAccess]:
    """Raises BadInvocation when there is no log, EmbeddedServerError, LogError."""
    environment = loaded.environment
    async with AsyncExitStack() as stack:
        servers = list(environment.nats_servers)
        token: str | None = None
        if not servers:
            embedded = await _join(Path(environment.data_dir), loaded.config.log.sync, stack)
            servers, token = [embedded.url], embedded.token

        async def open_store() -> EventStore:
            return await connect(
                servers,
                master_key=secrets.token_bytes(KEY_BYTES),  # no seal is opened here
                name=PROCESS,
                prefix=loaded.config.log.prefix,
                token=token,
                credentials=environment.nats_creds or None,
            )

        store = await open_store()
        stack.push_async_callback(store.close)
        yield LogAccess(store, open_store)


async def _join(data_dir: Path, sync: str, stack: AsyncExitStack) -> EmbeddedServer:
    if not (data_dir / "nats").is_dir():
        raise BadInvocation(
            f"{data_dir} holds no log: set LOOMCYCLE_DATA_DIR to a server's data directory,"
            " or LOOMCYCLE_NATS_URL to its NATS server"
        )
    embedded = await EmbeddedServer.start(data_dir, sync=sync)
    stack.push_async_callback(embedded.stop)
    watch = asyncio.create_task(embedded.watch())  # its owner may end before we do
    stack.callback(watch.cancel)
    return embedded


def run_with_log(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` where the log's errors end the command. Raises CommandFailed."""
    try:
        return asyncio.run(work)
    except (EmbeddedServerError, LogError, JournalError) as error:
        raise CommandFailed(str(error)) from None


def tenants_named(tenant: str) -> tuple[str, ...]:
    """Where the log may hold the runs of what an operator calls ``tenant``.

    A server without tokens calls the tenant of its callers ``default``, as one with a token does,
    but stores their runs under the tenant they give, "" as a rule (auth.md section 11).
    """
    return (OPEN.tenant, "") if tenant == OPEN.tenant else (tenant,)


async def tenant_of(store: EventStore, run_id: str, named: str | None = None) -> str:
    """The tenant a run belongs to, among those ``named`` if given. Raises BadInvocation."""
    if named is not None:
        for tenant in tenants_named(named):
            if await store.log.last(store.subjects.journal(tenant, run_id)) is not None:
                return tenant
        raise BadInvocation(f'tenant "{named}" has no run "{run_id}"')
    found = await store.log.read(store.subjects.journals(run_id), limit=1)
    if not found:
        raise BadInvocation(f'the log holds no run "{run_id}"')
    told = tenant_in(store, found[0], await whole_commit(store, found[0]))
    if told is None:
        text = f'the log does not tell the tenant of run "{run_id}": name it with --tenant'
        raise BadInvocation(text)
    return told


def tenant_in(store: EventStore, message: Message, commit: Commit | None = None) -> str | None:
    """The tenant of a journal's ``message``; None where only the hash of a long name is known.

    Only a first commit tells a long name; ``commit`` is what ``message`` holds, if at hand.
    Raises JournalError.
    """
    tenant = store.subjects.parse(message.subject).tenant
    if len(tenant) <= MAX_NAME_BYTES:
        return tenant
    started = opening(commit or decode(message.data, message.seq))
    return started.tenant if started is not None else None
