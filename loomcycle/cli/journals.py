"""Reads journals straight from the log, in order, to its end or for ever, and prints them.

The chain of each run is checked on the way; a break ends the command and is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

import click

from events.commit import Chain, JournalError
from events.ids import first_run_of
from events.log import EventStore, Message
from events.subjects import encode, name_or_hash
from loomcycle.cli.access import open_log, tenant_in, tenant_of, tenants_named
from loomcycle.cli.errors import BadInvocation
from loomcycle.cli.event_lines import as_json_line, as_text_line
from loomcycle.config.loaded import LoadedConfig
from loomcycle.loading import whole_commit
from loomcycle.session_lock import run_of
from projections.sources import Source, sources_of

Wanted = Callable[[Message], bool]

TERMINAL = "run.finished"

TENANTS_SHOWN = 10
"""So many are named where the one asked for has no runs."""


async def show_run(
    loaded: LoadedConfig, run_id: str, tenant: str | None, *, follow: bool, as_json: bool
) -> None:
    """Print one journal; following ends with the run. Raises BadInvocation, JournalError."""
    async with open_log(loaded) as access:
        store = access.store
        known = await tenant_of(store, run_id, tenant)
        subject = store.subjects.journal(known, run_id)
        printer = Printer(store, as_json=as_json, with_run=False)
        stored = await store.log.read(subject)
        for message in stored:
            await printer.show(message)
        if not follow or run_id in printer.finished:
            return
        stream = [_source_of(store, run_id)]
        async with aclosing(
            _live(store, stream, {stream[0].stream: stored[-1].seq}, lambda m: m.subject == subject)
        ) as messages:
            async for message in messages:
                await printer.show(message)
                if run_id in printer.finished:
                    return


async def show_session(
    loaded: LoadedConfig, session_id: str, *, follow: bool, as_json: bool
) -> None:
    """Print the journals of a session's runs. Raises BadInvocation, JournalError."""
    async with open_log(loaded) as access:
        store = access.store
        try:
            tenant = await tenant_of(store, first_run_of(session_id))
        except BadInvocation:
            raise BadInvocation(f'the log holds no session "{session_id}"') from None
        entries = store.subjects.session(tenant, session_id)
        runs = {store.subjects.journal(tenant, first_run_of(session_id))}

        def wanted(message: Message) -> bool:
            if message.subject == entries:
                run_id = run_of(message.data)
                if run_id:
                    runs.add(store.subjects.journal(tenant, run_id))
            return message.subject in runs

        for entry in await store.log.read(entries):
            wanted(entry)
        stored = [m for subject in runs for m in await store.log.read(subject)]
        stored.sort(key=lambda m: m.seq)
        printer = Printer(store, as_json=as_json, with_run=True)
        for message in stored:
            await printer.show(message)
        if follow:
            source = _source_of(store, session_id)
            last = stored[-1].seq if stored else source.first - 1
            await printer.show_all(_live(store, [source], {source.stream: last}, wanted))


async def show_tenant(loaded: LoadedConfig, tenant: str, *, follow: bool, as_json: bool) -> None:
    """Print the journals of a tenant's runs, ordered by time. Raises JournalError.

    Where there are none it says so, and whose runs there are.
    """
    async with open_log(loaded) as access:
        store = access.store
        sources = [s for s in sources_of(store.subjects) if s.kind == "runs"]
        meant = {name_or_hash(encode(name)) for name in tenants_named(tenant)}
        found: dict[str, str | None] = {}

        def wanted(message: Message) -> bool:
            place = store.subjects.parse(message.subject)
            if place.kind != "journal":
                return False
            if found.get(place.tenant) is None:
                found[place.tenant] = _tenant_told(store, message)
            return place.tenant in meant

        ends = await asyncio.gather(*(source.last_stored(store.log) for source in sources))
        printer = Printer(store, as_json=as_json, with_run=True)
        await printer.show_all(_stored(store, sources, ends, wanted))
        if meant.isdisjoint(found):
            click.echo(_nothing_of(tenant, list(found.values())), err=True)
        if follow:
            after = {s.stream: end for s, end in zip(sources, ends, strict=True)}
            await printer.show_all(_live(store, sources, after, wanted))


