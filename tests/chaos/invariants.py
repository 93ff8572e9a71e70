"""What must be true of a deployment however often it was killed; every violation in words.

The judge reads the log itself and the clients' notes, and trusts no view.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set

import msgspec

from events import state
from events.commit import Commit, JournalError, Record, decode
from events.frames import live_frame, steer_text
from events.log import EventStore, Message
from events.streams import BY_NAME, RUN_STREAM_NAMES
from events.vocabulary import RunFinished, Text, ToolResult, UserInput
from loomcycle.loading import Plans, opening, session_history
from replay.verify import verify
from tests.bench.sse import Frame
from tests.chains import check_chain
from tests.chaos.agents import counted_by
from tests.chaos.clients import Tracked

TERMINAL_TYPES = ("run.finished", "run.withdrawn")


class Log:
    """Everything a deployment has stored, read once."""

    def __init__(self) -> None:
        self.journals: dict[tuple[str, str], list[Commit]] = defaultdict(list)
        self.memory: dict[str, list[state.MemoryWritten]] = defaultdict(list)
        self.damaged: list[str] = []
        self.ends: dict[str, int] = {}

    @classmethod
    async def read(cls, store: EventStore) -> Log:
        log = cls()
        log.ends = await store.log.ends([*RUN_STREAM_NAMES, "STATE"])
        for stream, end in log.ends.items():
            for message in await _all_of(store, stream, end):
                log._take(store, message)
        return log

    def _take(self, store: EventStore, message: Message) -> None:
        parsed = store.subjects.parse(message.subject)
        if parsed.kind == "journal":
            try:
                commit = decode(message.data, message.seq)
            except JournalError as cause:
                self.damaged.append(str(cause))
                return
            self.journals[parsed.tenant, parsed.run_id].append(commit)
        elif parsed.kind == "memory":
            event = state.decode(message.data)
            if event is not None:
                self.memory[event.scope_id].append(event)

    def unfinished(self) -> list[str]:
        """Runs whose journal has no terminal event yet."""
        return [run for (_, run), commits in self.journals.items() if not _terminals(commits)]

    def resumed(self) -> int:
        """Runs that changed hands at least once."""
        return sum(
            any(event.type == "run.claimed" for c in commits for event in c.header.events)
            for commits in self.journals.values()
        )

    def counted(self) -> dict[str, int]:
        """How many events of each type the journals hold."""
        return Counter(
            event.type
            for commits in self.journals.values()
            for commit in commits
            for event in commit.header.events
        )


async def _all_of(store: EventStore, stream: str, end: int) -> list[Message]:
    """Messages of ``stream`` up to sequence ``end``, which is there unless purged."""
    found: list[Message] = []
    if end < BY_NAME[stream].first:
        return found
    async for batch in store.log.tail(stream):
        found += batch
        if batch[-1].seq >= end:
            break
    return found


async def settle(store: EventStore, limit_s: float = 60.0) -> Log:
    """The log once every journal in it has its terminal event, or ``limit_s`` has passed."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        log = await Log.read(store)
        if not log.unfinished() or asyncio.get_running_loop().time() > deadline:
            return log
        await asyncio.sleep(0.25)


async def violations(
    store: EventStore, log: Log, runs: Sequence[Tracked], *, long_outage: bool = False
) -> list[str]:
    """Everything that is wrong; empty when all promises were kept.

    After a ``long_outage`` a tool may have given up, as long as it told its model so.
    """
    found = [*log.damaged]
    found += terminal_events(log)
    found += await _journals(store, log)
    found += promises(log, runs)
    found += counters(log, runs, told_errors=long_outage)
    found += streams(log, runs)
    return found


def _terminals(commits: Iterable[Commit]) -> list[tuple[int, str]]:
    return [
        (commit.c, event.type)
        for commit in commits
        for event in commit.header.events
        if event.type in TERMINAL_TYPES
    ]


def terminal_events(log: Log) -> list[str]:
    found = []
    for (_, run), commits in log.journals.items():
        ends = _terminals(commits)
        if len(ends) != 1 or ends[0][0] != commits[-1].c:
            found.append(f"{run}: terminal events {ends} in {len(commits)} commits")
    return found


async def _journals(store: EventStore, log: Log) -> list[str]:
    """Chain and proof of every journal."""
    plans, found = Plans(store), []
    for (tenant, run), commits in log.journals.items():
        try:
            check_chain(run, commits)
            started = opening(commits[0])
            if started is None:
                continue
            history = []
            if started.continues and started.previous is not None:
                history = await session_history(store, plans, tenant, started.previous)
            report = verify(await plans.get(started.plan), commits, history)
        except JournalError as cause:
            found.append(str(cause))
            continue
        if not report.ok:
            found.append(f"{run}: not proven: {report.difference}")
    return found


