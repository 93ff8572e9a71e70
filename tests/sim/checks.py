"""What must hold when a world has come to rest; each check names what it found."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from events import state
from events.commit import BrokenChain
from events.memory_store import MemoryServer
from events.plan import decode_plan
from events.state import MemoryWritten
from events.vocabulary import (
    CancelRequested,
    ChildFinished,
    ChildStarted,
    Event,
    InterruptClosed,
    InterruptionPending,
    RunFinished,
    ToolCall,
    ToolResult,
    UserInput,
)
from loomcycle.session_lock import run_of
from loomcycle.tool_turn import UNKNOWN_OUTCOME
from replay.conversation import Message
from replay.fold import fold
from replay.history import own_messages
from replay.machine import HANDLE_TAKEN
from replay.verify import verify
from tests.chains import check_chain
from tests.sim.index import RunRow

if TYPE_CHECKING:
    from tests.sim.world import World

STANDING = {"sweeper", "wakes", "starts", "look-after", "lease"}
"""Tasks that a process keeps until it stops."""

FIRST_COMMIT_S = 1.0
"""So long after its lock a run has its first commit, where nothing is wrong."""

LOSE_THE_LAST_ITEM = {"crash", "suspend", "stop", "forget", "restart", "LATE"}
"""After these a run can end without anybody left who would destroy its seals."""


def check_all(world: World, in_time: bool) -> None:
    """Report every violation to the world."""
    if not in_time:
        _what_is_left(world)
    for row in world.index.runs.values():
        problem = _journal(world, row)
        if problem:
            world.violation(f"{row.id}: {problem}")
            return
    _clients(world)
    _tools(world)
    _questions(world)
    _children(world)
    _sessions(world)
    _busy(world)
    _handles(world)
    _leftovers(world)


def _what_is_left(world: World) -> None:
    for client in world.clients:
        if not client.done:
            world.violation(f"{client.name} still waits for {client.run_id or 'an answer'}")
    for row in world.index.runs.values():
        if not row.ended:
            world.violation(f"{row.id} did not end (last commit {row.last_commit} by {row.owner})")
    for name, queue in (("starts", world.server.starts), ("wakes", world.server.wakes)):
        if len(queue.stream):
            world.violation(f"{len(queue.stream)} items are left on {name}")
    for host in world.well():
        if host.worker.active:
            world.violation(f"{host.name} still advances {host.worker.active} runs")


def _journal(world: World, row: RunRow) -> str:
    """Chain, one terminal event, and proof of every effect."""
    try:
        check_chain(row.id, row.commits)
    except BrokenChain as cause:
        return str(cause)
    if row.started is None:
        return ""
    ends = sum(isinstance(event, RunFinished) for event in row.events())
    if ends != 1:
        return f"{ends} terminal events"
    plan = decode_plan(blob(world.server, row.started.plan))
    report = verify(plan, row.commits, _history(world, row))
    if not report.ok or not report.complete:
        return report.difference or "incomplete"
    return ""


def _history(world: World, row: RunRow) -> list[Message]:
    """What the earlier runs of the session said, when ``row`` goes on with it."""
    facts = row.started
    if facts is None or not facts.continues:
        return []
    messages: list[Message] = []
    while facts is not None and facts.previous is not None:
        before = world.index.runs[facts.previous.run]
        facts = before.started
        if facts is not None:
            plan = decode_plan(blob(world.server, facts.plan))
            messages = own_messages(fold(plan, before.commits)) + messages
    return messages


def blob(server: MemoryServer, name: str) -> bytes:
    parts = server.stream("BLOBS").read(server.subjects.blob_parts(name), 0)
    return b"".join(part.data for part in parts)


def _clients(world: World) -> None:
    for client in world.clients:
        if client.outcome != "accepted":
            continue
        row = world.index.runs.get(client.run_id)
        if row is None or row.started is None:
            world.violation(f"{client.name}: {client.run_id} was accepted and does not exist")
            continue
        if client.complete and (difference := client.differs(row)):
            world.violation(f"{client.name}: {row.id}: the client {difference}")
        if client.cancelled and row.status != "cancelled" and "heartbeat" not in row.error:
            world.violation(f"{row.id}: the cancel was accepted, the run is {row.status}")


def _tools(world: World) -> None:
    """Each charge at most once and told truly; each increment exactly once."""
    written = Counter(event.effect_id for event in memory_events(world.server))
    for effect, count in written.items():
        if count != 1:
            world.violation(f"increment {effect} stands {count} times in the log")
    for effect, count in world.witness.charges.items():
        if count != 1:
            world.violation(f"charge {effect} was made {count} times")
    results = {event.effect_id: event for event in memory_events(world.server)}
    for row in world.index.runs.values():
        _tool_results(world, row, results)
    for value, count in _totals(world.server):
        if value != count:
            world.violation(f"a counter says {value} after {count} increments")


def _questions(world: World) -> None:
    """Each question is asked once and settled once, each word of a person is taken once."""
    for row in world.index.runs.values():
        asked = Counter[str]()
        settled = Counter[str]()
        taken = Counter[str]()
        for event in row.events():
            match event:
                case InterruptionPending(interruption=body):
                    asked[body.interrupt_id] += 1
                case InterruptClosed(interrupt_id=ident, status=status, inbox=inbox):
                    settled[ident] += 1
                    world.met.add(f"question {status}")
                    taken[inbox or ident] += 1
                case UserInput(inbox=inbox) if inbox:
                    taken[inbox] += 1
        for what, counts in (("asked", asked), ("settled", settled), ("taken", taken)):
            for ident, count in counts.items():
                if count != 1:
                    world.violation(f"{row.id}: {ident} was {what} {count} times")


def _children(world: World) -> None:
    """A child runs once, and its parent was told how it ended."""
    runs = world.index.runs
    for row in runs.values():
        started: dict[str, ChildStarted] = {}
        for event in row.events():
            match event:
                case ChildStarted(run=run):
                    if run in started:
                        world.violation(f"{row.id} started {run} twice")
                    started[run] = event
                case ChildFinished(run=run, ok=ok) if run:
                    world.met.add("child")
                    child = runs.get(run)
                    if child is None or not child.ended:
                        world.violation(f"{row.id} was told the end of {run}, which has none")
                    elif ok != (child.status == "completed"):
                        world.violation(f"{row.id} was told {ok} of {run}: {child.status}")
        for child in world.index.children(row.id):
            if child.id not in started:
                world.violation(f"{child.id} says that {row.id} spawned it")


def _tool_results(world: World, row: RunRow, written: dict[str, MemoryWritten]) -> None:
    numbers: dict[str, int] = {}
    events: list[Event] = []
    for commit in row.commits:
        for record in commit.records():
            if isinstance(record.event, ToolCall):
                numbers[record.event.tool_use.id] = record.n
            if isinstance(record.event, Event):
                events.append(record.event)
    cancelled = any(isinstance(event, CancelRequested) for event in events)
    taken_over = any(world.hosts[c.header.writer].lost for c in row.commits)
    for event in events:
        if not isinstance(event, ToolResult):
            continue
        effect = f"{row.id}.{numbers[event.tool_use.id]}"
        match event.tool_use.name:
            case "Charge" if event.text == UNKNOWN_OUTCOME:
                world.met.add("unknown outcome")
                if not taken_over and not cancelled:
                    world.violation(f"{effect}: told unknown, though its worker was well")
            case "Charge":
                if world.witness.charges[effect] != 1 or event.is_error:
                    world.violation(
                        f"{effect}: told {event.text!r}, charged"
                        f" {world.witness.charges[effect]} times"
                    )
            case "Memory" if not event.is_error:
                found = written.get(effect)
                if found is None or bytes(found.result or b"").decode() != event.text:
                    world.violation(f"{effect}: told {event.text}, the log says {found}")
            case "Memory":
                world.met.add("memory gave up")


def memory_events(server: MemoryServer) -> list[MemoryWritten]:
    messages = server.stream("STATE").read(server.subjects.any("mem"), 0)
    return [event for m in messages if (event := state.decode(m.data)) is not None]


def _totals(server: MemoryServer) -> list[tuple[int, int]]:
    """(value, increments) of each counter."""
    by_row: dict[tuple[str, str, str], list[MemoryWritten]] = {}
    for event in memory_events(server):
        by_row.setdefault((event.tenant, event.scope_id, event.key), []).append(event)
    return [
        (int(msgspec.json.decode(events[-1].value)), len(events))  # type: ignore[arg-type]
        for events in by_row.values()
    ]


def _sessions(world: World) -> None:
    """At most one run of a session at a time."""
    sessions: dict[str, list[RunRow]] = {}
    for row in world.index.runs.values():
        if row.started is not None:
            sessions.setdefault(row.started.session, []).append(row)
    for session, rows in sessions.items():
        _one_at_a_time(world, f"session {session}", rows)
        for earlier, later in pairwise(sorted(rows, key=lambda row: row.born)):
            previous = later.started.previous if later.started is not None else None
            if previous is None or previous.run != earlier.id:
                world.violation(f"{later.id} goes on after {previous}, not after {earlier.id}")


def _busy(world: World) -> None:
    """A session is called busy only where another run had it, or was about to."""
    for client, answered in world.called_busy:
        session = client.habits.session or client.habits.request.session_id
        if not any(
            row.started is not None
            and row.started.session == session
            and row.born_at <= answered + FIRST_COMMIT_S
            and (not row.ended or row.ended_at >= client.waited_since)
            for row in world.index.runs.values()
        ):
            world.violation(f"{client.name}: nobody used the session that was called busy")


def locked_sessions(world: World) -> list[str]:
    """Sessions whose last admitted run never began."""
    found = {}
    for row in world.index.runs.values():
        if row.started is not None:
            admitted = _admitted(world.server, row.tenant, row.started.session)
            if admitted and admitted[-1] not in world.index.runs:
                found[row.started.session] = row
    return list(found)


def _admitted(server: MemoryServer, tenant: str, session: str) -> list[str]:
    subject = server.subjects.session(tenant, session)
    messages = server.stream_of(subject).read(subject, 0)
    return [run for message in messages if (run := run_of(message.data))]


def _handles(world: World) -> None:
    """At most one run at a time under an agent id."""
    handles: dict[tuple[str, str], list[RunRow]] = {}
    for row in world.index.runs.values():
        if row.started is not None and row.error != HANDLE_TAKEN:
            handles.setdefault((row.tenant, row.started.agent_id), []).append(row)
    for (_, agent_id), rows in handles.items():
        _one_at_a_time(world, f"agent id {agent_id}", rows)


def _one_at_a_time(world: World, what: str, rows: list[RunRow]) -> None:
    rows = sorted(rows, key=lambda row: row.born)
    for earlier, later in pairwise(rows):
        if not earlier.ended or later.born < earlier.ended:
            world.violation(f"{what} holds {earlier.id} and {later.id} at once")


def _leftovers(world: World) -> None:
    """Nothing is kept of runs that ended, and no standing task has died."""
    for task in world.loop.tasks:
        if task.get_name() in STANDING and task.done() and not task.cancelled():
            world.violation(f"{task.get_name()} died: {task.exception()!r}")
    for host in world.well():
        topics = host.live._topics
        if topics:
            world.violation(f"{host.name} still keeps live runs {sorted(topics)}")
    if world.met & LOSE_THE_LAST_ITEM:
        return
    for row in world.index.runs.values():
        if world.server.stream("SEALS").read(world.server.subjects.seals(row.id), 0):
            world.violation(f"seals of {row.id}, which is {row.status}, are left")
