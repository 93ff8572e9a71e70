"""Children of an Agent call: which are due, what they are called, and what the call gives back.

Specification: tools.md section 3.10. Ids follow from the call, so a child that was started
before a crash is found again and never started twice.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct

from events.plan import Compaction
from events.vocabulary import ChildFinished
from replay.state import Call

MAX_SPAWNS = 32
MAX_DEPTH = 3
DEFAULT_CONCURRENCY = 4


class Spawn(Struct, frozen=True, omit_defaults=True):
    """One child to start."""

    name: str
    prompt: str
    def_id: str = ""
    compaction: Compaction | None = None


class _Input(Struct, frozen=True):
    op: str = "spawn"
    name: str = ""
    prompt: str = ""
    def_id: str = ""
    compaction: Compaction | None = None
    spawns: list[Spawn] | None = None


_decode = msgspec.json.Decoder(_Input).decode


def spawns(call: Call) -> list[Spawn]:
    """The entries of a call whose input was found valid."""
    given = _decode(arguments(call))
    if given.spawns is not None:
        return given.spawns
    return [Spawn(given.name, given.prompt, given.def_id, given.compaction)]


def arguments(call: Call) -> bytes:
    """The input as the hooks left it."""
    prepared = call.prepared
    if prepared is not None and isinstance(prepared.input, msgspec.Raw):
        return bytes(prepared.input)
    return bytes(call.input)


def due(call: Call, concurrency: int) -> tuple[tuple[int, Spawn], ...]:
    """The entries to start now: in order, no more than ``concurrency`` at a time."""
    entries = spawns(call)
    running = sum(child.finished is None for child in call.children.values())
    room = (concurrency or DEFAULT_CONCURRENCY) - running
    waiting = [(i, entry) for i, entry in enumerate(entries) if i not in call.children]
    return tuple(waiting[: max(0, room)])


def all_finished(call: Call) -> bool:
    done = sum(child.finished is not None for child in call.children.values())
    return done == len(spawns(call))


def result(call: Call) -> tuple[str, bool]:
    """(text, is_error) of the call, when all children have ended."""
    entries = spawns(call)
    outcomes = [call.children[i].finished for i in range(len(entries))]
    if _decode(arguments(call)).spawns is None:
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
