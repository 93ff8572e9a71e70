"""From a start item to an accepted run: queue it, wait for its first commit, or take it back.

A start counts only when its journal's first commit is on disk (kernel.md section 4). Whatever
ends the wait without one leaves a tombstone, so that the run cannot begin behind the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec

from events.log import LogError, OutcomeUnknown, QueueFull, UserCapReached
from loomcycle.commands.cancel import cancel_run
from loomcycle.errors import Backpressure, UserQuotaExhausted
from loomcycle.feed import FeedFrame, RunFeed
from loomcycle.journal import withdraw
from loomcycle.services import Services
from loomcycle.starts import StartItem, pack
from loomcycle.worker import CREDENTIALS

log = logging.getLogger("loomcycle.commands")

QUEUE_CHECK_S = 1.0
"""How often a waiting start is looked up in the queue, should the queue have been lost."""

POST_ATTEMPTS = 3
POST_PATIENCE_S = 2.0
"""A queue that was silent for so long is not asked again: the client gets its 503."""

_encode = msgspec.json.Encoder().encode


class Promises:
    """``queue_timeout_s`` and ``user_cap`` are those of the configuration."""

    def __init__(self, services: Services, *, queue_timeout_s: float, user_cap: int) -> None:
        self._services = services
        self._queue_timeout_s = queue_timeout_s
        self._user_cap = user_cap
        self._background: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let withdrawals under way finish (bounded)."""
        if self._background:
            await asyncio.wait(self._background, timeout=2.0)

    async def seal(self, item: StartItem, secrets: dict[str, str]) -> None:
        """Seal the credentials of ``item``. Raises LogError; the start is then taken back."""
        try:
            await self._services.store.seals.put(item.run, CREDENTIALS, _encode(secrets))
        except LogError:
            self._later(self._withdraw_quietly(item, 0, "log unavailable"))
            raise

    async def obtain(self, item: StartItem, feed: RunFeed, *, sealed: bool) -> list[FeedFrame]:
        """Queue ``item`` and wait for the frames of its first commit.

        ``sealed``: seals of the run exist already. Raises CommandError, LogError.
        """
        data = await pack(item, self._services.store.seals)
        try:
            seq = await self._post(item, data)
        except (Backpressure, UserQuotaExhausted):
            if sealed:
                await self._services.store.seals.delete(item.run)
            raise
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._queue_timeout_s
        posts = 1
        try:
            while True:
                frames = await feed.next(min(QUEUE_CHECK_S, max(0.0, deadline - loop.time())))
                if frames or feed.ended or feed.started is not None:
                    return frames
                if loop.time() >= deadline:
                    if await self._withdraw(item, seq, "queue timeout"):
                        raise Backpressure("queue timeout")
                    deadline += QUEUE_CHECK_S
                elif not await self._services.store.starts.holds(seq):
                    seq = await self._post(item, data, attempt=posts)
                    posts += 1
        except asyncio.CancelledError:
            self._later(self._withdraw_quietly(item, seq, "client disconnected"))
            raise
        except LogError:
            self._later(self._withdraw_quietly(item, seq, "log unavailable"))
            raise
        except Backpressure:
            self._later(self._withdraw_quietly(item, seq, "queue timeout"))
            raise

    async def _post(self, item: StartItem, data: bytes, *, attempt: int = 0) -> int:
        starts = self._services.store.starts
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for tried in range(POST_ATTEMPTS):
            try:
                return await starts.post(item.tenant, item.user_id, item.run, data, attempt=attempt)
            except UserCapReached:
                if attempt:
                    raise Backpressure("queue timeout") from None
                raise UserQuotaExhausted(item.user_id, self._user_cap) from None
            except QueueFull:
                raise Backpressure("queue full") from None
            except OutcomeUnknown:
                if tried == POST_ATTEMPTS - 1 or loop.time() - begun > POST_PATIENCE_S:
                    self._later(self._withdraw_quietly(item, 0, "log unavailable"))
                    raise
        raise AssertionError("unreachable")

    async def _withdraw(self, item: StartItem, seq: int, reason: str) -> bool:
        """Take a start back; False when a worker was faster and the run is on."""
        services = self._services
        if seq:
            await services.store.starts.withdraw(seq)
        taken_back = await withdraw(
            services.store,
            item.tenant,
            item.run,
            reason,
            writer=services.process,
            ts=services.now_ns(),
        )
        if taken_back:
            await services.store.seals.delete(item.run)
        return taken_back

    async def _withdraw_quietly(self, item: StartItem, seq: int, reason: str) -> None:
        for pause in (0.0, 0.5, 1.0, 2.0, 5.0):
            await asyncio.sleep(pause)
            try:
                if not await self._withdraw(item, seq, reason) and item.reader == "cancel":
                    await cancel_run(self._services, item.tenant, item.run, reason)
                return
            except LogError as cause:
                log.warning("start of %s not withdrawn yet: %s", item.run, cause)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
