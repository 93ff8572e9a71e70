"""One scope of memory: its rows cached in this process, kept exact by compare-and-set.

A read asks the leader for the scope's last sequence and reads what is new. A write appends
behind the last sequence it folded: when another process was faster, it folds and decides again.
Nobody else appends to ``mem.>``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, TypeVar

from msgspec import UNSET

from events import state
from events.log import (
    Log,
    LogError,
    LogFull,
    LogUnavailable,
    Message,
    OutcomeUnknown,
    WrongSequence,
)
from events.state import FutureState, MemoryWritten, StateError
from events.subjects import Subjects
from loomcycle.memory.errors import MemoryRefused, MemoryUnavailable
from loomcycle.memory.rows import Address, ScopeRows
from loomcycle.memory.writes import Decide, Unchanged

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""How long an operation waits for an unavailable log, or loses races, before it gives up."""

READ_PAGE = 2000
"""Messages read at a time while folding; bounds memory and pauses of the event loop."""

EFFECTS_KEPT = 512
"""Effects of other processes that a scope remembers."""

_RETRY_S = 0.1
_LAG_S = 0.005
_FIRST_BACKOFF_S = 0.001
_LONGEST_BACKOFF_S = 0.064

T = TypeVar("T")


class Effect(NamedTuple):
    """A write's identity. ``recovering_since_ns``: it may have happened since then."""

    key: str
    effect_id: str
    recovering_since_ns: int | None = None


class _Done(NamedTuple):
    """An effect that the log has, and when it was stored (the server's clock)."""

    time_ns: int
    result: bytes


