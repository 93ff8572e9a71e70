"""Moves journals between a log and a golden file, byte for byte, sequences included."""

from __future__ import annotations

from events.commit import decode
from events.log import EventStore
from events.memory_store import MemoryServer
from events.vocabulary import RunRef
from loomcycle.loading import opening, whole_commit
from tests.golden.format import Golden, StoredCommit


async def store_of(golden: Golden) -> EventStore:
    """A log in memory that holds what the file holds, at the sequences it had."""
    server = MemoryServer()
    store = server.connect("golden")
    for content in golden.blobs.values():
        await store.blobs.put(content)
    for commit in golden.commits:
        subject = store.subjects.journal(commit.tenant, commit.run)
        server.stream_of(subject).last_seq = commit.seq - 1
        assert await store.log.append(subject, commit.data.encode()) == commit.seq
    return store


async def taken_from(
    store: EventStore, tenant: str, run: str
) -> tuple[dict[str, bytes], list[StoredCommit]]:
    """Blobs and commits of ``run`` and of all runs before it in its session, oldest first."""
    blobs: dict[str, bytes] = {}
    journals: list[list[StoredCommit]] = []
    ref: RunRef | None = RunRef(run, 0)
    while ref is not None:
        messages = await store.log.read(store.subjects.journal(tenant, ref.run))
        journals.append([StoredCommit(ref.run, tenant, m.seq, m.data.decode()) for m in messages])
        for message in messages:
            for name in decode(message.data, message.seq).blobs():
                blobs[name] = await store.blobs.get(name)
        started = opening(await whole_commit(store, messages[0]))
        if started is None:
            break
        blobs[started.plan] = await store.blobs.get(started.plan)
        ref = started.previous
    return blobs, [commit for journal in reversed(journals) for commit in journal]
