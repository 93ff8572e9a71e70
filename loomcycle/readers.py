"""When nobody reads a plain run any more, it is cancelled (kernel.md section 10).

The loss of a reader is noticed by the process whose client started the run; a reader that
follows elsewhere within the grace keeps it. The death of a process is no disconnect.
"""

from __future__ import annotations

import asyncio
import logging

from events.log import LogError
from loomcycle.commands.cancel import cancel_run
from loomcycle.services import Services

log = logging.getLogger("loomcycle.readers")

DISCONNECTED = "client disconnected"
REMOTE_READER_S = 2.5
"""A reader elsewhere pokes at least this often."""


class Readers:
    """``grace_s``: how long a plain run outlives its last reader."""

    def __init__(self, services: Services, *, grace_s: float) -> None:
        self._services = services
        self._grace_s = grace_s
        self._seen_elsewhere: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def seen_elsewhere(self, run_id: str) -> None:
        """A reader in another process follows ``run_id`` now."""
        if run_id in self._seen_elsewhere or self._services.live.readers(run_id):
            self._seen_elsewhere[run_id] = asyncio.get_running_loop().time()

    def left(self, tenant: str, run_id: str) -> None:
        """A client of this process stopped reading a run that should not outlive its readers."""
        if self._closing:
            return
        self._seen_elsewhere.setdefault(run_id, float("-inf"))
        task = asyncio.create_task(self._cancel_unless_read(tenant, run_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Forget everybody who left: this process' end is no disconnect."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cancel_unless_read(self, tenant: str, run_id: str) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._grace_s)
        seen = self._seen_elsewhere.pop(run_id, float("-inf"))
        if self._services.live.readers(run_id) or loop.time() - seen < REMOTE_READER_S:
            return
        try:
            await cancel_run(self._services, tenant, run_id, DISCONNECTED)
        except LogError as cause:
            log.warning("%s has no reader and could not be cancelled: %s", run_id, cause)
