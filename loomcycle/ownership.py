"""How a process comes to own a run: by its first commit, or by taking over what another left.

Owning is nothing but having made the journal's last commit; a claim is the commit that says so
(kernel.md section 2). What the owner does with the run is ``loomcycle/activation.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from events.commit import BrokenChain, CommitHeader, FutureEvent, JournalError
from events.vocabulary import (
    Error,
    Event,
    RunClaimed,
    RunFinished,
    RunParked,
    RunStarted,
    RunWithdrawn,
    Started,
)
from loomcycle.admission import SESSION_DAMAGED, Admission, Refused
from loomcycle.cluster import Cluster
from loomcycle.journal import Fenced, RunJournal
from loomcycle.loading import load, session_history
from loomcycle.masking import RunMasker, decode_credentials
from loomcycle.parents import tell_parent
from loomcycle.services import Services
from loomcycle.starts import Start
from loomcycle.taking import concerns
from loomcycle.wakes import Wake
from replay.state import Phase, State

CREDENTIALS = "credentials"
"""Name of the seal that holds a run's bearer and credentials."""


EARLY_NS = 1_000_000_000
"""So long before its time a run is taken up: another clock said so, and what is left is waited for
(``activation.HOT_S``)."""


WARM = 64
WARM_BYTES = 8 * 1024 * 1024
WARM_NS = 60_000_000_000
"""Runs that parked here lately are kept in memory, so many and of so many bytes together; all
others are read from the log again."""

BYTES_A_TOKEN = 4
"""For the size of a conversation whose journal does not hold the runs before it."""


class Owned(NamedTuple):
    """``resumed_n``: the last event that others wrote. ``unparked``: the run was let go before;
    its claim is staged, not committed. ``timed``: a timer was set for it then."""

    journal: RunJournal
    resumed_n: int
    unparked: bool
    timed: bool


class _Warm(NamedTuple):
    """``size`` in bytes."""

    journal: RunJournal
    size: int
    since_ns: int


