"""Faults planted on purpose: a simulation that does not find them proves nothing.

Each entry patches the product for as long as the context lasts, with the mistake its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, cast

from events.commit import decode
from events.log import Log, LogError, OutcomeUnknown
from events.memory_store import MemoryWakeQueue
from events.streams import stream_of
from loomcycle.journal import Fenced, RunJournal
from loomcycle.worker import Worker


@contextmanager
def patched(owner: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def fenced_goes_on() -> AbstractContextManager[None]:
    """A worker that was fenced re-reads the tail of the journal and goes on behind it."""
    careful = RunJournal._stored_as

    async def stored_as(self: RunJournal, hash_: str) -> int:
        try:
            return await careful(self, hash_)
        except Fenced:
            last = await self._store.log.last(self._subject)
            assert last is not None
            self.journal_seq = self.run_seq = last.seq
            return 0

    return patched(RunJournal, "_stored_as", stored_as)


@contextmanager
def acked_before_commit() -> Iterator[None]:
    """A start is taken off the queue and its client told, then its first commit is made."""
    start, append = Worker._start, RunJournal._append

    async def started(self: Worker, delivery: Any) -> None:
        delivery.ack()
        await start(self, delivery)

    async def appended(self: RunJournal, data: bytes, hash_: str, closing: bool) -> int:
        commit = decode(data)
        if commit.c > 1:
            return await append(self, data, hash_, closing)
        stream = stream_of(self._store.subjects, self._subject).name
        seq = (await self._store.log.ends([stream]))[stream] + 1
        events = [record.event for record in commit.records()]
        self._observer.committed(seq, commit.header, events, data)  # type: ignore[arg-type]
        return await append(self, data, hash_, closing)

    with patched(Worker, "_start", started), patched(RunJournal, "_append", appended):
        yield


def wakes_by_run_alone() -> AbstractContextManager[None]:
    """A wake is de-duplicated by the id of its run, whatever its cause."""
    careful = MemoryWakeQueue.post

    async def post(self: MemoryWakeQueue, run_id: str, cause: str, data: bytes = b"") -> None:
        await careful(self, run_id, "wake", data)

    return patched(MemoryWakeQueue, "post", post)


def timeout_is_failure() -> AbstractContextManager[None]:
    """A commit whose answer did not come is taken for one that was not stored."""

    careful = RunJournal._append

    async def appended(self: RunJournal, data: bytes, hash_: str, closing: bool) -> int:
        store = self._store
        self._store = replace(store, log=cast(Log, _Impatient(store.log)))
        try:
            return await careful(self, data, hash_, closing)
        finally:
            self._store = store

    return patched(RunJournal, "_append", appended)


class _NotStored(LogError):
    """What an impatient writer believes of a commit without answer."""


class _Impatient:
    def __init__(self, log: Log) -> None:
        self._append = log.append
        self.last, self.read = log.last, log.read

    async def append(self, subject: str, data: bytes, **conditions: Any) -> int:
        try:
            return await self._append(subject, data, **conditions)
        except OutcomeUnknown as cause:
            raise _NotStored(str(cause)) from None


PLANTED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "fenced-goes-on": fenced_goes_on,
    "acked-before-commit": acked_before_commit,
    "wakes-by-run-alone": wakes_by_run_alone,
    "timeout-is-failure": timeout_is_failure,
}
