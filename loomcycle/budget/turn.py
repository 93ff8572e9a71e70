"""A model turn within a budget: nothing is asked before its reservation is in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from events.vocabulary import BudgetRefused
from loomcycle.budget.budgets import Budgets, Refusal
from loomcycle.journal import RunJournal
from loomcycle.services import Services
from replay.machine import CODE_PROVIDER, CallModel
from replay.request import model_request

Commit = Callable[[], Awaitable[None]]


class Turn(Protocol):
    async def perform(self, effect: CallModel, commit: Commit, max_tokens: int = 0) -> None:
        """Stage what the model says, or why it was not asked. ``max_tokens``: how long a budget
        lets the answer be, 0 when none bounds it."""
        ...


class BudgetedTurn:
    """``turn`` of a run that has a budget, or whose parents may have one."""

    def __init__(self, turn: Turn, budgets: Budgets, journal: RunJournal) -> None:
        self._turn, self._budgets, self._journal = turn, budgets, journal

    async def perform(self, effect: CallModel, commit: Commit, max_tokens: int = 0) -> None:
        """As :class:`Turn`. One that is torn is settled with the next one, or the run's end."""
        state = self._journal.state
        given = await self._budgets.reserve(state, model_request(state), counted=state.used)
        if isinstance(given, Refusal):
            self._journal.stage(BudgetRefused(reason=given.reason))
            return
        await self._turn.perform(effect, commit, given)
        await self._budgets.settle(state)


def within_budget(turn: Turn, services: Services, journal: RunJournal) -> Turn:
    """``turn`` itself for a run without budget: such runs pay nothing for those that have one."""
    budgets, state = services.budgets, journal.state
    asks_nobody = state.plan.provider == CODE_PROVIDER
    if budgets is None or state.facts is None or asks_nobody or not budgets.concerns(state):
        return turn
    return BudgetedTurn(turn, budgets, journal)
