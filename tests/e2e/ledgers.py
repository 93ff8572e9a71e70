"""Ledgers of budgets, read from the log and folded."""

from __future__ import annotations

from events.budget import BudgetEvent, decode
from events.log import EventStore
from loomcycle.budget.ledger import Ledger


async def ledger_of(store: EventStore, run_id: str) -> tuple[Ledger, list[BudgetEvent]]:
    """The ledger of ``run_id``, the outermost run with a budget, and its events."""
    ledger, events = Ledger(run_id), list[BudgetEvent]()
    for tenant in ("", "default"):
        for message in await store.log.read(store.subjects.state("budget", tenant, run_id)):
            event = decode(message.data)
            events.append(event)
            ledger.apply(message.seq, event)
    return ledger, events
