"""When nobody reads a plain run any more, it is cancelled (kernel.md section 10).

The loss of a reader is noticed by the process whose client started the run; a reader that
follows elsewhere within the grace keeps it. The death of a process is no disconnect.
"""

from __future__ import annotations

import asyncio
import logging

from events.log import LogError
from loomcycle.background import Background
from loomcycle.commands.cancel import cancel_run
from loomcycle.services import Services

log = logging.getLogger("loomcycle.readers")

DISCONNECTED = "client disconnected"

PATIENCE_ELSEWHERE = 2
"""Silent graces until a reader in another process counts as gone: core messages may be lost."""

LEAST_S = 0.05
"""The shortest grace: a log that is away is not asked more often than that."""

ECHO_S = 0.2
"""The last poke of a reader that left may still come back to its own process."""


class Readers:
    """``grace_s``: how long a plain run outlives its last reader.

    A reader elsewhere pokes each second (``feed.WATCH_EVERY_S``): a shorter grace misses it.
    """

    def __init__(self, services: Services, *, grace_s: float) -> None:
        self._services = services
        self._grace_s = grace_s
        self._left_at: dict[str, float] = {}
        self._seen_elsewhere: set[str] = set()
        self._tasks = Background()
        self._closing = False
        self.kept: set[str] = set()
        """Runs whose starter left, kept alive by others who read them."""

    def seen_elsewhere(self, run_id: str) -> None:
        """A reader in another process follows ``run_id`` now."""
        left_at = self._left_at.get(run_id)
        if left_at is not None and asyncio.get_running_loop().time() - left_at > ECHO_S:
            self._seen_elsewhere.add(run_id)

    def left(self, tenant: str, run_id: str) -> None:
        """A client of this process stopped reading a run that should not outlive its readers.

        Whoever reads it after that keeps it alive, and only so long.
        """
        if self._closing:
            return
        self._left_at[run_id] = asyncio.get_running_loop().time()
        self._tasks.add(self._cancel_unless_read(tenant, run_id))

    async def close(self) -> None:
        """Forget everybody who left: this process' end is no disconnect."""
        self._closing = True
        await self._tasks.cancel()

    async def _cancel_unless_read(self, tenant: str, run_id: str) -> None:
        try:
            while True:
                await self._unread(run_id)
                try:
                    await cancel_run(self._services, tenant, run_id, DISCONNECTED)
                    return
                except LogError as cause:
                    log.warning("%s has no reader and is not cancelled yet: %s", run_id, cause)
        finally:
            self._left_at.pop(run_id, None)
            self.kept.discard(run_id)

    async def _unread(self, run_id: str) -> None:
        """Return when nobody has read the run for the grace."""
        silences, patience = 0, 1
        while silences < patience:
            await asyncio.sleep(max(self._grace_s, LEAST_S))
            if run_id in self._seen_elsewhere:
                self._seen_elsewhere.discard(run_id)
                silences, patience = 0, PATIENCE_ELSEWHERE
            elif self._services.live.readers(run_id):
                silences = 0
            else:
                silences += 1
                continue
            self.kept.add(run_id)
