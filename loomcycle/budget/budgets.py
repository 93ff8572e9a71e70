"""Reservations of model calls on the ledger of their tree of runs, by compare-and-set.

Everything a run has spent follows from its journal; the ledger is how runs of a tree on several
replicas see each other's. A call whose reservation is refused is never made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

import msgspec
from msgspec import Struct

from events import budget
from events.budget import Amount, BudgetEvent, BudgetReserved, BudgetSettled
from events.log import EventStore, LogUnavailable, OutcomeUnknown, WrongSequence
from events.plan import Budget
from events.vocabulary import RunStarted
from loomcycle.admission import terminal
from loomcycle.budget.ledger import NOTHING, Ledger, refusal
from loomcycle.budget.prices import Prices, Unpriced
from loomcycle.journal import pause
from loomcycle.loading import Plans, load, opening, whole_commit
from replay.conversation import ModelRequest
from replay.state import State

log = logging.getLogger("loomcycle.budget")

KEPT = 1024
"""Trees whose limits and ledgers this process remembers."""

UNLIMITED = Budget()


class Refusal(Struct, frozen=True):
    """The call must not be made."""

    reason: str


class _Book:
    """A tree's ledger as far as this process has read it. ``lock``: one writer at a time."""

    def __init__(self, root: str, limit: Budget, subject: str) -> None:
        self.root, self.limit, self.subject = root, limit, subject
        self.ledger = Ledger()
        self.lock = asyncio.Lock()


