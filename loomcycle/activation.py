"""One run being advanced: ask the machine for the next effect, perform it, commit what happened.

The order of "commit" and "perform" in this file is what makes crashes harmless (kernel.md 2 to
5): no effect before the commit that allows it, no frame before the commit that holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from events.inbox import CancelMessage
from events.inbox import decode as decode_inbox
from events.vocabulary import CancelRequested, ModelStarted
from loomcycle.journal import InboxMoved, RunJournal
from loomcycle.model_turn import ModelTurn
from loomcycle.services import Services
from loomcycle.tool_turn import ToolTurn
from replay.machine import CODE_PROVIDER, CallModel, CallTools, Finish, Halt, closing, next_effect
from replay.state import Phase


class Handover(Exception):
    """This worker lets the run go at a commit boundary; another continues it."""


class Activation:
    """Drives one run that this worker owns, from wherever its journal stands, to its end.

    ``resumed_n`` is the last event that another activation wrote (0 for a fresh run): calls up
    to it may have begun before.
    """

    def __init__(self, services: Services, journal: RunJournal, *, resumed_n: int = 0) -> None:
        self.journal = journal
        self._services = services
        self._model = ModelTurn(services, journal)
        self._tools = ToolTurn(services, journal, resumed_n=resumed_n)
        self._resumed = resumed_n > 0
        self._task: asyncio.Task[Any] | None = None
        self._interruptible = False
        self._interrupted = False
        self._leaving = False

    def interrupt(self) -> None:
        """Something urgent is in the inbox: stop waiting for the current effect."""
        again, self._interrupted = self._interrupted, True
        if self._interruptible and not again and self._task is not None:
            self._task.cancel()  # once only: a second one would tear the effect's clean-up

    def leave(self) -> None:
        """Stop at the next commit boundary (:class:`Handover` ends :meth:`drive`)."""
        self._leaving = True

    def close(self) -> None:
        """Drop what only saves work (a live interpreter)."""
        self._model.close()

    async def drive(self) -> None:
        """Advance until the run ends. Raises Fenced, Handover, JournalError, LogError."""
        self._task = asyncio.current_task()
        journal, state = self.journal, self.journal.state
        if self._resumed and state.phase is Phase.MODEL and state.cancel is None:
            journal.stage(ModelStarted(iteration=state.iteration, attempt=state.attempt + 1))
        while True:
            if self._interrupted:
                self._interrupted = False
                await journal.read_inbox()
            self._take_inbox()
            unfinished, self._model.unfinished = self._model.unfinished, None
            if unfinished is not None and state.cancel is not None:
                journal.stage(unfinished)
            if self._leaving:
                await self._let_go()
            match next_effect(state):
                case Finish() as finish:
                    try:
                        await journal.commit(closing(state, finish))
                    except InboxMoved:
                        continue
                    return
                case Halt():
                    return
                case CallModel() as effect if self._model.began == effect:
                    journal.stage(
                        ModelStarted(iteration=effect.iteration, attempt=effect.attempt + 1)
                    )
                case CallModel() as effect:
                    if journal.staged and not self._may_stay_staged():
                        await journal.commit()
                    await self._perform(self._model.perform(effect, self._commit))
                case CallTools() as effect:
                    if journal.staged:
                        await journal.commit()
                    await self._perform(self._tools.perform(effect, self._commit))

    def _may_stay_staged(self) -> bool:
        """A program's turn has no outside effect: it may share a commit with the result before."""
        return self.journal.state.plan.provider == CODE_PROVIDER and self._tools.only_repeatable

    async def _let_go(self) -> None:
        if self.journal.staged:
            await self.journal.commit()
        raise Handover

    async def _commit(self) -> None:
        """Commit in the middle of an effect: not to be torn by an interrupt."""
        interruptible, self._interruptible = self._interruptible, False
        try:
            await self.journal.commit()
        finally:
            self._interruptible = interruptible
        if self._interrupted and interruptible:
            raise asyncio.CancelledError

    async def _perform(self, effect: Coroutine[Any, Any, None]) -> None:
        """Run an effect that :meth:`interrupt` may stop."""
        if self._was_interrupted():
            effect.close()
            return
        self._interruptible = True
        task = self._task
        try:
            await effect
        except asyncio.CancelledError:
            if task is None or not self._was_interrupted():
                raise
            if task.cancelling():
                task.uncancel()
        finally:
            self._interruptible = False

    def _was_interrupted(self) -> bool:
        return self._interrupted

    def _take_inbox(self) -> None:
        journal = self.journal
        if not journal.inbox:
            return
        messages, journal.inbox = journal.inbox, []
        for message in messages:
            try:
                item = decode_inbox(message.data)
            except msgspec.DecodeError:
                continue
            if item.id in journal.state.taken:
                continue
            if isinstance(item, CancelMessage):
                journal.stage(CancelRequested(reason=item.reason, inbox=item.id))