class _Deadline:
    """Time left for one operation."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._end = self._time() + PATIENCE_S

    def require(self, reason: str, seconds: float = 0.0) -> None:
        """Raise MemoryUnavailable when less than ``seconds`` are left."""
        if self._time() + seconds > self._end:
            raise MemoryUnavailable(reason)

    async def pause(self, seconds: float, reason: str) -> None:
        """Wait, or raise MemoryUnavailable when the time does not suffice."""
        self.require(reason, seconds)
        await asyncio.sleep(seconds)

    async def patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """A read that is repeated while the log is unavailable."""
        while True:
            self.require("the log did not answer in time")
            try:
                return await operation()
            except (LogUnavailable, OutcomeUnknown) as error:
                await self.pause(_RETRY_S, f"the log is unavailable: {error}")
            except LogError as error:
                raise MemoryUnavailable(f"the log cannot be read: {error}") from None


class MemoryScope:
    """Rows of one (tenant, scope, scope_id). Safe for any number of tasks of one loop."""

    def __init__(
        self, log: Log, subjects: Subjects, address: Address, *, sweep_ns: int | None
    ) -> None:
        self.address = address
        self.rows = ScopeRows(sweep_ns)
        self._log = log
        self._subjects = subjects
        self._sweep_ns = sweep_ns
        self._filter = subjects.memory_scope(*address)
        self._loaded = False
        self._effects: dict[str, _Done] = {}
        """Results of the latest effects of others by id: an owner that lost its run unnoticed
        finds there what the next one did in its place."""
        self._writing = asyncio.Lock()
        self._folding = asyncio.Lock()

    async def catch_up(self) -> ScopeRows:
        """The rows as of now or later; raises MemoryUnavailable."""
        await self._catch_up(_Deadline())
        return self.rows

    async def write(self, effect: Effect, decide: Decide) -> bytes:
        """Append what ``decide`` makes of the newest rows, once; return the result's JSON.

        A write that is found to have happened already answers with its recorded result. Raises
        MemoryRefused, MemoryUnavailable.
        """
        deadline = _Deadline()
        async with self._writing:
            deadline.require("other writes to this scope took too long; nothing was stored")
            fresh = not self._loaded or effect.recovering_since_ns is not None
            if fresh:
                await self._catch_up(deadline)
            if effect.recovering_since_ns is not None:
                done = await self._recorded(effect, effect.recovering_since_ns, deadline)
                if done is not None:
                    return done
            return await self._append(effect, decide, fresh, deadline)

    async def _append(
        self, effect: Effect, decide: Decide, fresh: bool, deadline: _Deadline
    ) -> bytes:
        subject = self._subjects.memory(*self.address, effect.key)
        uncertain = False
        backoff = 0.0
        while True:
            known = self._effects.get(effect.effect_id)
            if known is not None and known.time_ns >= (effect.recovering_since_ns or 0):
                return known.result
            rows, base = self.rows, self.rows.seq
            try:
                decision = decide(rows)
            except MemoryRefused:
                if fresh:
                    raise
                decision = Unchanged(b"")
            if isinstance(decision, Unchanged):
                if fresh:
                    return decision.result
                await self._catch_up(deadline)
                fresh = True
                continue
            try:
                data = state.encode(decision)
                seq = await self._log.append(subject, data, after=base, scope=self._filter)
            except (WrongSequence, OutcomeUnknown) as error:
                uncertain = uncertain or isinstance(error, OutcomeUnknown)
                try:
                    done = await self._catch_up(deadline, after=base, effect_id=effect.effect_id)
                except MemoryUnavailable:
                    if uncertain:
                        raise MemoryUnavailable(_gave_up(error, uncertain)) from None
                    raise
                if done is not None:
                    return done
                fresh = True
                await deadline.pause(backoff, _gave_up(error, uncertain))
                backoff = min(max(2 * backoff, _FIRST_BACKOFF_S), _LONGEST_BACKOFF_S)
            except LogUnavailable as error:
                await deadline.pause(_RETRY_S, _gave_up(error, uncertain))
            except LogError as error:
                raise MemoryUnavailable(_gave_up(error, uncertain)) from None
            else:
                if self.rows is rows and rows.seq == base:
                    rows.apply(seq, decision)
                return _result(decision)

    # --- folding --------------------------------------------------------------------------

    async def _catch_up(
        self, deadline: _Deadline, *, after: int | None = None, effect_id: str = ""
    ) -> bytes | None:
        """Fold up to the leader's end; the result of ``effect_id`` when it came after ``after``."""
        rows, known = self.rows, self.rows.seq
        last = await deadline.patiently(lambda: self._log.last(self._filter))
        end = last.seq if last is not None else 0
        if end == known and after is None:
            self._loaded = True
            return None
        async with self._folding:
            if end < known and self.rows is rows:
                log.warning("memory scope %s was cut back to sequence %d", self._filter, end)
                self.rows = ScopeRows(self._sweep_ns)
                after = 0 if after is not None else None
            done = await self._fold(end, after, effect_id, deadline)
            self._loaded = True
        return done

    async def _fold(
        self, end: int, after: int | None, effect_id: str, deadline: _Deadline
    ) -> bytes | None:
        rows = self.rows
        start = rows.seq if after is None else min(after, rows.seq)
        done = None
        async for message in self._read(self._filter, start, end, deadline):
            event = self._decode(message)
            if event is not None and effect_id and event.effect_id == effect_id:
                done = _result(event)
            if message.seq <= rows.seq:
                continue
            if event is not None and event.effect_id:
                self._remember(event, message.time_ns)
            rows.mark(message.seq, message.time_ns)
            if event is None:
                rows.seq = message.seq
            else:
                rows.apply(message.seq, event)
        return done

    def _remember(self, event: MemoryWritten, time_ns: int) -> None:
        self._effects[event.effect_id] = _Done(time_ns, _result(event))
        if len(self._effects) > EFFECTS_KEPT:
            del self._effects[next(iter(self._effects))]

    async def _recorded(self, effect: Effect, since_ns: int, deadline: _Deadline) -> bytes | None:
        """The result of this effect if the log has it among what it stored since ``since_ns``."""
        subject = self._subjects.memory(*self.address, effect.key)
        last = await deadline.patiently(lambda: self._log.last(subject))
        if last is None or last.time_ns < since_ns:
            return None
        start = self.rows.seq_before(since_ns)
        async for message in self._read(subject, start, last.seq, deadline):
            event = self._decode(message)
            if event is not None and event.effect_id == effect.effect_id:
                return _result(event)
        return None

    async def _read(
        self, subject: str, after: int, end: int, deadline: _Deadline
    ) -> AsyncIterator[Message]:
        """Messages behind ``after`` up to ``end`` at least; waits for a lagging replica."""
        while after < end:
            start = after
            batch = await deadline.patiently(
                lambda start=start: self._log.read(subject, after=start, limit=READ_PAGE)  # type: ignore[misc]
            )
            for message in batch:
                yield message
            if batch:
                after = batch[-1].seq
            else:
                await deadline.pause(_LAG_S, f"a replica of the log lags behind sequence {end}")

    def _decode(self, message: Message) -> MemoryWritten | None:
        try:
            return state.decode(message.data)
        except FutureState as error:
            raise MemoryUnavailable(
                f"sequence {message.seq} was written by a newer version of this server"
                f" ({error.reason}); upgrade this replica"
            ) from None
        except StateError as error:
            log.error("memory message %d is skipped: %s", message.seq, error.reason)
            return None


def _result(event: MemoryWritten) -> bytes:
    return b"" if event.result is UNSET else bytes(event.result)


def _gave_up(error: LogError, uncertain: bool) -> str:
    if uncertain:
        return f"the log did not answer; whether the value was stored is unknown ({error})"
    if isinstance(error, WrongSequence):
        return "other writers were always faster; nothing was stored, try again"
    if isinstance(error, LogFull):
        return f"the log takes no more data; nothing was stored ({error})"
    return f"the log is unavailable; nothing was stored ({error})"
