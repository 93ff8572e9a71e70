"""The ledger of one tree of runs as a fold, and the decision whether a call still fits.

Pure: who reads and appends is ``loomcycle/budget/budgets.py``.
"""

from __future__ import annotations

from msgspec import Struct

from events.budget import Amount, BudgetEvent, BudgetReserved
from events.plan import Budget

NOTHING = Amount()


class Entry(Struct, frozen=True, gc=False):
    """What one run has spent in all, and reserves for the call that it makes now."""

    epoch: int
    spent: Amount
    reserved: Amount = NOTHING
    key: str = ""


class Ledger:
    """``seq`` is that of the last event folded."""

    __slots__ = ("_spent", "_total", "entries", "seq")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.seq = 0
        self._total = NOTHING
        """Spent and reserved, by all runs."""
        self._spent = NOTHING

    def apply(self, seq: int, event: BudgetEvent) -> None:
        """Fold ``event``; one of an owner that lost its run meanwhile changes nothing."""
        self.seq = seq
        before = self.entries.get(event.run)
        if before is not None and event.epoch < before.epoch:
            return
        if isinstance(event, BudgetReserved):
            entry = Entry(event.epoch, event.spent, event.amount, event.key)
        else:
            entry = Entry(event.epoch, event.spent)
        self.entries[event.run] = entry
        before = before or Entry(0, NOTHING)
        self._spent = _moved(self._spent, before.spent, entry.spent)
        self._total = _moved(self._total, _used(before), _used(entry))

    @property
    def spent(self) -> Amount:
        """What the whole tree has spent."""
        return self._spent

    def others(self, run: str) -> tuple[Amount, Amount]:
        """(spent, reserved) of every run but ``run``."""
        own = self.entries.get(run) or Entry(0, NOTHING)
        spent = _moved(self._spent, own.spent, NOTHING)
        used = _moved(self._total, _used(own), NOTHING)
        return spent, Amount(
            used.cost_micros - spent.cost_micros,
            used.tokens - spent.tokens,
        )

    def reserving(self, run: str) -> list[str]:
        """The other runs that have a reservation."""
        return [r for r, entry in self.entries.items() if r != run and entry.reserved != NOTHING]


def refusal(limit: Budget, ledger: Ledger, run: str, spent: Amount, wanted: Amount) -> str:
    """Why a call of ``run`` that may cost ``wanted`` does not fit, "" when it does.

    ``spent`` is what the run itself has spent.
    """
    others, reserved = ledger.others(run)
    total = others.plus(spent)
    if limit.cost_micros is not None:
        used = total.cost_micros + reserved.cost_micros + wanted.cost_micros
        if used > limit.cost_micros:
            return (
                f"budget exceeded: max_cost_usd is {_usd(limit.cost_micros)}; spent are"
                f" {_usd(total.cost_micros)}, calls under way may cost"
                f" {_usd(reserved.cost_micros)}, this one {_usd(wanted.cost_micros)}"
            )
    if limit.tokens is not None and total.tokens + reserved.tokens + wanted.tokens > limit.tokens:
        return (
            f"budget exceeded: max_tokens_total is {limit.tokens}; spent are {total.tokens},"
            f" calls under way may take {reserved.tokens}, this one {wanted.tokens}"
            " (an agent's max_tokens bounds its answers)"
        )
    return ""


def _moved(total: Amount, before: Amount, after: Amount) -> Amount:
    return Amount(
        total.cost_micros - before.cost_micros + after.cost_micros,
        total.tokens - before.tokens + after.tokens,
    )


def _used(entry: Entry) -> Amount:
    return entry.spent.plus(entry.reserved)


def _usd(micros: int) -> str:
    return f"{micros / 1e6:.6f}".rstrip("0").rstrip(".")
