"""Children that runs of this process start: first committed here, and advanced here if there is
room. A child takes no slot, so that parents that wait in all slots cannot starve their children.

Which children there are, and what they are told, is ``loomcycle/children.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from events.vocabulary import Event, RunStarted
from loomcycle.activation import Activation
from loomcycle.background import Background
from loomcycle.deliveries import Adopted, handled
from loomcycle.held import HeldRuns
from loomcycle.ownership import Ownership
from loomcycle.services import Services
from loomcycle.wakes import wake_data

CHILDREN_HERE = 64
CHILDREN_PER_SLOT = 8
"""Children take no slot; beyond so many in a process, whoever has a slot is asked to help."""


class Adoption:
    """``slots`` are those of the worker. It stands in :class:`~loomcycle.services.Services` as
    what parents begin their children with."""

    def __init__(
        self,
        services: Services,
        ownership: Ownership,
        held: HeldRuns,
        tasks: Background,
        *,
        slots: int,
    ) -> None:
        self._services = services
        self._ownership = ownership
        self._held = held
        self._tasks = tasks
        self._room = max(CHILDREN_HERE, slots * CHILDREN_PER_SLOT)
        self._stopping = False
        self.active = 0
        """Children that are advanced here now."""

    def nudge(self, run_id: str) -> bool:
        """Tell a run that is advanced here that its inbox moved; False when it is not."""
        return self._held.nudge(run_id)

    def stop(self) -> None:
        """From now on others advance the children that begin."""
        self._stopping = True

    async def begin_child(self, opening: list[Event], credentials: Mapping[str, str]) -> None:
        """Make a child's first commit, unless it has one, and have it advanced: here if there is
        room, else by whoever has a slot. Not torn when the caller is cancelled. Raises LogError.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.add(self._bring_up(opening, credentials, begun))
        await asyncio.shield(begun)

    async def _bring_up(
        self, opening: list[Event], credentials: Mapping[str, str], begun: asyncio.Future[None]
    ) -> None:
        facts = opening[0]
        assert isinstance(facts, RunStarted)
        if facts.run in self._held:
            begun.set_result(None)
            return
        here = not self._stopping and self.active < self._room
        self.active += here
        try:
            with self._held.coming(facts.run):
                journal = await self._ownership.begin_child(opening, credentials)
                if journal is not None and not here:
                    await self._give_away(facts)
            begun.set_result(None)
            if journal is not None and here:
                drive = partial(self._held.drive, Activation(self._services, journal))
                await handled(drive, Adopted(facts.run))
        except BaseException as cause:
            if not begun.done():
                begun.set_exception(cause) if isinstance(cause, Exception) else begun.cancel()
            if not isinstance(cause, Exception):
                raise
        finally:
            self.active -= here

    async def _give_away(self, facts: RunStarted) -> None:
        self._services.live.closed(facts.run)
        wake = wake_data(facts.tenant, self._services.process)
        await self._services.store.wakes.post(facts.run, "begun", wake)
