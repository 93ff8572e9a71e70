"""A fan-out in which each operation on the log, in turn, is its process' last, or fails once.

The parent's turn spawns three children (one of them an agent that does not exist) and goes on
with what they said; every simulated world also checks journals, effects and leftovers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import msgspec
import pytest

from events.memory_store import Fault
from events.vocabulary import ChildStarted, ToolResult
from loomcycle.commands.requests import RunRequest
from tests.sim.agents import TALKER, Script, Turn
from tests.sim.clients import Client, Habits
from tests.sim.loop import SimLoop
from tests.sim.scenario import SETTLED_S, Strike, StruckWorld
from tests.sim.world import World, simulate

STORY = Script([Turn(words=1, calls=("Agent",)), Turn(words=1)])


@dataclass
class Ending:
    """``told`` are the outcomes that the parent's model was told of its children."""

    violations: list[str]
    trace: list[str]
    operations: list[str]
    client: str
    status: str
    told: list[bool]
    children: int


async def _story(world: World) -> None:
    for _ in range(2):
        world.add_host()
    await asyncio.sleep(SETTLED_S)
    request = RunRequest(agent=TALKER, prompt=msgspec.json.encode(STORY).decode())
    client = Client(world, "caller", Habits(request=request))
    world.clients.append(client)
    await client.live()


def tell(strike: Strike | None = None) -> Ending:
    worlds: list[StruckWorld] = []

    def make(seed: int, loop: SimLoop) -> World:
        worlds.append(StruckWorld(loop, strike))
        return worlds[0]

    outcome = simulate(0, _story, make=make)
    world = worlds[0]
    rows = [row for row in world.index.runs.values() if row.started is not None]
    top = [row for row in rows if row.started is not None and row.started.parent is None]
    results = [
        json.loads(event.text)["results"]
        for row in top
        for event in row.events()
        if isinstance(event, ToolResult)
    ]
    started = [
        event.run for row in top for event in row.events() if isinstance(event, ChildStarted)
    ]
    assert len(started) == len(set(started))
    return Ending(
        violations=outcome.violations,
        trace=outcome.trace,
        operations=world.operations,
        client=world.clients[0].outcome,
        status=top[0].status if top else "",
        told=[result["ok"] for result in results[0]] if results else [],
        children=len(rows) - len(top),
    )


CALM = tell()
POINTS = range(len(CALM.operations))
CALLS = [at for at in POINTS if not CALM.operations[at].endswith(":after")]


def named(at: int) -> str:
    return f"{at}-{CALM.operations[at]}"


def test_the_calm_story_has_two_children_that_answer() -> None:
    assert not CALM.violations
    assert (CALM.client, CALM.status) == ("accepted", "completed")
    assert (CALM.told, CALM.children) == ([True, True, False], 2)
    assert len(CALLS) > 20


@pytest.mark.parametrize("at", POINTS, ids=named)
def test_after_a_crash_every_child_runs_once_and_the_answer_is_the_same(at: int) -> None:
    ending = tell(Strike(at, None))
    assert not ending.violations, ending.trace
    if ending.client == "unknown":
        assert ending.status in ("", "completed")
        return
    assert (ending.client, ending.status) == ("accepted", "completed"), ending.trace
    assert (ending.told, ending.children) == ([True, True, False], 2), ending.trace


@pytest.mark.parametrize("at", CALLS, ids=named)
def test_a_fault_of_the_log_changes_nothing(at: int) -> None:
    how = list(Fault)[at % len(Fault)]
    ending = tell(Strike(at, how))
    assert not ending.violations, ending.trace
    if ending.client.startswith("refused: "):
        assert ending.client == "refused: log_unavailable"
        return
    assert (ending.client, ending.status) == ("accepted", "completed"), ending.trace
    assert (ending.told, ending.children) == ([True, True, False], 2), ending.trace
