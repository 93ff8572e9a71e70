"""Proofs of runs as stored: reads journals, plans and earlier runs, and prints each verdict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import click
from msgspec import MsgspecError

from events.commit import JournalError
from events.log import EventStore
from events.vocabulary import RunStarted
from loomcycle.cli.access import open_log, tenant_of
from loomcycle.cli.progress import Bar
from loomcycle.config.loaded import LoadedConfig
from loomcycle.loading import NO_PLAN, Plans, opening, session_history, whole_commit
from loomcycle.stores import view_settings
from projections.framework import ViewUnavailable
from projections.queries import Queries
from projections.rows import Witness
from projections.sources import sources_of
from projections.views import PROJECTIONS, backend_of
from replay.conversation import Message
from replay.verify import Report
from replay.verify import verify as verify_journal


async def prove_one(loaded: LoadedConfig, run_id: str, tenant: str | None) -> bool:
    """Prove one run and print the verdict. Raises BadInvocation for an unknown run."""
    async with open_log(loaded) as access:
        store = access.store
        known = await tenant_of(store, run_id, tenant)
        with Bar(f"replaying {run_id}") as bar:
            journal = store.subjects.journal(known, run_id)
            report = await prove(store, Plans(store), journal, run_id, bar)
        click.echo(verdict(report))
        return report.ok


async def prove_all(loaded: LoadedConfig) -> bool:
    """Prove every run of the log; print each that is not proven, and the sum."""
    tally = Tally()
    async with open_log(loaded) as access:
        with Bar("replaying runs") as bar:
            await prove_journals(access.store, tally, bar)
        for witness in await _witnesses(loaded):
            if tally.stored.get(witness.run_id, 0) < witness.last_commit and await _misses(
                access.store, witness
            ):
                tally.add(_unreadable(witness.run_id, _lost(witness)))
    for report in tally.refuted:
        click.echo(verdict(report))
    click.echo(tally.summary())
    return not tally.refuted


async def prove_journals(store: EventStore, tally: Tally, bar: Bar) -> None:
    """Add every journal of ``store`` to ``tally``."""
    plans = Plans(store)
    journals = await all_journals(store)
    for done, (journal, run_id) in enumerate(journals.items(), 1):
        tally.add(await prove(store, plans, journal, run_id))
        bar.at(done, len(journals))


async def _witnesses(loaded: LoadedConfig) -> list[Witness]:
    """What the views saw: a chain alone cannot show that its last commits are gone."""
    backend = backend_of(view_settings(loaded))()
    reader = backend.reader()
    try:
        return await Queries(reader, PROJECTIONS, backend.dialect).witnesses()
    except ViewUnavailable as cause:
        click.echo(f"lost ends of journals are not looked for: {cause}", err=True)
        return []
    finally:
        await reader.close()
        await backend.close()


async def _misses(store: EventStore, witness: Witness) -> bool:
    """Whether the journal still lacks the commit, now that the views were read."""
    journal = store.subjects.journal(witness.tenant, witness.run_id)
    return len(await store.log.read(journal)) < witness.last_commit


def _lost(witness: Witness) -> str:
    return (
        f"journal of {witness.run_id}: commit {witness.last_commit} (sequence"
        f" {witness.last_seq}) is missing: the views have seen it"
    )


async def prove(
    store: EventStore, plans: Plans, journal: str, run_id: str, bar: Bar | None = None
) -> Report:
    """Read one run and verify it, off the event loop. A journal that cannot be read is refuted.

    ``journal`` is its subject; the tenant is the one that the run itself names, for a subject
    may hold no more than the hash of it.
    """
    try:
        commits = [await whole_commit(store, stored) for stored in await store.log.read(journal)]
        if not commits:
            return _unreadable(run_id, f"journal of {run_id}: it holds no commits any more")
        started = opening(commits[0])
        plan = await plans.get(started.plan) if started is not None else NO_PLAN
        history = await _history(store, plans, started)
    except (JournalError, MsgspecError) as error:
        return _unreadable(run_id, str(error))
    except KeyError as missing:
        return _unreadable(run_id, f"plan {missing.args[0]} is missing")

    def progress(done: int) -> None:
        if bar is not None:
            bar.at(done, len(commits))

    return await asyncio.to_thread(verify_journal, plan, commits, history, progress=progress)


async def _history(store: EventStore, plans: Plans, started: RunStarted | None) -> list[Message]:
    if started is None or not started.continues or started.previous is None:
        return []
    return await session_history(store, plans, started.tenant, started.previous)


def _unreadable(run_id: str, difference: str) -> Report:
    return Report(run=run_id, commits=0, events=0, effects=0, complete=False, difference=difference)


async def all_journals(store: EventStore) -> dict[str, str]:
    """Subject -> run id of every journal, in the order they began within each stream."""
    found: dict[str, str] = {}
    for source in sources_of(store.subjects):
        end = await source.last_stored(store.log)
        if source.kind != "runs" or end < source.first:
            continue
        async for batch in store.log.tail(source.stream, after=source.first - 1):
            for message in batch:
                place = store.subjects.parse(message.subject)
                if place.kind == "journal":
                    found[message.subject] = place.run_id
            if batch[-1].seq >= end:
                break
    return found


def verdict(report: Report) -> str:
    """One line about one journal."""
    if not report.ok:
        return f"{report.run}: NOT proven after {report.commits} commit(s): {report.difference}"
    unfinished = "" if report.complete else "; the run has not ended yet"
    return (
        f"{report.run}: proven: {report.commits} commits, {report.events} events,"
        f" {report.effects} effects derived again and equal{unfinished}"
    )


@dataclass
class Tally:
    """Reports added up; ``stored`` is how many commits of each run were read and proven."""

    runs: int = 0
    commits: int = 0
    events: int = 0
    effects: int = 0
    unfinished: int = 0
    refuted: list[Report] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)

    def add(self, report: Report) -> None:
        self.runs += 1
        self.stored[report.run] = report.commits
        self.commits += report.commits
        self.events += report.events
        self.effects += report.effects
        self.unfinished += report.ok and not report.complete
        if not report.ok:
            self.refuted.append(report)

    def summary(self) -> str:
        proven = self.runs - len(self.refuted)
        return (
            f"{proven} of {self.runs} runs proven ({self.unfinished} of them not ended yet):"
            f" {self.commits} commits, {self.events} events, {self.effects} effects"
        )
