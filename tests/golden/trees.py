"""Shapes of journals of runs that have children, and of the children themselves."""

from __future__ import annotations

from pathlib import Path

from tests.golden.stage import (
    Export,
    MakeIn,
    MakeOn,
    Stage,
    asks_for,
    finished,
    open_stage,
    says_and,
    shown,
)
from tests.wire.vendors import FakeVendor, Stall, openai_text


def spawn(name: str, prompt: str) -> tuple[str, str, dict[str, object]]:
    return ("call_s", "Agent", {"op": "spawn", "name": name, "prompt": prompt})


def spawns(*entries: tuple[str, str]) -> tuple[str, str, dict[str, object]]:
    wanted = [{"name": name, "prompt": prompt} for name, prompt in entries]
    return ("call_f", "Agent", {"op": "parallel_spawn", "spawns": wanted})


async def one_child(stage: Stage) -> str:
    """A call that one child answers."""
    stage.vendor.script(asks_for(spawn("echo", "the task")), openai_text("As it says."))
    return (await stage.run("boss")).run_id


async def child(stage: Stage) -> str:
    """The journal of a child: its lineage, and credentials that it inherited."""
    stage.vendor.script(asks_for(spawn("asker", "Help.")), openai_text("42"), openai_text("So 42."))
    run = await stage.run("boss", user_credentials={"crm": "of-the-parent"})
    return await stage.child_of(run)


async def lost_child(stage: Stage) -> str:
    """A run that is cancelled while its child works: the child is told to end."""
    stage.vendor.script(asks_for(spawn("asker", "Wait.")), says_and(Stall(), "Waiting"))
    run = await stage.start("boss")
    await shown(run, "tool_call")
    child_id = await stage.child_of(run)
    await stage.cancel(run, "enough")
    await finished(run)
    await stage.ended(child_id)
    return run.run_id


ON_ONE_STAGE: tuple[MakeOn, ...] = (one_child, child, lost_child)


async def children(directory: Path, vendor: FakeVendor, export: Export) -> None:
    """Four children, two at a time: one fails, one is unknown; re-readers are told of each."""
    fan_out = spawns(("echo", "1"), ("faulty", "2"), ("nobody", "3"), ("echo", "4"))
    vendor.script(asks_for(fan_out), openai_text("Two of them."))
    told = {"LOOMCYCLE_RESUME_FANOUT": "1"}
    async with open_stage(directory, vendor, name="children", variables=told) as stage:
        await export(stage.runtime.store, (await stage.run("boss")).run_id)


IN_A_DIRECTORY: tuple[MakeIn, ...] = (children,)