def promises(log: Log, runs: Sequence[Tracked]) -> list[str]:
    """Every run that a client was promised exists and was completed."""
    found = []
    for run in runs:
        commits = log.journals.get(("", run.run_id))
        if commits is None:
            found.append(f"{run.run_id}: accepted, but the log holds nothing of it")
            continue
        last = commits[-1].records()[-1].event
        if not isinstance(last, RunFinished) or last.status != "completed":
            found.append(f"{run.run_id} ({run.agent}): ended as {last!r}")
    return found


def counters(log: Log, runs: Sequence[Tracked], *, told_errors: bool = False) -> list[str]:
    """Each counter was incremented exactly as often as its run asked for.

    With ``told_errors`` a call whose result is an error may have happened or not. Hooks choose
    where their runs count: ``loop_invariants.hooked_calls`` looks after those.
    """
    found = []
    for run in runs:
        if run.agent == "hooked":
            continue
        events = log.memory.get(run.user_id, [])
        values = [msgspec.json.decode(bytes(event.value)) for event in events if event.value]
        effects = Counter(event.effect_id for event in events)
        most = counted_by(run.agent, run.width)
        least = most - (_errors(log.journals.get(("", run.run_id), [])) if told_errors else 0)
        whole = values == list(range(1, len(values) + 1)) and least <= len(values) <= most
        if not whole or any(n > 1 for n in effects.values()):
            found.append(f"{run.run_id} ({run.agent}): counted {values}, wanted 1 to {most}")
    return found


def _errors(commits: Iterable[Commit]) -> int:
    events = (record.event for record in _records(commits))
    return sum(isinstance(event, ToolResult) and event.is_error for event in events)


def streams(log: Log, runs: Sequence[Tracked]) -> list[str]:
    """Each client's stream is the journal's public frames, whole and with nothing doubled."""
    found = []
    for run in runs:
        if run.lost or not run.ended:
            found.append(f"{run.run_id}: stream not complete: {run.lost or 'no terminal frame'}")
            continue
        commits = log.journals.get(("", run.run_id), [])
        wanted = _as_stored(commits)
        got = _as_seen(run.seen, _opening_input(commits))
        if wanted != got:
            at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), -1)
            place = f"item {at}: wanted {wanted[at]}, got {got[at]}" if at >= 0 else "length"
            found.append(
                f"{run.run_id} ({run.agent}, {run.reconnects} reconnects): stream differs at"
                f" {place} ({len(wanted)} items stored, {len(got)} seen)"
            )
    return found


def _as_stored(commits: Iterable[Commit]) -> list[tuple[str, str]]:
    """(id, data) of durable frames; a turn's text as ("text", the whole text), input of a person
    as (id, its text)."""
    items: list[tuple[str, str]] = []
    for record in _records(commits):
        event = record.event
        if isinstance(event, Text):
            items.append(("text", event.text))
        elif isinstance(event, UserInput) and event.inbox:
            items.append((str(record.seq), steer_text(event)))
        elif (frame := live_frame(record)) is not None:
            items.append((str(frame.seq), frame.data.decode()))
    return [item for item in items if item[1]]


def _opening_input(commits: Iterable[Commit]) -> set[str]:
    """Ids of the input that a run began with: a later reader is told of it, its client is not."""
    return {
        str(record.seq)
        for record in _records(commits)
        if isinstance(record.event, UserInput) and not record.event.inbox
    }


def _records(commits: Iterable[Commit]) -> Iterable[Record]:
    return (record for commit in commits for record in commit.records())


def _as_seen(frames: Iterable[Frame], opening: Set[str]) -> list[tuple[str, str]]:
    """The same of what a client saw: pieces of a text joined, repeated attempts dropped."""
    items: list[tuple[str, str]] = []
    text = ""
    for frame in frames:
        if frame.event == "text":
            text += frame.json()["text"]
            continue
        if frame.event == "text_reset":
            text = ""
            continue
        if text:
            items.append(("text", text))
            text = ""
        if frame.event != "steer":
            items.append((frame.id, frame.data.decode()))
        elif frame.id not in opening:
            items.append((frame.id, frame.json()["user_input"]["text"]))
    return items


def must_hold(found: Sequence[str], show: Callable[[str], None]) -> bool:
    """Print violations, the first twenty in full; True when there are none."""
    for text in found[:20]:
        show(f"VIOLATED: {text}")
    if len(found) > 20:
        show(f"… and {len(found) - 20} more")
    return not found
