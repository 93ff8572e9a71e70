"""Creates the streams that a server lacks: at connect, and again after a server came back.

A stream that exists keeps its settings, so several processes may do this at once and an
operator's own ones survive; only subjects that a newer version needs are added to it, and the
bounds of the start queue are set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from events.log import LogError
from events.nats_api import Api
from events.nats_link import Link
from events.streams import STARTS, STREAMS, StreamSpec

log = logging.getLogger(__name__)

_RETRY_S = 0.05
_RETRY_LIMIT_S = 2.0


class Provision:
    """Knows which streams must exist and tells listeners when they do again."""

    def __init__(self, link: Link, prefix: str, replicas: int, ack_wait_s: float) -> None:
        self.ack_wait_s = ack_wait_s
        self._api = Api(link)
        self._link = link
        self._prefix = prefix
        self._replicas = replicas
        self._limits = (0, 0)
        self._task: asyncio.Task[None] | None = None
        self._restoring = asyncio.Lock()
        self.ready: list[Callable[[], None]] = []
        """Called after a reconnect once all streams exist."""
        link.reconnected.append(self._again)

    async def ensure(self) -> None:
        """Create what is missing; raises LogError."""
        await self._create(STREAMS)

    async def restore_queues(self) -> None:
        """Create what is kept in memory only, should somebody have deleted it: nothing in it is
        missed. (A durable stream that vanishes is a loss, and never papered over.)

        Raises LogError.
        """
        async with self._restoring:
            await self._create([spec for spec in STREAMS if spec.storage == "memory"])

    async def _create(self, specs: Sequence[StreamSpec]) -> None:
        present = await self._api.configs(f"{self._prefix}.>")
        await self._widen(present, specs)
        missing = [spec for spec in specs if spec.stream(self._prefix) not in present]
        await asyncio.gather(
            *(
                self._api.create_stream(
                    spec.config(self._prefix, self._replicas)
                    if spec is not STARTS
                    else self._starts()
                )
                for spec in missing
            )
        )

    async def _widen(self, present: dict[str, dict[str, Any]], specs: Sequence[StreamSpec]) -> None:
        """Let streams of an older version hold the subjects of this one."""
        for spec in specs:
            config = present.get(spec.stream(self._prefix))
            needed = spec.config(self._prefix, self._replicas)["subjects"]
            if config is None or set(needed) <= set(config["subjects"]):
                continue
            subjects = sorted({*config["subjects"], *needed})
            log.info("stream %s holds more subjects from now on", config["name"])
            await self._api.update_stream({**config, "subjects": subjects})

    async def limit_starts(self, total: int, per_user: int) -> None:
        """Bound the start queue; the bounds are kept for a queue that must be created again."""
        self._limits = (total, per_user)
        await self._api.update_stream(self._starts())

    def _starts(self) -> dict[str, object]:
        total, per_user = self._limits
        return STARTS.config(self._prefix, self._replicas, total=total, per_user=per_user)

    def _again(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_ready())

    async def _until_ready(self) -> None:
        delay = _RETRY_S
        while not self._link.is_closed:
            try:
                await self.ensure()
            except LogError as error:
                log.info("streams are not ready yet: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_LIMIT_S)
                continue
            for callback in list(self.ready):
                callback()
            return

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
