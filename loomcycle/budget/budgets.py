"""Reservations of model calls on the ledger of their tree of runs, by compare-and-set.

Everything a run has spent follows from its journal; the ledger is how runs of a tree on several
replicas see each other's. One serves all limits below the outermost, so that a call is decided
against all that bound it at once. A call whose reservation is refused is never made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import msgspec
from msgspec import Struct

from events import budget
from events.budget import Amount, BudgetEvent, BudgetReserved, BudgetSettled
from events.log import EventStore, LogUnavailable, OutcomeUnknown, WrongSequence
from loomcycle.admission import terminal
from loomcycle.budget.ledger import NOTHING, Ledger, Limit, refusal, room
from loomcycle.budget.limits import Limits
from loomcycle.budget.prices import ASSUMED_OUTPUT_TOKENS, Prices, Unpriced
from loomcycle.journal import pause
from loomcycle.loading import Plans, load
from replay.conversation import ModelRequest
from replay.state import State

log = logging.getLogger("loomcycle.budget")

KEPT = 1024
"""Ledgers that this process remembers."""

SHORTEST_ANSWER = 256
"""Tokens. For less than this, unless the agent wants no more, a budget is spent: an answer cut off
at once would cost its whole question."""


class Refusal(Struct, frozen=True):
    """The call must not be made."""

    reason: str


class _Book:
    """A ledger as far as this process has read it. ``lock``: one writer at a time."""

    def __init__(self, top: str, subject: str) -> None:
        self.subject = subject
        self.ledger = Ledger(top)
        self.lock = asyncio.Lock()


class _Account(NamedTuple):
    """The limits over a run, from above, and the ledger that they share."""

    limits: tuple[Limit, ...]
    book: _Book

    @property
    def within(self) -> tuple[str, ...]:
        return tuple(limit.run for limit in self.limits[1:])

    @property
    def money(self) -> bool:
        return any(limit.budget.cost_micros is not None for limit in self.limits)


class Budgets:
    """Budgets of all runs that this process advances."""

    def __init__(self, store: EventStore, plans: Plans, prices: Prices) -> None:
        self._store = store
        self._plans = plans
        self._prices = prices
        self._limits = Limits(store, plans)
        self._books: OrderedDict[tuple[str, str], _Book] = OrderedDict()

    @staticmethod
    def concerns(state: State) -> bool:
        """Whether the run may have a budget, its own or that of a run above."""
        return Limits.possible(state)

    async def reserve(
        self, state: State, request: ModelRequest, *, counted: int = 0
    ) -> Refusal | int:
        """Reserve what ``request`` may cost under every limit over the run. Raises LogError.

        Answers with the ``max_tokens`` that the request has to carry, at most its own; 0 when no
        budget bounds the run. It is shorter than wanted when the budget holds no more, but never
        so short that the call would be pointless.

        What the journal holds is settled with it; an earlier reservation of the run, be it a
        dead worker's, is replaced. ``counted`` as in :meth:`Prices.quote`.
        """
        account = await self._account(state)
        if account is None:
            return 0
        limits, book = account
        try:
            spent = self._prices.spent(state.spend, money=account.money)
            quote = self._prices.quote(request, money=account.money, counted=counted)
        except Unpriced as cause:
            return Refusal(str(cause))
        wanted = answer = request.max_tokens or ASSUMED_OUTPUT_TOKENS

        def decide(last_chance: bool) -> BudgetReserved | Refusal:
            nonlocal answer
            answer = wanted
            if last_chance:
                longest = quote.longest_answer(room(limits, book.ledger, state.run, spent))
                if longest is not None:
                    answer = min(wanted, max(longest, SHORTEST_ANSWER))
            amount = quote.at_most(answer)
            reason = refusal(limits, book.ledger, state.run, spent, amount)
            if reason:
                return Refusal(reason)
            return BudgetReserved(
                run=state.run,
                key=f"{state.run}.{state.iteration}.{state.attempt}.{state.n}",
                epoch=state.epoch,
                spent=spent,
                amount=amount,
                within=account.within,
            )

        refused = await self._write(state, book, decide)
        return answer if refused is None else refused

    async def settle(self, state: State) -> None:
        """Put what the run has spent, staged events included, in place of its reservation."""
        account = await self._account(state)
        if account is not None:
            await self._settle(state, account)

    async def ended(self, state: State) -> None:
        """Settle a run that makes no more calls, whoever made its last one."""
        account = await self._account(state)
        if account is None:
            return
        async with account.book.lock:
            await self._catch_up(account.book)
        await self._settle(state, account)

    async def spent(self, state: State) -> Amount:
        """What all runs that share the outermost budget over this one have spent by now."""
        account = await self._account(state)
        if account is None:
            return NOTHING
        async with account.book.lock:
            await self._catch_up(account.book)
            return account.book.ledger.spent

    async def _account(self, state: State) -> _Account | None:
        """None for a run that no budget bounds."""
        limits = await self._limits.of(state)
        if not limits:
            return None
        key = (state.started.tenant, limits[0].run)
        book = self._books.get(key)
        if book is None:
            book = _Book(limits[0].run, self._store.subjects.state("budget", *key))
            self._books[key] = book
            while len(self._books) > KEPT:
                self._books.popitem(last=False)
        else:
            self._books.move_to_end(key)
        return _Account(limits, book)

    # --- the ledger -----------------------------------------------------------------------

    async def _settle(self, state: State, account: _Account) -> None:
        event = self._settlement(state, account)
        entry = account.book.ledger.entries.get(state.run)
        if entry is None and event.spent == NOTHING:
            return
        if entry is not None and entry.reserved == NOTHING and entry.spent == event.spent:
            return
        await self._write(state, account.book, lambda _: event)

    def _settlement(self, state: State, account: _Account) -> BudgetSettled:
        """What the run has spent. A price that went from the table costs nothing more: the calls
        were made under it."""
        try:
            spent = self._prices.spent(state.spend, money=account.money)
        except Unpriced as cause:
            log.warning("%s is settled in tokens only: %s", state.run, cause)
            spent = self._prices.spent(state.spend, money=False)
        return BudgetSettled(run=state.run, epoch=state.epoch, spent=spent, within=account.within)

    async def _write(
        self, state: State, book: _Book, decide: Callable[[bool], BudgetEvent | Refusal]
    ) -> Refusal | None:
        """Append what is decided behind all that is known. A refusal is asked about again once
        the whole ledger is known, again when others that ended gave something back, and, with
        True, for the last time."""
        ledger = book.ledger
        async with book.lock:
            fresh = healed = last_chance = False
            for attempt in count():
                event = decide(last_chance)
                if isinstance(event, Refusal):
                    if last_chance:
                        return event
                    if not fresh:
                        await self._catch_up(book)
                        fresh = True
                        continue
                    if not healed:
                        healed = True
                        if await self._release_ended(state, book):
                            continue
                    last_chance = True
                    continue
                data = budget.encode(event)
                try:
                    seq = await self._store.log.append(book.subject, data, after=ledger.seq)
                except LogUnavailable:
                    await pause(attempt)
                except (WrongSequence, OutcomeUnknown):
                    if await self._catch_up(book, data):
                        return None
                    fresh = True
                else:
                    ledger.apply(seq, event)
                    return None
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
            if last is None or not terminal(last):
                continue
            loaded = await load(store, self._plans, tenant, run_id)
            account = None if loaded is None else await self._account(loaded.state)
            if loaded is None or account is None:
                continue
            event = self._settlement(loaded.state, account)
            with contextlib.suppress(WrongSequence, OutcomeUnknown, LogUnavailable):
                await store.log.append(book.subject, budget.encode(event), after=book.ledger.seq)
            released = True
            await self._catch_up(book)
        return released
