"""The journals of a log, proven one by one: what ``replay.verify`` says of each.

Every server that a test ran is asked for this at its end (``tests/wire/gateway.py``).
"""

from __future__ import annotations

from events.log import EventStore
from loomcycle.loading import NO_PLAN, Plans, opening, read_commits, session_history
from projections.sources import sources_of
from replay.verify import Report, verify


async def proofs(store: EventStore) -> list[Report]:
    """A report for every journal in ``store``."""
    plans = Plans(store)
    return [await prove(store, plans, tenant, run) for tenant, run in await runs_in(store)]


async def prove(store: EventStore, plans: Plans, tenant: str, run: str) -> Report:
    """Verify one journal against its plan and the earlier runs of its session."""
    commits = await read_commits(store, tenant, run)
    started = opening(commits[0])
    if started is None:
        return verify(NO_PLAN, commits)
    history = []
    if started.continues and started.previous is not None:
        history = await session_history(store, plans, tenant, started.previous)
    return verify(await plans.get(started.plan), commits, history)


async def runs_in(store: EventStore) -> list[tuple[str, str]]:
    """(tenant, run id) of every journal."""
    found: dict[tuple[str, str], None] = {}
    for source in sources_of(store.subjects):
        end = await source.last_stored(store.log)
        if source.kind != "runs" or end < source.first:
            continue
        async for batch in store.log.tail(source.stream, after=source.first - 1):
            for message in batch:
                place = store.subjects.parse(message.subject)
                if place.kind == "journal":
                    found[place.tenant, place.run_id] = None
            if batch[-1].seq >= end:
                break
    return list(found)
