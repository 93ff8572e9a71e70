"""The ledger of a tree of runs with budgets as a fold, and whether a call still fits them.

Pure: who reads and appends is ``loomcycle/budget/budgets.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from events.budget import Amount, BudgetEvent, BudgetReserved
from events.plan import Budget

NOTHING = Amount()


class Limit(Struct, frozen=True, gc=False):
    """``budget`` bounds ``run`` and all runs below it together."""

    run: str
    budget: Budget


class Entry(Struct, frozen=True, gc=False):
    """What one run has spent in all, and reserves for the call that it makes now.

    ``within``: all runs whose budgets it counts for.
    """

    epoch: int
    spent: Amount
    reserved: Amount = NOTHING
    key: str = ""
    within: tuple[str, ...] = ()


class Ledger:
    """``top`` is the outermost run with a budget; ``seq`` is that of the last event folded."""

    __slots__ = ("_spent", "_used", "entries", "seq", "top")

    def __init__(self, top: str = "") -> None:
        self.top = top
        self.entries: dict[str, Entry] = {}
        self.seq = 0
        self._spent: dict[str, Amount] = {}
        """By each run with a budget, and all runs below it."""
        self._used: dict[str, Amount] = {}
        """Spent and reserved, likewise."""

    def apply(self, seq: int, event: BudgetEvent) -> None:
        """Fold ``event``; one of an owner that lost its run meanwhile changes nothing."""
        self.seq = seq
        before = self.entries.get(event.run)
        if before is not None and event.epoch < before.epoch:
            return
        within = (self.top, *event.within)
        if isinstance(event, BudgetReserved):
            entry = Entry(event.epoch, event.spent, event.amount, event.key, within)
        else:
            entry = Entry(event.epoch, event.spent, within=within)
        self.entries[event.run] = entry
        if before is not None:
            for run in before.within:
                self._spent[run] = self._spent[run].minus(before.spent)
                self._used[run] = self._used[run].minus(_used(before))
        for run in entry.within:
            self._spent[run] = self._spent.get(run, NOTHING).plus(entry.spent)
            self._used[run] = self._used.get(run, NOTHING).plus(_used(entry))

    @property
    def spent(self) -> Amount:
        """What all runs of the ledger have spent."""
        return self.spent_by(self.top)

    def spent_by(self, holder: str) -> Amount:
        """What ``holder``, a run with a budget, has spent with all runs below it."""
        return self._spent.get(holder, NOTHING)

    def others(self, run: str, holder: str) -> tuple[Amount, Amount]:
        """(spent, reserved) that counts for ``holder``, of every run but ``run``."""
        spent, used = self.spent_by(holder), self._used.get(holder, NOTHING)
        own = self.entries.get(run)
        if own is not None and holder in own.within:
            spent, used = spent.minus(own.spent), used.minus(_used(own))
        return spent, used.minus(spent)

    def reserving(self, run: str) -> list[str]:
        """The other runs that have a reservation."""
        return [r for r, entry in self.entries.items() if r != run and entry.reserved != NOTHING]


def refusal(
    limits: Sequence[Limit], ledger: Ledger, run: str, spent: Amount, wanted: Amount
) -> str:
    """Why a call of ``run`` that may cost ``wanted`` does not fit, "" when it does.

    ``limits`` are those over ``run`` from above; of several that do not fit the nearest is told.
    ``spent`` is what the run itself has spent.
    """
    for limit in reversed(limits):
        reason = _misfit(limit, ledger, run, spent, wanted)
        if reason:
            return reason
    return ""


def room(limits: Sequence[Limit], ledger: Ledger, run: str, spent: Amount) -> Budget:
    """What the limits over ``run`` leave for its next call; ``spent`` is what it has spent."""
    costs: list[int] = []
    tokens: list[int] = []
    for limit in limits:
        others, reserved = ledger.others(run, limit.run)
        used = others.plus(reserved).plus(spent)
        if limit.budget.cost_micros is not None:
            costs.append(limit.budget.cost_micros - used.cost_micros)
        if limit.budget.tokens is not None:
            tokens.append(limit.budget.tokens - used.tokens)
    return Budget(cost_micros=min(costs, default=None), tokens=min(tokens, default=None))


def _misfit(limit: Limit, ledger: Ledger, run: str, spent: Amount, wanted: Amount) -> str:
    others, reserved = ledger.others(run, limit.run)
    total = others.plus(spent)
    asked = total.plus(reserved).plus(wanted)
    whose = "" if limit.run == run else f" of run {limit.run}"
    cost, tokens = limit.budget.cost_micros, limit.budget.tokens
    if cost is not None and asked.cost_micros > cost:
        return (
            f"budget exceeded: max_cost_usd{whose} is {_usd(cost)}; spent are"
            f" {_usd(total.cost_micros)}, calls under way may cost"
            f" {_usd(reserved.cost_micros)}, this one {_usd(wanted.cost_micros)}"
        )
    if tokens is not None and asked.tokens > tokens:
        return (
            f"budget exceeded: max_tokens_total{whose} is {tokens}; spent are {total.tokens},"
            f" calls under way may take {reserved.tokens}, this one {wanted.tokens}"
            " (an agent's max_tokens bounds its answers)"
        )
    return ""


def _used(entry: Entry) -> Amount:
    return entry.spent.plus(entry.reserved)


def _usd(micros: int) -> str:
    return f"{micros / 1e6:.6f}".rstrip("0").rstrip(".")
