"""What the views know of runs, folded from the streams as each commit is stored.

Stands in for ``projections/`` (tested elsewhere) behind the same questions; also the book in
which the checks look things up at the end. It reads the server's memory and is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field

from events.commit import Commit, decode
from events.log import EventStore
from events.memory_leases import loop_time
from events.memory_store import MemoryServer
from events.streams import RUN_STREAM_NAMES
from events.vocabulary import (
    ChildFinished,
    Event,
    RunFinished,
    RunParked,
    RunStarted,
    RunWithdrawn,
)
from loomcycle.auth import Principal
from projections.rows import Due, Session


@dataclass
class RunRow:
    """``born`` and ``ended`` count stored commits of all runs; ``ended`` 0 means running.

    ``born_at`` and ``ended_at`` are the loop's time of these commits.
    """

    id: str
    tenant: str
    started: RunStarted | None
    owner: str
    born: int
    last_commit: int = 0
    last_commit_ns: int = 0
    last_seq: int = 0
    ended: int = 0
    born_at: float = 0.0
    ended_at: float = 0.0
    status: str = ""
    error: str = ""
    parked: RunParked | None = None
    inbox_seq: int = 0
    children_told: int = 0
    commits: list[Commit] = field(default_factory=list)

    def events(self) -> list[Event]:
        return [r.event for c in self.commits for r in c.records() if isinstance(r.event, Event)]


class Index:
    """All runs of the server. ``on_commit`` is told of each commit and the owner before it
    (none, when it had let the run go)."""

    def __init__(self, server: MemoryServer, on_commit: Callable[[RunRow, Commit, str], None]):
        self.runs: dict[str, RunRow] = {}
        self._server = server
        self._on_commit = on_commit
        self._seen = dict.fromkeys(RUN_STREAM_NAMES, 0)
        self._stored = 0
        self._inbox_seqs: dict[str, int] = {}
        for name in RUN_STREAM_NAMES:
            self._seen[name] = server.stream(name).last_seq
            server.stream(name).listeners.append(self._fold)

    def _fold(self) -> None:
        for name in RUN_STREAM_NAMES:
            stream = self._server.stream(name)
            if stream.last_seq <= self._seen[name]:
                continue
            for message in stream.after(self._seen[name], 1000):
                self._seen[name] = message.seq
                where = self._server.subjects.parse(message.subject)
                if message.subject.endswith(".journal"):
                    self._commit(where.tenant, decode(message.data, message.seq))
                elif message.subject.endswith(".inbox"):
                    self._inbox_seqs[where.run_id] = message.seq
                    if where.run_id in self.runs:
                        self.runs[where.run_id].inbox_seq = message.seq

    def _commit(self, tenant: str, commit: Commit) -> None:
        self._stored += 1
        row = self.runs.get(commit.run)
        before = row.owner if row is not None else ""
        if row is not None and row.parked is not None:
            before = ""
        if row is None:
            first = commit.records()[0].event
            started = first if isinstance(first, RunStarted) else None
            row = RunRow(commit.run, tenant, started, commit.header.writer, self._stored)
            row.born_at = loop_time()
            row.inbox_seq = self._inbox_seqs.get(commit.run, 0)
            self.runs[commit.run] = row
        row.commits.append(commit)
        row.owner = commit.header.writer
        row.last_commit, row.last_commit_ns = commit.c, commit.header.events[0].ts
        row.last_seq = commit.seq
        row.parked = None
        for record in commit.records():
            match record.event:
                case RunParked() as parked:
                    row.parked = parked
                case ChildFinished():
                    row.children_told += 1
                case RunFinished(status=status, error=error):
                    row.ended, row.status, row.error = self._stored, status, error
                    row.ended_at = loop_time()
                case RunWithdrawn(reason=reason):
                    row.ended, row.status, row.error = self._stored, "withdrawn", reason
                    row.ended_at = loop_time()
        self._on_commit(row, commit, before)

    def children(self, run_id: str) -> list[RunRow]:
        """Runs that ``run_id`` has spawned."""
        return [
            row
            for row in self.runs.values()
            if row.started is not None
            and row.started.parent is not None
            and row.started.parent.run == run_id
        ]


def _due(row: RunRow, cause: str, mark: int) -> Due:
    return Due(row.id, row.tenant, row.last_commit, row.last_seq, cause, mark)


class SimLookups:
    """The questions that commands, the sweeper and the gateway ask; each reads the log's ends."""

    def __init__(self, store: EventStore, index: Index) -> None:
        self._store, self._index = store, index

    def check_log(self) -> None:
        """The memory server loses nothing unnoticed."""

    async def running(self) -> list[RunRow]:
        await self._store.log.ends(RUN_STREAM_NAMES)
        rows = self._index.runs.values()
        return [copy(row) for row in rows if not row.ended and row.parked is None]

    async def overdue(self, now_ns: int, *, paused: bool) -> tuple[list[Due], list[Due]]:
        await self._store.log.ends(RUN_STREAM_NAMES)
        rows = [row for row in self._index.runs.values() if not row.ended]
        due = [item for row in rows if row.parked for item in self._causes(row, row.parked, now_ns)]
        abandoned = [_due(row, "parent", 0) for row in rows if self._is_abandoned(row)]
        return due, abandoned

    def _causes(self, row: RunRow, parked: RunParked, now_ns: int) -> Iterator[Due]:
        if row.inbox_seq > row.last_seq:
            yield _due(row, "inbox", row.inbox_seq)
        if 0 < parked.until_ns <= now_ns:
            yield _due(row, "time", parked.until_ns)
        ended = sum(child.ended > 0 for child in self._index.children(row.id))
        if parked.reason == "calls" and ended > row.children_told:
            yield _due(row, "children", ended)

    def _is_abandoned(self, row: RunRow) -> bool:
        parent = row.started.parent if row.started is not None else None
        return parent is not None and self._index.runs[parent.run].ended > 0

    async def run(self, principal: Principal, run_id: str) -> RunRow | None:
        await self._store.log.ends(RUN_STREAM_NAMES[:1])
        row = self._index.runs.get(run_id)
        return row if row is not None and row.started is not None else None

    async def session(self, principal: Principal, session_id: str) -> Session | None:
        await self._store.log.ends(RUN_STREAM_NAMES[:1])
        for row in self._index.runs.values():
            facts = row.started
            if facts is not None and facts.session == session_id:
                return Session(session_id, row.tenant, facts.agent, facts.user_id, 0)
        return None
