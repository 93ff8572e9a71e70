"""Connects one process to a NATS server and hands out everything of ``events/log.py``."""

from __future__ import annotations

import asyncio
import ssl

from events.blobs import ChunkedBlobs
from events.log import EventStore
from events.nats_leases import NatsLeases
from events.nats_link import REQUEST_TIMEOUT_S, open_link
from events.nats_live import NatsLive
from events.nats_log import NatsLog
from events.nats_provision import Provision
from events.nats_queue import NatsStartQueue, NatsWakeQueue
from events.nats_timers import NatsTimers
from events.seals import LogSeals, Sealer
from events.streams import ACK_WAIT_S
from events.subjects import Subjects


async def connect(
    servers: str | list[str],
    *,
    master_key: bytes,
    name: str,
    prefix: str = "loom",
    replicas: int = 1,
    ack_wait_s: float = ACK_WAIT_S,
    timeout_s: float = REQUEST_TIMEOUT_S,
    connect_timeout_s: float = 5.0,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> EventStore:
    """Connect, create missing streams and return the store.

    ``name`` shows in the server's monitoring; ``credentials`` is a path of a NATS creds file;
    ``replicas`` applies to streams created here; ``ack_wait_s`` must be the same in all processes
    of a deployment; ``master_key`` has 32 bytes. Raises
    LogUnavailable, and SealError for a malformed key.
    """
    sealer = Sealer(master_key)
    subjects = Subjects(prefix)
    link = await open_link(
        servers,
        name=name,
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        user=user,
        password=password,
        token=token,
        credentials=credentials,
        tls=tls,
    )
    provision = Provision(link, prefix, replicas, ack_wait_s)
    try:
        await provision.ensure()
    except BaseException:
        await asyncio.shield(link.close())
        raise
    log = NatsLog(link, subjects)

    async def close() -> None:
        await provision.close()
        await link.close()

    return EventStore(
        subjects=subjects,
        log=log,
        starts=NatsStartQueue(link, subjects, provision),
        wakes=NatsWakeQueue(link, subjects, provision),
        leases=NatsLeases(link, subjects, log),
        blobs=ChunkedBlobs(log, subjects),
        seals=LogSeals(log, subjects, sealer),
        timers=NatsTimers(link, subjects, provision),
        live=NatsLive(link, subjects),
        close=close,
        connected=lambda: bool(link.is_connected),
    )
