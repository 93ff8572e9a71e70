"""Children of an Agent call: which are due, what they are called, and what the call gives back.

Specification: tools.md section 3.10. Ids follow from the call, so a child that was started
before a crash is found again and never started twice.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec import Struct

from events.plan import Compaction
from events.vocabulary import ChildFinished, RunFinished
from replay.state import Call

MAX_SPAWNS = 32
MAX_DEPTH = 3
DEFAULT_CONCURRENCY = 4

SPAWN = "spawn"
PARALLEL_SPAWN = "parallel_spawn"


class Spawn(Struct, frozen=True, omit_defaults=True):
    """One child to start."""

    name: str = ""
    prompt: str = ""
    def_id: str | None = None
    compaction: Compaction | None = None


class Request(Struct, frozen=True):
    """The input of a call, as it was given."""

    op: str | None = None
    name: str | None = None
    prompt: str | None = None
    def_id: str | None = None
    compaction: Compaction | None = None
    spawns: list[Spawn] | None = None

    @property
    def is_parallel(self) -> bool:
        return self.op == PARALLEL_SPAWN

    def entries(self) -> list[Spawn]:
        """What to start, in order."""
        if self.is_parallel:
            return self.spawns or []
        return [Spawn(self.name or "", self.prompt or "", self.def_id, self.compaction)]


class ChildIds(NamedTuple):
    """A child's own ids; they share their digits."""

    run: str
    session: str
    agent_id: str


_decoder = msgspec.json.Decoder(Request)


def read(data: bytes) -> Request:
    """Raises ``msgspec.DecodeError`` (UTF-8 errors too) for what is no input of the tool."""
    try:
        return _decoder.decode(data)
    except UnicodeDecodeError as cause:
        raise msgspec.DecodeError(str(cause)) from None


def arguments(call: Call) -> bytes:
    """The input under which the call waits, as hooks and people left it."""
    return bytes(call.input if call.given is None else call.given)


def due(call: Call, concurrency: int) -> tuple[tuple[int, Spawn], ...]:
    """The entries to start now: in order, no more than ``concurrency`` at a time."""
    entries = read(arguments(call)).entries()
    running = sum(child.finished is None for child in call.children.values())
    room = (concurrency or DEFAULT_CONCURRENCY) - running
    waiting = [(i, entry) for i, entry in enumerate(entries) if i not in call.children]
    return tuple(waiting[: max(0, room)])


def all_finished(call: Call) -> bool:
    done = sum(child.finished is not None for child in call.children.values())
    return done == len(read(arguments(call)).entries())


def result(call: Call) -> tuple[str, bool]:
    """(text, is_error) of the call, when all children have ended."""
    request = read(arguments(call))
    entries = request.entries()
    outcomes = [call.children[i].finished for i in range(len(entries))]
    if not request.is_parallel:
        only = outcomes[0]
        assert only is not None
        return (only.text, False) if only.ok else (only.error, True)
    rows = [
        _row(i, entry, outcome)
        for i, (entry, outcome) in enumerate(zip(entries, outcomes, strict=True))
    ]
    return msgspec.json.encode({"results": rows}).decode(), False


def _row(index: int, spawn: Spawn, outcome: ChildFinished | None) -> dict[str, object]:
    assert outcome is not None
    row: dict[str, object] = {"index": index, "agent": spawn.name, "ok": outcome.ok}
    if outcome.ok and outcome.text:
        row["output"] = outcome.text
    if not outcome.ok and outcome.error:
        row["error"] = outcome.error
    return row


def child_digits(run: str, n: int, index: int) -> str:
    """The 16 hex digits of the child's run, session and agent ids."""
    return sha256(f"{run}.{n}.{index}".encode()).hexdigest()[:16]


def child_ids(run: str, n: int, index: int) -> ChildIds:
    """The ids of the child of entry ``index`` of call ``n`` of ``run``."""
    digits = child_digits(run, n, index)
    return ChildIds(f"r_{digits}", f"s_{digits}", f"a_{digits}")


def outcome(
    agent: str, ids: ChildIds, finished: RunFinished, final_text: str
) -> tuple[bool, str, str]:
    """(ok, text, error) of a child that has ended, as its parent's model is told."""
    if finished.status == "completed":
        return True, f"[sub-agent agent_id={ids.agent_id}]\n{final_text}", ""
    cause = finished.error or finished.stop_reason
    if finished.status == "cancelled":
        cause = f"cancelled: {finished.stop_reason}"
    return False, "", failure(agent, ids, cause)


def failure(agent: str, ids: ChildIds, cause: str) -> str:
    """The error text of a child that came to nothing."""
    return (
        f'sub-agent "{agent}" failed (agent={ids.agent_id} session={ids.session} '
        f"run={ids.run}): {cause}"
    )
