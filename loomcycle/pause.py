"""What this process knows of the runtime's pause, and what it does about it.

The control subject is followed, not asked: ``paused`` costs nothing and is right within
milliseconds of the word that changed it. Who may say that word is ``commands/pause.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from events.control import PauseChanged, RuntimeState, decode, pause_subject
from events.log import EventStore, LogError, Message
from events.streams import DEFS
from loomcycle.cluster import Cluster, Member

log = logging.getLogger("loomcycle.pause")

LOOK_S = 0.02
"""How often a process that drains looks whether its last run has parked."""

RETRY_S = 0.5


class Word(NamedTuple):
    """The word that holds, and the stream sequence it stands at (0: none was ever said)."""

    seq: int
    changed: PauseChanged | None

    def state(self, now_ns: int) -> RuntimeState:
        """What it means now: nobody drains for ever."""
        if self.changed is None:
            return "running"
        if self.changed.state == "pausing" and now_ns > self.changed.until_ns:
            return "paused"
        return self.changed.state


class Runs(Protocol):
    """The runs that this process advances: its worker."""

    @property
    def unparked(self) -> int: ...

    def pause(self, *, force: bool) -> int:
        """Let all runs park as soon as may be; how many calls were given up for it."""
        ...

    def resume(self) -> None: ...


async def read_word(store: EventStore) -> Word:
    """The word that holds now, from the leader. Raises LogError."""
    return _word(await store.log.last(pause_subject(store.subjects)))


class Pause:
    """Follows the control subject. ``runs`` is set before :meth:`start`."""

    def __init__(self, store: EventStore, cluster: Cluster, *, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._cluster = cluster
        self._now_ns = now_ns
        self._subject = pause_subject(store.subjects)
        self._word = Word(0, None)
        self._forced = 0
        self._end = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self.runs: Runs | None = None
        self.resumed: Callable[[], None] = lambda: None
        """Called when the runtime runs again."""
        cluster.report = self._report

    @property
    def seq(self) -> int:
        return self._word.seq

    def paused(self) -> bool:
        """Whether runs park and starts wait or are refused: pausing counts."""
        return self._word.changed is not None and self._word.changed.state != "running"

    async def open(self) -> None:
        """Learn what holds, before anything is taken up. Raises LogError."""
        self._end = (await self._store.log.ends([DEFS.name]))[DEFS.name]
        self._word = await read_word(self._store)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(), name="pause")]
        if self.paused():
            self._drain()

    async def stop(self) -> None:
        tasks = [*self._tasks, *([self._draining] if self._draining is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def reaches(self, seq: int) -> None:
        """Wait until this process knows the word at ``seq``."""
        while self._word.seq < seq:
            self._heard.clear()
            await self._heard.wait()

    async def _follow(self) -> None:
        while True:
            try:
                async for messages in self._store.log.tail(DEFS.name, after=self._end):
                    for message in messages:
                        if message.subject == self._subject:
                            self._hear(message)
                    self._end = messages[-1].seq
            except LogError as cause:
                log.info("the control subject is followed again: %s", cause)
            await asyncio.sleep(RETRY_S)

    def _hear(self, message: Message) -> None:
        word = _word(message)
        if word.seq <= self._word.seq or word.changed is None:
            return
        was, self._word = self.paused(), word
        log.info("the runtime is %s", word.changed.state)
        if self.paused():
            self._forced = 0 if not was else self._forced
            self._drain()
        elif self.runs is not None:
            self.runs.resume()
            self.resumed()
        self._cluster.announce()
        self._heard.set()

    def _drain(self) -> None:
        """Let the runs of this process park, and tell when the last one has."""
        if self.runs is None:
            return
        changed = self._word.changed
        force = changed is not None and changed.state == "paused"
        self._forced += self.runs.pause(force=force)
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._watch(self.runs), name="draining")

    async def _watch(self, runs: Runs) -> None:
        told = -1
        while self.paused() and told != 0:
            if runs.unparked != told:
                told = runs.unparked
                self._cluster.announce()
            if told:
                await asyncio.sleep(LOOK_S)

    def _report(self, member: Member) -> Member:
        unparked = self.runs.unparked if self.runs is not None and self.paused() else 0
        return replace(member, control=self._word.seq, unparked=unparked, forced=self._forced)


def _word(message: Message | None) -> Word:
    if message is None:
        return Word(0, None)
    try:
        return Word(message.seq, decode(message.data))
    except msgspec.DecodeError as cause:
        log.error("sequence %d of the control subject is not readable: %s", message.seq, cause)
        return Word(message.seq, None)
