"""Proofs of a whole log: one journal that cannot be read is one line, not the end."""

from __future__ import annotations

import pytest
import pytest_asyncio

from events import vocabulary as v
from events.log import EventStore
from events.memory_store import MemoryServer
from loomcycle.cli.progress import Bar
from loomcycle.cli.proofs import Tally, prove_journals
from tests.integration.journals import Journal, opening

LONG = "acme-" * 20
RUN = "r_00000000000000a1"
OTHER = "r_ff000000000000b2"


@pytest_asyncio.fixture
async def store() -> EventStore:
    return MemoryServer().connect("proofs")


async def tally_of(store: EventStore) -> Tally:
    tally = Tally()
    with Bar("") as bar:
        await prove_journals(store, tally, bar)
    return tally


async def withdrawn(store: EventStore, run: str, tenant: str) -> None:
    journal = Journal(run, tenant)
    await journal.append(store.log, store.subjects, v.RunWithdrawn(reason="queue timeout"))


async def test_a_withdrawn_start_is_proven_whatever_its_tenant_is_called(
    store: EventStore,
) -> None:
    await withdrawn(store, RUN, LONG)
    await withdrawn(store, OTHER, "")
    tally = await tally_of(store)
    assert (tally.runs, tally.refuted) == (2, [])


@pytest.mark.parametrize("tenant", ["", LONG], ids=["short", "long"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"no commit"])
async def test_a_journal_that_cannot_be_read_is_refuted_and_the_others_are_looked_at(
    store: EventStore, tenant: str, damage: bytes
) -> None:
    await store.log.append(store.subjects.journal(tenant, RUN), damage)
    await withdrawn(store, OTHER, "")
    tally = await tally_of(store)
    assert [report.run for report in tally.refuted] == [RUN]
    assert tally.summary().startswith("1 of 2 runs proven")


async def test_a_missing_plan_is_told(store: EventStore) -> None:
    journal = Journal(RUN, LONG)
    await journal.append(store.log, store.subjects, *opening(RUN, tenant=LONG))
    (refuted,) = (await tally_of(store)).refuted
    assert refuted.difference == f"plan {'f' * 64} is missing"