class Budgets:
    """Budgets of all runs that this process advances."""

    def __init__(self, store: EventStore, plans: Plans, prices: Prices) -> None:
        self._store = store
        self._plans = plans
        self._prices = prices
        self._books: OrderedDict[tuple[str, str], _Book | None] = OrderedDict()

    @staticmethod
    def concerns(state: State) -> bool:
        """Whether the run may have a budget, its own or that of a run above."""
        return state.plan.budget is not None or bool(state.started.root)

    async def reserve(self, state: State, request: ModelRequest) -> Refusal | None:
        """Reserve what ``request`` may cost. Raises LogError.

        What the journal holds is settled with it; an earlier reservation of the run, be it a
        dead worker's, is replaced. A child's own budget bounds its own calls only.
        """
        if not self.concerns(state):
            return None
        own, book = _limited(state.plan.budget), await self._book(state)
        try:
            if own is not None and (book is None or book.root != state.run):
                reason = refusal(own, Ledger(), state.run, *self._bounds(state, request, own))
                if reason:
                    return Refusal(reason)
            if book is None:
                return None
            spent, wanted = self._bounds(state, request, book.limit)
        except Unpriced as cause:
            return Refusal(str(cause))
        event = BudgetReserved(
            run=state.run,
            key=f"{state.run}.{state.iteration}.{state.attempt}.{state.n}",
            epoch=state.epoch,
            spent=spent,
            amount=wanted,
        )
        reason = await self._write(
            state,
            book,
            event,
            lambda: refusal(book.limit, book.ledger, state.run, spent, wanted),
        )
        return Refusal(reason) if reason else None

    async def settle(self, state: State) -> None:
        """Put what the run has spent, staged events included, in place of its reservation."""
        book = await self._book(state) if self.concerns(state) else None
        if book is not None:
            await self._settle(state, book)

    async def ended(self, state: State) -> None:
        """Settle a run that makes no more calls, whoever made its last one."""
        book = await self._book(state) if self.concerns(state) else None
        if book is None:
            return
        async with book.lock:
            await self._catch_up(book)
        await self._settle(state, book)

    async def spent(self, state: State) -> Amount:
        """What the whole tree of the run has spent by now, as the log has it."""
        book = await self._book(state) if self.concerns(state) else None
        if book is None:
            return NOTHING
        async with book.lock:
            await self._catch_up(book)
            return book.ledger.spent

    # --- limits ---------------------------------------------------------------------------

    def _bounds(self, state: State, request: ModelRequest, limit: Budget) -> tuple[Amount, Amount]:
        """(spent, wanted) as far as ``limit`` counts them. Raises Unpriced."""
        money = limit.cost_micros is not None
        spent = self._prices.spent(state.spend, money=money)
        return spent, self._prices.bound(request, money=money)

    async def _book(self, state: State) -> _Book | None:
        """The ledger of the run's tree; None when the run at its top has no budget."""
        facts = state.started
        root = facts.root or facts.run
        key = (facts.tenant, root)
        if key in self._books:
            self._books.move_to_end(key)
            return self._books[key]
        given = state.plan.budget if root == facts.run else await self._budget_of(*key)
        limit = _limited(given)
        subject = self._store.subjects.state("budget", *key)
        book = _Book(root, limit, subject) if limit is not None else None
        self._books.setdefault(key, book)
        while len(self._books) > KEPT:
            self._books.popitem(last=False)
        return self._books[key]

    async def _budget_of(self, tenant: str, run_id: str) -> Budget | None:
        store = self._store
        for attempt in count():
            try:
                first = await store.log.first(store.subjects.journal(tenant, run_id))
                break
            except (LogUnavailable, OutcomeUnknown):
                await pause(attempt)
        if first is None:
            return None
        started = opening(await whole_commit(store, first))
        if not isinstance(started, RunStarted):
            return None
        return (await self._plans.get(started.plan)).budget

    # --- the ledger -----------------------------------------------------------------------

    async def _settle(self, state: State, book: _Book) -> None:
        spent = self._spent_if_priced(state, book.limit)
        entry = book.ledger.entries.get(state.run)
        if entry is None and spent == NOTHING:
            return
        if entry is not None and entry.reserved == NOTHING and entry.spent == spent:
            return
        event = BudgetSettled(run=state.run, epoch=state.epoch, spent=spent)
        await self._write(state, book, event, lambda: "")

    def _spent_if_priced(self, state: State, limit: Budget) -> Amount:
        """A price that went from the table costs nothing more: the calls were made under it."""
        try:
            return self._prices.spent(state.spend, money=limit.cost_micros is not None)
        except Unpriced as cause:
            log.warning("%s is settled in tokens only: %s", state.run, cause)
            return self._prices.spent(state.spend, money=False)

    async def _write(
        self, state: State, book: _Book, event: BudgetEvent, decide: Callable[[], str]
    ) -> str:
        """Append ``event`` behind all that is known, unless ``decide`` has a reason not to."""
        ledger, data = book.ledger, budget.encode(event)
        async with book.lock:
            fresh = healed = False
            for attempt in count():
                reason = decide()
                if reason:
                    if not fresh:
                        await self._catch_up(book)
                        fresh = True
                        continue
                    if not healed:
                        healed = True
                        if await self._release_ended(state, book):
                            continue
                    return reason
                try:
                    seq = await self._store.log.append(book.subject, data, after=ledger.seq)
                except LogUnavailable:
                    await pause(attempt)
                except (WrongSequence, OutcomeUnknown):
                    if await self._catch_up(book, data):
                        return ""
                    fresh = True
                else:
                    ledger.apply(seq, event)
                    return ""
        raise AssertionError("unreachable")

    async def _catch_up(self, book: _Book, mine: bytes = b"") -> bool:
        """Fold what the log holds by now (leader); whether ``mine`` was among it."""
        ledger, found = book.ledger, False
        for attempt in count():
            try:
                last = await self._store.log.last(book.subject)
                end = last.seq if last is not None else 0
                for message in await self._store.log.read(book.subject, after=ledger.seq):
                    found = found or message.data == mine
                    self._fold(ledger, message.seq, message.data)
                if ledger.seq >= end:
                    return found
            except (LogUnavailable, OutcomeUnknown):
                pass
            await pause(attempt)
        raise AssertionError("unreachable")

    @staticmethod
    def _fold(ledger: Ledger, seq: int, data: bytes) -> None:
        try:
            ledger.apply(seq, budget.decode(data))
        except msgspec.DecodeError as cause:
            log.error("budget message %d is skipped: %s", seq, cause)
            ledger.seq = seq

    async def _release_ended(self, state: State, book: _Book) -> bool:
        """Settle runs that ended while their reservation stood; whether there were any.

        Their last worker died between the run's end and its settlement.
        """
        store, tenant, released = self._store, state.started.tenant, False
        for run_id in book.ledger.reserving(state.run):
            last = await store.log.last(store.subjects.journal(tenant, run_id))
            if last is None or not terminal(last.data):
                continue
            loaded = await load(store, self._plans, tenant, run_id)
            if loaded is None:
                continue
            spent = self._spent_if_priced(loaded.state, book.limit)
            event = BudgetSettled(run=run_id, epoch=loaded.state.epoch, spent=spent)
            with contextlib.suppress(WrongSequence, OutcomeUnknown, LogUnavailable):
                await store.log.append(book.subject, budget.encode(event), after=book.ledger.seq)
            released = True
            await self._catch_up(book)
        return released


def _limited(given: Budget | None) -> Budget | None:
    """``given`` when it limits anything."""
    return given if given is not None and given != UNLIMITED else None