def _tenant_told(store: EventStore, message: Message) -> str | None:
    """The tenant's name, None where the commit does not tell it."""
    try:
        return tenant_in(store, message)
    except JournalError:
        return None


def _nothing_of(tenant: str, others: Sequence[str | None]) -> str:
    """``others``: None is a tenant whose name is not known."""
    text = f'loomcycle: the log holds no run of tenant "{tenant}"'
    if not others:
        return f"{text}, nor of any other"
    named = sorted(name for name in others if name is not None)
    shown = ", ".join(f'"{name}"' for name in named[:TENANTS_SHOWN])
    rest = len(others) - len(named[:TENANTS_SHOWN])
    if not shown:
        return f"{text}, but of {rest} whose names it does not tell"
    return f"{text}, but of {shown}" + (f" and {rest} more" if rest else "")


class Printer:
    """Prints the events of commits; ``finished`` are the runs whose terminal event was seen."""

    def __init__(self, store: EventStore, *, as_json: bool, with_run: bool) -> None:
        self.finished: set[str] = set()
        self._store = store
        self._as_json = as_json
        self._with_run = with_run
        self._chains: dict[str, Chain] = {}
        self._tenants: dict[str, str | None] = {}

    async def show_all(self, messages: AsyncGenerator[Message, None]) -> None:
        async with aclosing(messages):
            async for message in messages:
                await self.show(message)

    async def show(self, message: Message) -> None:
        """Print one stored commit. Raises JournalError where the chain breaks."""
        commit = await whole_commit(self._store, message)
        self._chains.setdefault(commit.run, Chain(commit.run)).check(commit)
        if commit.c == 1:
            self._tenants[commit.run] = tenant_in(self._store, message, commit)
        tenant = self._tenants[commit.run]
        for record in commit.records():
            if self._as_json:
                click.echo(as_json_line(tenant, record))
            else:
                click.echo(as_text_line(record, with_run=self._with_run))
            if record.type == TERMINAL:
                self.finished.add(commit.run)


def _source_of(store: EventStore, run_or_session_id: str) -> Source:
    """The stream of a run: the one that covers ``<prefix>.run.<slot>.>``."""
    prefix, family, slot, *_ = store.subjects.journal("", run_or_session_id).split(".")
    root = f"{prefix}.{family}.{slot}.>"
    return next(source for source in sources_of(store.subjects) if root in source.roots)


async def _stored(
    store: EventStore, sources: Sequence[Source], ends: Sequence[int], wanted: Wanted
) -> AsyncGenerator[Message, None]:
    """What the streams hold up to ``ends``, merged by time."""
    heads: list[tuple[int, int, Message]] = []
    async with contextlib.AsyncExitStack() as stack:
        streams: list[AsyncIterator[Message]] = []
        for source, end in zip(sources, ends, strict=True):
            parts = _up_to(store, source, end, wanted)
            streams.append(await stack.enter_async_context(aclosing(parts)))
        for index, stream in enumerate(streams):
            first = await anext(stream, None)
            if first is not None:
                heads.append((first.time_ns, index, first))
        heapq.heapify(heads)
        while heads:
            _, index, message = heads[0]
            yield message
            following = await anext(streams[index], None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.time_ns, index, following))


async def _up_to(
    store: EventStore, source: Source, end: int, wanted: Wanted
) -> AsyncGenerator[Message, None]:
    if end < source.first:
        return
    async for batch in store.log.tail(source.stream, after=source.first - 1):
        for message in batch:
            if message.seq <= end and wanted(message):
                yield message
        if batch[-1].seq >= end:
            return


async def _live(
    store: EventStore, sources: Sequence[Source], after: dict[str, int], wanted: Wanted
) -> AsyncGenerator[Message, None]:
    """What is appended from now on, as it arrives; never ends."""
    arrived: asyncio.Queue[Message] = asyncio.Queue(maxsize=1000)

    async def feed(source: Source) -> None:
        async for batch in store.log.tail(source.stream, after=after[source.stream]):
            for message in batch:
                if wanted(message):
                    await arrived.put(message)

    tasks = [asyncio.create_task(feed(source)) for source in sources]
    try:
        while True:
            yield await arrived.get()
    finally:
        for task in tasks:
            task.cancel()
