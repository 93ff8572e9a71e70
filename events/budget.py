"""Events of a budget's ledger: one subject of STATE for each outermost run with a budget.

The ledger serves that run and all below it, whatever budgets these have of their own.

Amounts of a run are absolute, as its journal tells them: an event says what the run has spent
in all and what it reserves for the call that it is about to make. So events of a run replace
each other, and what a dead worker left behind is corrected by the next one. ``epoch`` is that
of the run's owner; an event of an earlier one counts for nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Amount(Struct, frozen=True, omit_defaults=True, gc=False):
    """Money in millionths of a US dollar, and tokens."""

    cost_micros: int = 0
    tokens: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.cost_micros + other.cost_micros, self.tokens + other.tokens)

    def minus(self, other: Amount) -> Amount:
        return Amount(self.cost_micros - other.cost_micros, self.tokens - other.tokens)


class BudgetReserved(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="budget.reserved"):
    """``run`` has spent ``spent`` and may spend ``amount`` for its model call ``key``.

    ``within``: the runs with budgets of their own that ``run`` counts for, itself included,
    from above; without the outermost, for which everything in its ledger counts.
    """

    run: str
    key: str
    epoch: int
    spent: Amount
    amount: Amount
    within: tuple[str, ...] = ()
    v: int = 1


class BudgetSettled(Struct, frozen=True, omit_defaults=True, kw_only=True, tag="budget.settled"):
    """``run`` has spent ``spent`` and reserves nothing. ``within`` as above."""

    run: str
    epoch: int
    spent: Amount
    within: tuple[str, ...] = ()
    v: int = 1


BudgetEvent = BudgetReserved | BudgetSettled

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BudgetEvent).decode


def decode(data: bytes) -> BudgetEvent:
    """Raises ``msgspec.DecodeError`` for what this version cannot read."""
    event: BudgetEvent = _decode(data)
    return event
