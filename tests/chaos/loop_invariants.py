"""What must be true of children, questions, inputs and hooks, however often was killed.

Beside ``invariants.py``, by the same rules: the log and the notes of people, no view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from events.commit import Commit, Record
from events.vocabulary import (
    CallPrepared,
    ChildFinished,
    ChildStarted,
    Event,
    InterruptClosed,
    InterruptionPending,
    RunFinished,
    RunStarted,
    ToolCall,
    UserInput,
)
from tests.chaos.agents import LEVELS, QUESTIONS
from tests.chaos.clients import Tracked
from tests.chaos.invariants import Log
from tests.chaos.people import Notes

E = TypeVar("E", bound=Event)


class _Counting(Struct):
    key: str


def loop_violations(log: Log, runs: Sequence[Tracked], notes: Notes) -> list[str]:
    """Everything that is wrong; empty when all promises were kept."""
    return [
        *children(log),
        *trees(log, runs),
        *questions(log, runs, notes),
        *inputs(log, runs, notes),
        *hooked_calls(log, runs),
    ]


def records(commits: Sequence[Commit]) -> Iterator[Record]:
    return (record for commit in commits for record in commit.records())


def of_type(commits: Sequence[Commit], kind: type[E]) -> list[E]:
    return [r.event for r in records(commits) if isinstance(r.event, kind)]


def children(log: Log) -> list[str]:
    """Each child belongs to one entry of one call, was started once and has ended once for it."""
    found = []
    born: Counter[tuple[str, int, int]] = Counter()
    for (tenant, run), commits in log.journals.items():
        for started in of_type(commits, RunStarted):
            if started.parent is None:
                continue
            parent = started.parent
            born[parent.run, parent.n, parent.index] += 1
            named = of_type(log.journals.get((tenant, parent.run), []), ChildStarted)
            if sum(child.run == run for child in named) != 1:
                found.append(f"{run}: its parent {parent.run} did not start it once")
        found += _of_parent(log, tenant, run, commits)
    found += [f"{entry}: {times} children" for entry, times in born.items() if times > 1]
    return found


def _of_parent(log: Log, tenant: str, run: str, commits: list[Commit]) -> list[str]:
    started = of_type(commits, ChildStarted)
    ended = of_type(commits, ChildFinished)
    found = []
    for what, events in (("started", started), ("finished", ended)):
        entries = Counter((event.tool_use_id, event.index) for event in events)
        found += [f"{run}: child {e} {what} {n} times" for e, n in entries.items() if n > 1]
    for child in ended:
        end = of_type(log.journals.get((tenant, child.run), []), RunFinished)
        if child.ok and [event.status for event in end] != ["completed"]:
            found.append(f"{run}: child {child.run} is said to have completed, its end is {end}")
    completed = [event.status for event in of_type(commits, RunFinished)] == ["completed"]
    if completed and {c.run for c in started} != {c.run for c in ended if c.run}:
        found.append(f"{run}: completed without the ends of all its children")
    return found


def trees(log: Log, runs: Sequence[Tracked]) -> list[str]:
    """Each leaf of a tree was counted once, and there are as many runs as there should be."""
    below: dict[str, list[str]] = {}
    for (_, run_id), commits in log.journals.items():
        for started in of_type(commits, RunStarted):
            if started.parent is not None:
                below.setdefault(started.parent.run, []).append(run_id)
    found = []
    for run in runs:
        if run.agent != "tree":
            continue
        level = [run.run_id]
        for depth in range(1, LEVELS + 1):
            level = [child for parent in level for child in below.get(parent, ())]
            if len(level) != run.width**depth:
                found.append(f"{run.run_id}: {len(level)} runs at level {depth}")
        said = "".join(frame.json()["text"] for frame in run.seen if frame.event == "text")
        if run.ended and said != str(run.width**LEVELS):
            found.append(f"{run.run_id}: counted {said!r} leaves")
    return found


def questions(log: Log, runs: Sequence[Tracked], notes: Notes) -> list[str]:
    """Each question was asked once and closed once, with the one answer that was taken."""
    found = []
    asked: Counter[str] = Counter()
    for (_, run), commits in log.journals.items():
        pending = [e.interruption.interrupt_id for e in of_type(commits, InterruptionPending)]
        asked.update(pending)
        closed = of_type(commits, InterruptClosed)
        times = Counter(event.interrupt_id for event in closed)
        found += [f"{run}: {ident} closed {n} times" for ident, n in times.items() if n > 1]
        for event in closed:
            found += _answered(run, event, notes)
    found += [f"{ident}: asked {n} times" for ident, n in asked.items() if n > 1]
    for run_ in runs:
        if run_.agent == "asking" and run_.ended:
            commits = log.journals.get(("", run_.run_id), [])
            answers = [event.answer for event in of_type(commits, InterruptClosed)]
            said = "".join(f.json()["text"] for f in run_.seen if f.event == "text")
            if len(answers) != QUESTIONS or not said.endswith(" ".join(answers)):
                found.append(f"{run_.run_id}: {answers} were answered, {said!r} was said")
    return found


def _answered(run: str, event: InterruptClosed, notes: Notes) -> list[str]:
    ident, taken = event.interrupt_id, notes.taken.get(event.interrupt_id, [])
    if len(taken) > 1:
        return [f"{run}: {ident}: {taken} were all said to be the answer"]
    if event.status != "resolved":
        return [f"{run}: {ident}: {taken} was taken, but it is {event.status}"] if taken else []
    if event.answer not in notes.sent[ident]:
        return [f"{run}: {ident}: nobody answered {event.answer!r}"]
    if taken and taken != [event.answer]:
        return [f"{run}: {ident}: {taken} was taken, the run was told {event.answer!r}"]
    return []


def inputs(log: Log, runs: Sequence[Tracked], notes: Notes) -> list[str]:
    """What was said to a run, and taken, stands in its journal once; nothing else does."""
    found = []
    for run in runs:
        commits = log.journals.get(("", run.run_id), [])
        heard = [event for event in of_type(commits, UserInput) if event.inbox]
        texts = Counter(event.payload[0].content[0].text for event in heard)
        found += [f"{run.run_id}: heard {t!r} {n} times" for t, n in texts.items() if n > 1]
        found += [
            f"{run.run_id}: {text!r} was taken and is not in the journal"
            for text in notes.taken.get(run.run_id, [])
            if text not in texts
        ]
        strange = set(texts) - notes.sent.get(run.run_id, set())
        found += [f"{run.run_id}: nobody said {text!r}" for text in strange]
    return found


def hooked_calls(log: Log, runs: Sequence[Tracked]) -> list[str]:
    """A hook's verdict is recorded once for each call, and the call did what it says."""
    found = []
    for run in runs:
        if run.agent != "hooked":
            continue
        commits = log.journals.get(("", run.run_id), [])
        verdicts = of_type(commits, CallPrepared)
        written = {event.effect_id: event.key for event in log.memory.get(run.user_id, [])}
        if len(written) != len(log.memory.get(run.user_id, [])):
            found.append(f"{run.run_id}: an effect was performed twice")
        for record in records(commits):
            if not isinstance(record.event, ToolCall):
                continue
            mine = [v for v in verdicts if v.tool_use_id == record.event.tool_use.id]
            keys = [msgspec.json.decode(v.input, type=_Counting).key for v in mine if v.input]
            done = written.get(f"{run.run_id}.{record.n}")
            if len(mine) != 1 or keys != [done]:
                found.append(f"{run.run_id}: call {record.n}: verdicts {keys}, done {done!r}")
    return found
