"""Which limits a run is under: its own, and those of all runs above it.

Read once from the journals and plans of the runs above, which never change.
"""

from __future__ import annotations

from collections import OrderedDict

from events.log import EventStore
from events.plan import Budget
from events.vocabulary import RunStarted
from loomcycle.budget.ledger import Limit
from loomcycle.journal import patiently
from loomcycle.loading import Plans, opening, whole_commit
from replay.budget_proof import may_bound
from replay.state import State

KEPT = 4096
"""Parents whose limits this process remembers."""

UNLIMITED = Budget()


class Limits:
    """Limits over runs; a tree is asked for once, parent by parent."""

    def __init__(self, store: EventStore, plans: Plans) -> None:
        self._store, self._plans = store, plans
        self._known: OrderedDict[tuple[str, str], tuple[Limit, ...]] = OrderedDict()

    @staticmethod
    def possible(state: State) -> bool:
        """Whether the run may have a limit, by what is known without asking."""
        return may_bound(state)

    async def of(self, state: State) -> tuple[Limit, ...]:
        """From above; empty for a run without budgets. Raises LogError, JournalError."""
        if not self.possible(state):
            return ()
        return _with(await self._above(state.started), state.run, state.plan.budget)

    async def _above(self, started: RunStarted) -> tuple[Limit, ...]:
        if started.parent is None:
            return ()
        return await self._of_run(started.tenant, started.parent.run)

    async def _of_run(self, tenant: str, run_id: str) -> tuple[Limit, ...]:
        key = (tenant, run_id)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        started = await self._started(tenant, run_id)
        if started is None:
            limits: tuple[Limit, ...] = ()
        else:
            plan = await self._plans.get(started.plan)
            limits = _with(await self._above(started), run_id, plan.budget)
        self._known[key] = limits
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return limits

    async def _started(self, tenant: str, run_id: str) -> RunStarted | None:
        store = self._store

        async def read() -> RunStarted | None:
            first = await store.log.first(store.subjects.journal(tenant, run_id))
            return None if first is None else opening(await whole_commit(store, first))

        return await patiently(read)


def _with(above: tuple[Limit, ...], run_id: str, own: Budget | None) -> tuple[Limit, ...]:
    return above if own is None or own == UNLIMITED else (*above, Limit(run_id, own))
