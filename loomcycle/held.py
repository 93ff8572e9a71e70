"""The runs that this process advances: driven, told of what is in their inbox, let go together.

Which runs come here, and whether there is room for them, is decided by ``loomcycle/worker.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from events.inbox import CancelMessage
from events.inbox import decode as decode_inbox
from events.log import Delivery, LogError
from loomcycle.activation import Activation, Handover
from loomcycle.background import Background
from loomcycle.journal import Fenced
from loomcycle.ownership import Ownership
from loomcycle.services import Services
from loomcycle.wakes import wake_data
from replay.state import Phase

log = logging.getLogger("loomcycle.worker")

WORKING_EVERY_S = 4.0
"""How often held queue items are reported as worked on (their ack wait is 10 s)."""

INBOX_CHECK_S = 2.0
"""How often the inbox of a run in a long effect is looked at, should a poke be lost."""


@dataclass
class _Held:
    activation: Activation
    delivery: Delivery
    since: float


class HeldRuns:
    """A run is coming while it is opened or taken over, and held while it is driven.

    ``in`` and ``len`` speak of both.
    """

    def __init__(self, services: Services, ownership: Ownership, tasks: Background) -> None:
        self._services = services
        self._ownership = ownership
        self._tasks = tasks
        self._held: dict[str, _Held] = {}
        self._coming: set[str] = set()
        self._leaving = False

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._held or run_id in self._coming

    def __len__(self) -> int:
        return len(self._held.keys() | self._coming)

    def is_held(self, run_id: str) -> bool:
        return run_id in self._held

    @contextmanager
    def coming(self, run_id: str) -> Iterator[None]:
        """Around whatever ends in the run's being driven here, or elsewhere."""
        self._coming.add(run_id)
        try:
            yield
        finally:
            self._coming.discard(run_id)

    async def drive(self, activation: Activation, delivery: Delivery) -> None:
        """Advance a run until it ends, parks, or is another's; then its item is done with.

        Raises JournalError, LogError.
        """
        run_id = activation.journal.state.run
        loop = asyncio.get_running_loop()
        self._held[run_id] = _Held(activation, delivery, loop.time())
        if self._leaving:
            activation.leave()
        handed_over = False
        try:
            await activation.drive()
        except Fenced as cause:
            log.warning("%s continues elsewhere: %s", run_id, cause)
        except Handover:
            handed_over = True
            await self._hand_over(activation)
        finally:
            activation.close()
            del self._held[run_id]
            self._services.live.closed(run_id)
        state = activation.journal.state
        if state.phase is Phase.FINISHED:
            self._services.ended(state.started)
            await self._ownership.forget(state, run_id)
        else:
            self._ownership.keep(activation.journal)
        if activation.missed and not handed_over and state.phase is not Phase.FINISHED:
            wake = wake_data(activation.journal.tenant)
            await self._services.store.wakes.post(run_id, f"missed:{state.commits}", wake)
        delivery.ack()

    async def _hand_over(self, activation: Activation) -> None:
        journal = activation.journal
        await self._services.store.wakes.post(
            journal.state.run,
            f"handover:{journal.state.commits}",
            wake_data(journal.tenant, self._services.process),
        )

    # -- all of them

    def leave(self) -> None:
        """Hand all runs over at their next commit, and those that come from now on."""
        self._leaving = True
        for held in self._held.values():
            held.activation.leave()

    def interrupt(self) -> None:
        """Stop waiting for the effects that are under way."""
        for held in list(self._held.values()):
            held.activation.interrupt()

    def pause(self, *, force: bool) -> int:
        """Let all runs park; how many calls were given up that are not made again."""
        return sum(held.activation.pause(force=force) for held in list(self._held.values()))

    # -- news

    def nudge(self, run_id: str) -> bool:
        """Tell a held run that its inbox moved; False when it is not held."""
        held = self._held.get(run_id)
        if held is None:
            return False
        held.activation.inbox_moved()
        return True

    def poked(self, run_id: str) -> None:
        """Something came into the inbox of a run, which may be held here."""
        held = self._held.get(run_id)
        if held is not None:
            self._tasks.add(self._check_inbox(held))

    async def look_into_inbox(self, run_id: str) -> bool:
        """Tell a held run what came for it; False when it is not held, or no more after that."""
        held = self._held.get(run_id)
        if held is None:
            return False
        await self._check_inbox(held)
        return self._held.get(run_id) is held

    async def look_after(self) -> None:
        """Report held items as worked on and look into inboxes, for ever."""
        loop = asyncio.get_running_loop()
        reported = loop.time()
        while True:
            await asyncio.sleep(INBOX_CHECK_S)
            now = loop.time()
            self._ownership.cool()
            if now - reported >= WORKING_EVERY_S:
                reported = now
                for held in self._held.values():
                    held.delivery.working()
            for held in list(self._held.values()):
                if now - held.since >= INBOX_CHECK_S:
                    await self._check_inbox(held)

    async def _check_inbox(self, held: _Held) -> None:
        """Tell the run of what is in its inbox; interrupt its effect if that cannot wait."""
        journal = held.activation.journal
        try:
            messages = await self._services.store.log.read(
                journal.inbox_subject, after=journal.inbox_seq
            )
        except LogError:
            return
        if any(_is_urgent(message.data) for message in messages):
            held.activation.interrupt()
        elif messages:
            held.activation.inbox_moved()


def _is_urgent(data: bytes) -> bool:
    try:
        return isinstance(decode_inbox(data), CancelMessage)
    except msgspec.DecodeError:
        return False
