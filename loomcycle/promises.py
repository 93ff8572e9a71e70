"""From a start to an accepted run: begin it here or queue it, await its first commit, or undo it.

A start counts only when its journal's first commit is on disk (kernel.md section 4). Whatever
ends the wait without one leaves a tombstone, so that the run cannot begin behind the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Struct

from events.log import (
    LogError,
    LogFull,
    LogUnavailable,
    OutcomeUnknown,
    QueueFull,
    UserCapReached,
)
from loomcycle.background import Background
from loomcycle.commands.cancel import cancel_run
from loomcycle.deliveries import Claim
from loomcycle.errors import Backpressure, UserQuotaExhausted
from loomcycle.feed import FeedFrame, RunFeed
from loomcycle.journal import withdraw
from loomcycle.ownership import CREDENTIALS
from loomcycle.readers import DISCONNECTED
from loomcycle.services import Services
from loomcycle.starts import Start, StartItem, pack
from loomcycle.worker import Worker

log = logging.getLogger("loomcycle.commands")

QUEUE_CHECK_S = 1.0
"""How often a waiting start is looked up in the queue, should the queue have been lost."""

QUEUE_CHECKS_PER_S = 250
"""Looked up by all waiting starts together: with thousands of them each is looked up less often,
so that the work of waiting does not grow with the queue."""

WITHDRAW_S = (0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts to withdraw a start while the log is away; the last one repeats."""

POST_ATTEMPTS = 3
POST_PATIENCE_S = 2.0
"""A queue that was silent for so long is not asked again: the client gets its 503."""

_encode = msgspec.json.Encoder().encode


@dataclass
class _Place:
    """Where a start stands: ``seq`` on the queue (0: not there), posted so many times.

    ``sent``: it may be there. ``undone``: its tombstone is written.
    """

    start: Start
    sealed: bool
    claim: Claim | None = None
    sent: bool = False
    undone: bool = False
    data: bytes = b""
    seq: int = 0
    posts: int = 0


class Limits(Struct, frozen=True, kw_only=True):
    """Of the configuration. ``queue_depth``: starts that may wait. ``user_cap``: 0 = none."""

    queue_timeout_s: float
    queue_depth: int
    user_cap: int


