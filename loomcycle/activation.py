"""One run being advanced: ask the machine for the next effect, perform it, commit what happened.

The order of "commit" and "perform" in this file is what makes crashes harmless (kernel.md 2 to
5): no effect before the commit that allows it, no frame before the commit that holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Literal

from events.log import LogError
from events.vocabulary import (
    AwaitingInput,
    AwaitingInputBody,
    ModelStarted,
    RunParked,
)
from loomcycle.budget.turn import within_budget
from loomcycle.children import PARENT_CANCELLED, Children
from loomcycle.compaction_turn import CompactionTurn
from loomcycle.journal import InboxMoved, RunJournal
from loomcycle.model_turn import ModelTurn
from loomcycle.services import Services
from loomcycle.taking import NOTHING, take_inbox, timed_out, unsealed
from loomcycle.tool_turn import ToolTurn
from loomcycle.tools.base import Repeat
from loomcycle.wakes import PARK_TIMER, wake_data
from replay.machine import (
    CODE_PROVIDER,
    AwaitInput,
    CallModel,
    CallTools,
    CloseCall,
    Compact,
    Finish,
    Halt,
    Park,
    RejectOutput,
    StartChildren,
    closing,
    next_effect,
    rejection,
)
from replay.state import Phase

log = logging.getLogger("loomcycle.worker")

HOT_S = 1.0
"""A wait that ends within this time needs no parking."""


TICK_S = 0.002
"""A timer of the event loop may be so early."""


class Handover(Exception):
    """This worker lets the run go at a commit boundary; another continues it."""


class Activation:
    """Drives one run that this worker owns, from wherever its journal stands, to its end.

    ``resumed_n`` is the last event that another activation wrote (0 for a fresh run): calls up
    to it may have begun before. ``unparked``: the last owner had let the run go, ``timed``: with
    a timer. ``slot_free`` is entered while the run only waits.
    """

    def __init__(
        self,
        services: Services,
        journal: RunJournal,
        *,
        resumed_n: int = 0,
        unparked: bool = False,
        timed: bool = False,
        slot_free: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.journal = journal
        self._services = services
        self._slot_free = slot_free
        self._moved = asyncio.Event()
        self._model = ModelTurn(services, journal)
        self._turn = within_budget(self._model, services, journal)
        self._children = Children(services, journal)
        self._compaction = CompactionTurn(services, journal)
        self._tools = ToolTurn(services, journal, resumed_n=resumed_n)
        self._resumed = resumed_n > 0
        self._unparked = unparked
        self._timed = timed
        self._task: asyncio.Task[Any] | None = None
        self._interruptible = False
        self._interrupted = False
        self._leaving = False
        self._calling = False
        self._suspended = services.paused()
        """Whether no call may begin before the runtime is resumed."""

    def interrupt(self) -> None:
        """Something urgent is in the inbox: stop waiting for the current effect."""
        again, self._interrupted = self._interrupted, True
        if self._interruptible and not again and self._task is not None:
            self._task.cancel()  # once only: a second one would tear the effect's clean-up

    def inbox_moved(self) -> None:
        """Something is in the inbox that can wait for the next boundary."""
        self._moved.set()

    @property
    def missed(self) -> bool:
        """Whether it was told of news that it did not look at any more."""
        return self._interrupted or self._moved.is_set()

    def leave(self) -> None:
        """Stop at the next commit boundary (:class:`Handover` ends :meth:`drive`)."""
        self._leaving = True
        self._moved.set()
        self._model.hurry()

    def pause(self, *, force: bool) -> int:
        """The runtime pauses: park soon. Calls that may be made again are given up at once, with
        ``force`` all; how many were that are not made again."""
        self._moved.set()
        self._suspended = self._suspended or force
        started = sum(call.started for call in self.journal.state.pending())
        if not self._calling or (started and not force):
            return 0
        self.interrupt()
        return started

    def close(self) -> None:
        """Drop what only saves work (a live interpreter)."""
        self._model.close()

    async def drive(self) -> None:
        """Advance until the run ends. Raises Fenced, Handover, JournalError, LogError."""
        self._task = asyncio.current_task()
        journal, state = self.journal, self.journal.state
        if self._resumed and state.phase is Phase.TOOLS:
            await self._children.look_after()
        if self._resumed and state.phase is Phase.MODEL and self._may_have_spoken():
            journal.stage(ModelStarted(iteration=state.iteration, attempt=state.attempt + 1))
        while True:
            if self._interrupted or self._moved.is_set():
                self._interrupted = False
                self._moved.clear()
                await journal.read_inbox()
            said = await unsealed(journal, self._services.store.seals) if journal.inbox else NOTHING
            take_inbox(journal, said)
            if self._services.resume_fanout:
                self._children.show_results()
            unfinished, self._model.unfinished = self._model.unfinished, None
            if unfinished is not None and state.cancel is not None:
                journal.stage(unfinished)
            effect = next_effect(state)
            if self._leaving and not isinstance(effect, Park | Finish | Halt):
                await self._let_go()
            match effect:
                case Finish() as finish:
                    if await self._finish(finish):
                        return
                case Halt():
                    return
                case Park() as park:
                    if await self._park(park.reason, park.until_ns):
                        return
                case AwaitInput(since_turn=turn):
                    journal.stage(AwaitingInput(awaiting_input=AwaitingInputBody(turn)))
                case RejectOutput() as effect:
                    journal.stage(rejection(state, effect))
                case CloseCall() as effect:
                    if journal.staged and self._tools.asks_others:
                        await journal.commit()
                    await self._perform(self._tools.close(effect))
                case CallModel() | StartChildren() | Compact() if self._services.paused():
                    if await self._park("pause", 0):
                        return
                case CallTools() as effect if self._services.paused() and self._can_wait(effect):
                    if await self._park("pause", 0):
                        return
                case StartChildren() as effect:
                    await self._perform(self._children.start(effect, self._commit))
                case Compact() as effect:
                    if journal.staged:
                        await journal.commit()
                    await self._perform(self._compaction.perform(effect))
                case CallModel() as effect if self._model.began == effect:
                    journal.stage(
                        ModelStarted(iteration=effect.iteration, attempt=effect.attempt + 1)
                    )
                case CallModel() as effect:
                    if journal.staged and not self._may_stay_staged():
                        await journal.commit()
                    await self._perform(self._turn.perform(effect, self._commit))
                case CallTools() as effect:
                    if journal.staged:
                        await journal.commit()
                    self._calling = True
                    await self._perform(self._tools.perform(effect, self._commit))
                    self._calling = False

    def _can_wait(self, effect: CallTools) -> bool:
        """Whether calls are left for after the pause: all that could be begun again anyway."""
        tools = [self._services.tools.get(call.name) for call in effect.calls]
        return self._suspended or not any(tool and tool.repeat is Repeat.UNSAFE for tool in tools)

    def _may_have_spoken(self) -> bool:
        """Whether another owner may have been in the middle of a model call."""
        return self.journal.state.cancel is None and not self._unparked

    def _may_stay_staged(self) -> bool:
        """A program's turn has no outside effect: it may share a commit with the result before."""
        return self.journal.state.plan.provider == CODE_PROVIDER and self._tools.only_repeatable

    async def _finish(self, finish: Finish) -> bool:
        """End the run; False when something reached its inbox first."""
        if finish.status != "completed":
            await self._children.cancel(PARENT_CANCELLED)
        try:
            await self.journal.commit(closing(self.journal.state, finish))
        except InboxMoved:
            return False
        await self._forget_timer()
        return True

    async def _park(self, reason: Literal["input", "calls", "pause"], until_ns: int) -> bool:
        """Let the run go; False when it has something to do after all."""
        journal, services = self.journal, self._services
        if reason == "calls" and await self._stayed_hot(until_ns):
            return False
        over = timed_out(journal.state, services.now_ns())
        try:
            if over:  # an answer that is in the inbox by now is the answer
                await journal.commit(over)
                return False
            await journal.commit((RunParked(reason=reason, until_ns=until_ns),))
        except InboxMoved:
            return False
        if until_ns:
            data = wake_data(journal.tenant)
            try:
                await services.store.timers.set(PARK_TIMER, journal.run_id, until_ns, data)
            except LogError as cause:
                log.info("%s has no timer, the sweeper sees to it: %s", journal.run_id, cause)
        else:
            await self._forget_timer()
        return True

    async def _forget_timer(self) -> None:
        """What an earlier park waited for came before its time; a timer that stays is harmless."""
        if self._timed:
            self._timed = False
            with contextlib.suppress(LogError):
                await self._services.store.timers.cancel(PARK_TIMER, self.journal.run_id)

    async def _stayed_hot(self, until_ns: int) -> bool:
        """Wait a moment for what ends the park, without the slot: it spares a commit and a wake.

        Whether something came (kernel.md section 2).
        """
        if self._leaving or self._services.paused():
            return False
        if self.journal.staged:
            await self.journal.commit()
        seconds = HOT_S
        if until_ns:
            seconds = min(seconds, max(0.0, (until_ns - self._services.now_ns()) / 1e9 + TICK_S))
        with self._slot_free():
            await self._perform(self._wait_for_inbox(seconds))
        return self._moved.is_set() or self._was_interrupted()

    async def _wait_for_inbox(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._moved.wait()

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
