"""Pausing and resuming the whole runtime: the words on the control subject, and the barrier.

Specification: snapshot.md sections 1 to 6, http-admin.md section 10. Each process parks its own
runs (``loomcycle/pause.py``) and says so in its lease; here they are only waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from events.control import PauseChanged, RuntimeState, encode, pause_subject
from events.log import LogError, OutcomeUnknown, WrongSequence
from loomcycle.cluster import Cluster, Member
from loomcycle.errors import AlreadyPausing, NotPaused, PauseFailed
from loomcycle.lookups import Lookups
from loomcycle.pause import Pause, Word, read_word
from loomcycle.services import Services
from projections.framework import ViewUnavailable

log = logging.getLogger("loomcycle.pause")

MAX_TIMEOUT_S = 300.0
POLL_S = 0.02
FORCED_S = 2.0
"""After the time is over: how long runs whose calls were given up may take to park."""

HEARD_S = 2.0
"""How long is waited until every process has heard a word."""

MARGIN_S = 10.0
"""After its time and this long, a pausing runtime is paused even if nobody said so."""

NAMED_RUNS = 50
"""Runs named in a warning at most."""


class Paused(Struct, frozen=True, kw_only=True):
    duration_ms: int
    force_cancelled: int
    paused_runs: int
    warnings: tuple[str, ...] = ()


class Resumed(Struct, frozen=True, kw_only=True):
    resumed_runs: int
    warnings: tuple[str, ...] = ()


class PauseCommands:
    """``default_timeout_s``: the time of a pause that names none."""

    def __init__(
        self,
        services: Services,
        pause: Pause,
        cluster: Cluster,
        lookups: Lookups,
        *,
        wake_parked: Callable[[], None],
        default_timeout_s: float,
    ) -> None:
        self._services = services
        self._store = services.store
        self._subject = pause_subject(self._store.subjects)
        self._pause = pause
        self._cluster = cluster
        self._lookups = lookups
        self._wake_parked = wake_parked
        self._default_timeout_s = default_timeout_s
        self._draining: set[asyncio.Task[Paused]] = set()

    async def close(self) -> None:
        """Leave pauses under way: their time runs out by itself."""
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)

    async def state(self) -> tuple[RuntimeState, int]:
        """The state, and how many runs are parked while it is not ``running``.

        Raises PauseFailed.
        """
        try:
            state = (await read_word(self._store)).state(self._services.now_ns())
            return state, 0 if state == "running" else await self._lookups.parked()
        except (LogError, ViewUnavailable) as cause:
            raise PauseFailed("state_failed", cause) from None

    async def pause(self, timeout_ms: int = 0) -> Paused:
        """Pause, and wait until all runs are parked or the time is over.

        It is finished also when the caller is cancelled. Raises AlreadyPausing, PauseFailed.
        """
        asked_s = timeout_ms / 1000 if timeout_ms > 0 else self._default_timeout_s
        timeout_s = min(asked_s, MAX_TIMEOUT_S)
        try:
            word = await read_word(self._store)
            now = self._services.now_ns()
            if word.state(now) != "running":
                raise AlreadyPausing(word.state(now))
            until_ns = now + int((timeout_s + MARGIN_S) * 1e9)
            seq = await self._say(word, "pausing", until_ns)
        except LogError as cause:
            raise PauseFailed("pause_failed", cause) from None
        if not seq:
            raise AlreadyPausing("pausing")
        left = asyncio.Event()
        task = asyncio.create_task(self._drain(seq, timeout_s, left))
        self._draining.add(task)
        task.add_done_callback(self._finished)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            left.set()
            raise
        except LogError as cause:
            raise PauseFailed("pause_failed", cause) from None

    async def resume(self) -> Resumed:
        """Let everything go on. Raises NotPaused, PauseFailed."""
        try:
            word = await read_word(self._store)
            state = word.state(self._services.now_ns())
            if state != "paused":
                raise NotPaused(state)
            parked = await self._lookups.parked()
            seq = await self._say(word, "running")
            if not seq:
                raise NotPaused("running")
            warnings: tuple[str, ...] = ()
            if not await self._until(seq, HEARD_S, lambda _: True):
                warnings = ("not every replica has confirmed the resume yet",)
        except (LogError, ViewUnavailable) as cause:
            raise PauseFailed("resume_failed", cause) from None
        self._wake_parked()
        return Resumed(resumed_runs=parked, warnings=warnings)

    async def _drain(self, seq: int, timeout_s: float, left: asyncio.Event) -> Paused:
        """From ``pausing`` at ``seq`` to ``paused``. Raises LogError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        parked = await self._until(seq, timeout_s, _is_idle, left)
        pausing = await read_word(self._store)
        paused = 0
        if pausing.seq == seq:
            paused = await self._say(pausing, "paused")
        warnings: list[str] = []
        if left.is_set():
            warnings.append("the request was cancelled before all runs were parked")
        members = (await self._cluster.look()).values()
        if not parked and paused:
            await self._until(paused, HEARD_S, lambda _: True)
            members = (await self._cluster.look()).values()
            if any(member.forced for member in members):
                parked = await self._until(paused, FORCED_S, _is_idle)
                members = (await self._cluster.look()).values()
        count, stuck = await self._counts(parked)
        return Paused(
            duration_ms=int((loop.time() - began) * 1000),
            force_cancelled=sum(member.forced for member in members if member.control >= seq),
            paused_runs=count,
            warnings=(*warnings, *stuck),
        )

    async def _counts(self, parked: bool) -> tuple[int, list[str]]:
        """How many runs are parked, and a warning that names those that are not."""
        try:
            count = await self._lookups.parked()
            running = [] if parked else [run.id for run in await self._lookups.running()]
        except ViewUnavailable as cause:
            return 0, [f"runs could not be counted: {cause}"]
        if not running:
            return count, []
        names = ", ".join(running[:NAMED_RUNS]) + (", …" if len(running) > NAMED_RUNS else "")
        text = f"runs that did not park in time and will at their next boundary ({len(running)}): "
        return count, [text + names]

    async def _say(self, before: Word, state: RuntimeState, until_ns: int = 0) -> int:
        """Append a word behind ``before``; its sequence, 0 when another word was said first.

        Raises LogError.
        """
        services = self._services
        word = PauseChanged(
            id=services.new_hex(),
            state=state,
            at_ns=services.now_ns(),
            until_ns=until_ns,
            by=services.process,
        )
        data = encode(word)
        try:
            return await self._store.log.append(self._subject, data, after=before.seq)
        except (OutcomeUnknown, WrongSequence):
            last = await self._store.log.last(self._subject)
            if last is not None and last.data == data:
                return last.seq
            if last is not None and last.seq > before.seq:
                return 0
            raise

    async def _until(
        self,
        seq: int,
        timeout_s: float,
        reached: Callable[[Member], bool],
        left: asyncio.Event | None = None,
    ) -> bool:
        """Wait until every live process has heard the word at ``seq`` and has ``reached`` it.

        False when the time is over, or the caller left, before that.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while left is None or not left.is_set():
            members = await self._cluster.look()
            if all(m.control >= seq and reached(m) for m in members.values()):
                return True
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return False

    def _finished(self, task: asyncio.Task[Paused]) -> None:
        self._draining.discard(task)
        if not task.cancelled() and (cause := task.exception()) is not None:
            log.error("pausing did not come to its end: %s", cause)


def _is_idle(member: Member) -> bool:
    return member.unparked == 0