class Promises:
    """``worker`` begins a start at once when it has room; the queue is for all others."""

    def __init__(
        self, services: Services, worker: Worker, limits: Limits, alone: Callable[[], bool]
    ) -> None:
        self._services = services
        self._alone = alone
        self._worker = worker
        self._limits = limits
        self._queued: set[str] = set()
        self._background = Background()

    async def close(self) -> None:
        """Let withdrawals under way finish (bounded)."""
        await self._background.ended(within_s=2.0)
        await self._background.cancel()

    @property
    def waiting(self) -> int:
        """Starts of this process' clients that nobody has begun."""
        return sum(not self._worker.owns(run) for run in self._queued)

    async def seal(self, item: StartItem, secrets: dict[str, str]) -> None:
        """Seal the credentials of ``item``. Raises LogError; the start is then taken back."""
        try:
            await self._services.store.seals.put(item.run, CREDENTIALS, _encode(secrets))
        except LogError:
            self._background.add(self._withdraw_quietly(item, 0, "log unavailable"))
            raise

    async def obtain(self, start: Start, feed: RunFeed, *, sealed: bool) -> list[FeedFrame]:
        """Have ``start`` begun, here or through the queue, and wait for its first commit's frames.

        ``sealed``: seals of the run exist already. Raises CommandError, LogError.
        """
        item = start.item
        place = _Place(start, sealed)
        if self._may_claim(item):
            place.claim = self._worker.claim(start, partial(_give_up, feed))
        try:
            if place.claim is None:
                await self._queue(place, feed)
            return await self._first_frames(place, feed)
        except asyncio.CancelledError:
            self._take_back(place, DISCONNECTED)
            raise
        except LogError:
            self._take_back(place, "log unavailable")
            raise
        except (Backpressure, UserQuotaExhausted):
            self._take_back(place, "queue timeout")
            raise
        finally:
            self._queued.discard(item.run)

    def _may_claim(self, item: StartItem) -> bool:
        """The cap of a user counts items of the queue: a start that it counts goes through it."""
        return not (self._limits.user_cap and item.user_id)

    async def _first_frames(self, place: _Place, feed: RunFeed) -> list[FeedFrame]:
        loop = asyncio.get_running_loop()
        item = place.start.item
        deadline = loop.time() + self._limits.queue_timeout_s
        while True:
            frames = await feed.next(min(self._check_s(), max(0.0, deadline - loop.time())))
            if frames or feed.ended or feed.started is not None:
                return frames
            if loop.time() >= deadline:
                if await self._withdraw(item, place.seq, "queue timeout"):
                    place.undone = True
                    raise Backpressure("queue timeout")
                deadline += QUEUE_CHECK_S
            elif not await self._in_good_hands(place):
                await feed.look_elsewhere()
                await self._post(place)

    def _check_s(self) -> float:
        return max(QUEUE_CHECK_S, len(self._queued) / QUEUE_CHECKS_PER_S)

    async def _in_good_hands(self, place: _Place) -> bool:
        if place.seq:
            return await self._services.store.starts.holds(place.seq)
        return self._worker.owns(place.start.item.run)

    async def _queue(self, place: _Place, feed: RunFeed) -> None:
        await feed.look_elsewhere()
        if self._is_full():
            raise Backpressure("queue full")
        self._queued.add(place.start.item.run)
        await self._post(place)

    def _is_full(self) -> bool:
        """Whether as many starts wait here as may; the queue's own bound holds for a cluster.

        (That one counts items, and runs that were claimed without the queue are none.)
        """
        if not self._alone():
            return False
        bound = self._limits.queue_depth + self._worker.free
        return len(self._queued) >= bound and self.waiting >= bound

    async def _post(self, place: _Place) -> None:
        """Put the start on the queue, or on it once more."""
        item, attempt = place.start.item, place.posts
        if not place.data:
            place.data, large = await pack(place.start, self._services.store.seals)
            place.sealed = place.sealed or large
        starts = self._services.store.starts
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for tried in range(POST_ATTEMPTS):
            before, place.sent = place.sent, True
            try:
                place.seq = await starts.post(
                    item.tenant, item.user_id, item.run, place.data, attempt=attempt
                )
            except LogUnavailable:
                place.sent = before
                raise
            except UserCapReached:
                place.sent = before
                if attempt:
                    raise Backpressure("queue timeout") from None
                raise UserQuotaExhausted(item.user_id, self._limits.user_cap) from None
            except QueueFull:
                place.sent = before
                raise Backpressure("queue full") from None
            except OutcomeUnknown:
                if tried == POST_ATTEMPTS - 1 or loop.time() - begun > POST_PATIENCE_S:
                    raise
            else:
                place.posts += 1
                return
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

    def _take_back(self, place: _Place, reason: str) -> None:
        """Its caller is told that the start will not run: see to it that it does not."""
        if place.undone:
            return
        item = place.start.item
        if place.claim is not None:
            place.claim.dropped = True
        if place.sent or place.claim is not None:
            self._background.add(self._withdraw_quietly(item, place.seq, reason))
        elif place.sealed:
            self._background.add(self._forget_seals(item.run))

    async def _forget_seals(self, run_id: str) -> None:
        """Of a start that never left; those that stay are found by their age."""
        with contextlib.suppress(LogError):
            await self._services.store.seals.delete(run_id)

    async def _withdraw_quietly(self, item: StartItem, seq: int, reason: str) -> None:
        """Withdraw, or cancel what began after all; repeated until the log answers.

        A run that goes on without readers outlives a client that left, not one that was refused.
        """
        unwanted = item.reader == "cancel" or reason != DISCONNECTED
        for attempt in itertools.count():
            try:
                if not await self._withdraw(item, seq, reason) and unwanted:
                    await cancel_run(self._services, item.tenant, item.run, reason)
                return
            except LogError as cause:
                if not attempt:
                    log.warning("start of %s not withdrawn yet: %s", item.run, cause)
            await asyncio.sleep(WITHDRAW_S[min(attempt, len(WITHDRAW_S) - 1)])


def _give_up(feed: RunFeed, cause: LogError) -> None:
    """A claim that failed is queued in a moment; a full log is told to the client at once."""
    if isinstance(cause, LogFull):
        feed.fail(cause)