class Ownership:
    """Opens and takes over runs for the process of ``services``."""

    def __init__(self, services: Services, cluster: Cluster, admission: Admission) -> None:
        self._services = services
        self._cluster = cluster
        self._admission = admission
        self._warm: OrderedDict[str, _Warm] = OrderedDict()

    async def begin(self, start: Start, in_vain: Callable[[], bool]) -> RunJournal | None:
        """Make the first commit: from here on the run is a promise. None: it was refused.

        ``in_vain``: whether its caller was told by now that it will not run. Raises LogError
        then, when the log is away; Fenced, JournalError.
        """
        services = self._services
        item, events = start
        facts = events[0]
        assert isinstance(facts, RunStarted)
        history, damage = [], ""
        if facts.continues and facts.previous is not None:
            try:
                history = await session_history(
                    services.store, services.plans, item.tenant, facts.previous
                )
            except FutureEvent:
                raise
            except JournalError as cause:
                damage = f"{SESSION_DAMAGED}: {cause}"
        state = State(await services.plans.get(facts.plan), history)
        masker = await self._masker(item.run, facts.sealed)
        journal = self._journal(item.tenant, item.run, state, masker)
        journal.in_vain = in_vain
        with self._opened(item.run, remote=item.gateway != services.process):
            try:
                if damage:
                    raise Refused(damage, RunWithdrawn(reason=damage))
                await self._admission.admit(item, writer=services.process, ts=services.now_ns())
            except Refused as refusal:
                await self._refuse(journal, events, refusal)
                return None
            for event in events:
                journal.stage(event)
            journal.stage(Started())
            await journal.commit()
        return journal

    async def begin_child(
        self, opening: list[Event], credentials: Mapping[str, str]
    ) -> RunJournal | None:
        """Make the first commit of a child; it passes no admission. None: it has one already."""
        services = self._services
        facts = opening[0]
        assert isinstance(facts, RunStarted)
        state = State(await services.plans.get(facts.plan))
        redaction = services.redaction
        masker = redaction.for_run(credentials) if redaction is not None else None
        journal = self._journal(facts.tenant, facts.run, state, masker)
        try:
            with self._opened(facts.run, remote=False):
                for event in (*opening, Started()):
                    journal.stage(event)
                await journal.commit()
        except Fenced:
            return None
        return journal

    @contextmanager
    def _opened(self, run_id: str, *, remote: bool) -> Iterator[None]:
        """Tell readers that commits come from here; not any more when there is none."""
        live = self._services.live
        live.opened(run_id, remote=remote)
        try:
            yield
        except BaseException:
            live.closed(run_id)
            raise

    async def _refuse(self, journal: RunJournal, events: list[Event], refusal: Refused) -> None:
        """Record that an accepted-looking start may not run, where its client sees it.

        What it would have said is no part of its session: its caller was refused.
        """
        if refusal.tombstone is not None:
            journal.stage(refusal.tombstone)
        else:
            journal.stage(events[0])
            journal.stage(Started())
            journal.stage(Error(error=refusal.error))
            journal.stage(RunFinished(status="failed", error=refusal.error))
        await journal.commit()
        self._services.live.closed(journal.run_id)
        await self._services.store.seals.delete(journal.run_id)

    async def take_over(self, tenant: str, run_id: str, wake: Wake | None) -> Owned | None:
        """The run, claimed. None when there is nothing to continue: it ended, it waits for what
        has not come, or its owner lives and holds it. Raises Fenced, JournalError, LogError.
        """
        services = self._services
        wake = wake or Wake(tenant)
        journal = await self._read(tenant, run_id)
        if journal is None:
            return None
        state, parked = journal.state, journal.state.parked
        if state.commits < wake.seen[0]:
            raise BrokenChain(run_id, *wake.seen, "is missing: a view has seen it")
        if state.phase is Phase.FINISHED:
            await self.forget(state, run_id)
            return None
        if parked is None and await self._is_held(state.writer, wake.released_by):
            services.store.live.poke(run_id, b"inbox")
            return None
        await journal.read_inbox()
        if parked is not None and not wake.check and not self._is_due(parked, journal):
            self.keep(journal)
            return None
        resumed_n = state.n
        with self._opened(run_id, remote=not self._cluster.alone()):
            journal.stage(RunClaimed(worker=services.process))
            if parked is None:
                await journal.commit()
        timed = parked is not None and parked.until_ns > 0
        return Owned(journal, resumed_n, parked is not None, timed)

    def keep(self, journal: RunJournal) -> None:
        """Remember a run that parked here: soon continued, it need not be read again."""
        if journal.state.parked is not None and not journal.staged and not journal.plain:
            size = max(journal.size, BYTES_A_TOKEN * journal.state.used)
            if size > WARM_BYTES:
                return
            self._warm[journal.run_id] = _Warm(journal, size, self._services.now_ns())
            self.cool()

    def cool(self) -> None:
        """Forget the runs that were kept longest, where they are too many, too large, or old."""
        oldest_ns = self._services.now_ns() - WARM_NS
        size = sum(warm.size for warm in self._warm.values())
        while self._warm:
            first = next(iter(self._warm.values()))
            if len(self._warm) <= WARM and size <= WARM_BYTES and first.since_ns >= oldest_ns:
                return
            self._warm.popitem(last=False)
            size -= first.size

    async def _read(self, tenant: str, run_id: str) -> RunJournal | None:
        """The run as its journal tells; from memory where nobody committed since."""
        services = self._services
        warm = self._warm.pop(run_id, None)
        if warm is not None:
            journal = warm.journal
            last = await services.store.log.last(services.store.subjects.journal(tenant, run_id))
            if last is not None and last.seq == journal.journal_seq:
                journal.epoch = 0
                return journal
        loaded = await load(services.store, services.plans, tenant, run_id, secrets=True)
        if loaded is None:
            return None
        state, masker = loaded.state, None
        if state.phase is not Phase.FINISHED:
            masker = await self._masker(run_id, state.started.sealed)
        if masker is not None:
            masker.learn(loaded.plain.values())
        journal = self._journal(tenant, run_id, state, masker, loaded.journal_seq)
        journal.plain = loaded.plain
        journal.size = loaded.size
        return journal

    def _is_due(self, parked: RunParked, journal: RunJournal) -> bool:
        """Whether a parked run has something to do. (Its claim is committed with what it takes.)"""
        if parked.reason == "pause" and not self._services.paused():
            return True
        if 0 < parked.until_ns <= self._services.now_ns() + EARLY_NS:
            return True
        return concerns(journal.inbox, journal.state)

    async def _is_held(self, writer: str, released_by: str) -> bool:
        """Whether another process that lives wrote last, and did not let the run go."""
        if writer in (self._services.process, released_by):
            return False
        return not await self._cluster.is_gone(writer)

    async def forget(self, state: State, run_id: str) -> None:
        """Tell the parent of a run that ended, and destroy the run's secrets; repeated until its
        item can be acked."""
        budgets = self._services.budgets
        if budgets is not None and state.facts is not None and budgets.concerns(state):
            await budgets.ended(state)
        await tell_parent(self._services, state)
        if state.facts is None or state.facts.sealed or state.has_masks:
            await self._services.store.seals.delete(run_id)

    def _journal(
        self,
        tenant: str,
        run_id: str,
        state: State,
        masker: RunMasker | None,
        journal_seq: int = 0,
    ) -> RunJournal:
        services = self._services
        return RunJournal(
            services.store,
            state,
            tenant=tenant,
            run_id=run_id,
            worker=services.process,
            epoch=0,
            now_ns=services.now_ns,
            observer=_Publisher(partial(services.live.commit, run_id)),
            masker=masker,
            journal_seq=journal_seq,
        )

    async def _masker(self, run_id: str, sealed: tuple[str, ...]) -> RunMasker | None:
        services = self._services
        if services.redaction is None:
            return None
        credentials: dict[str, str] = {}
        if CREDENTIALS in sealed:
            credentials = decode_credentials(await services.store.seals.get(run_id, CREDENTIALS))
        return services.redaction.for_run(credentials)


class _Publisher:
    """Hands each stored commit of one run to its live readers."""

    __slots__ = ("committed",)

    def __init__(self, committed: Callable[[int, CommitHeader, list[Event], bytes], None]) -> None:
        self.committed = committed
