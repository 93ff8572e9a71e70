"""What happens in a world: which rules a seed allows, what callers do, and when things break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from loomcycle.commands.requests import RunRequest
from tests.sim.agents import COUNTER, TALKER, Script, Turn
from tests.sim.clients import Client, Habits
from tests.sim.host import Host
from tests.sim.world import Trap, World

PLACES = (
    "log.append/journal",
    "log.append:after/journal",
    "log.append/mem",
    "log.append:after/mem",
    "log.append/session",
    "log.append:after/session",
    "log.append/inbox",
    "log.append:after/inbox",
    "wakes.post",
    "starts.post:after",
    "log.",
    "leases.",
    "",
)
"""Where a process may meet its end: before or after its next operation of this kind."""

CALLS = ("Lookup", "Lookup", "Memory", "Memory", "Charge", "Charge", "Interruption", "Agent")

FIRST_PLACES = 4
"""Half of all traps stand at one of the first places: commits and own stores."""


@dataclass(frozen=True)
class Profile:
    """What may happen in a seed; each is allowed or not by a throw, so that worlds differ."""

    hosts: int
    slots: int
    callers: int
    rules: tuple[str, ...]
    fault_rate: float
    core_loss: float
    skew_s: float


RULES = ("crash", "crash", "suspend", "suspend", "stop", "forget", "restart", "leave", "cancel")


def draw_profile(rng: random.Random) -> Profile:
    hosts = rng.choice((1, 2, 2, 3))
    return Profile(
        hosts=hosts,
        slots=rng.choice((1, 2, 4)),
        callers=rng.randint(4, 12),
        rules=tuple(rule for rule in RULES if rng.random() < 0.5),
        fault_rate=rng.choice((0.0, 0.0, 0.01, 0.04, 0.1)),
        core_loss=rng.choice((0.0, 0.0, 0.2)),
        skew_s=rng.choice((0.0, 0.5)),
    )


async def play(world: World) -> None:
    """One seed: processes, callers and rules for some seconds."""
    profile = draw_profile(world.rng)
    world.note("world", f"{profile}")
    first = world.add_host(slots=profile.slots, alone=True)
    for _ in range(profile.hosts - 1):
        _new_host(world, profile)
    assert first.booting is not None
    await first.booting
    world.fault_rate, world.core_loss = profile.fault_rate, profile.core_loss
    callers = world.spawn(_callers(world, profile))
    for _ in range(world.rng.randint(6, 24)):
        await asyncio.sleep(world.rng.expovariate(1.5))
        if profile.rules:
            _apply(world, profile, world.rng.choice(profile.rules))
    await callers


def _new_host(world: World, profile: Profile) -> Host:
    skew = int((world.rng.random() - 0.5) * 2e9 * profile.skew_s)
    return world.add_host(slots=profile.slots, skew_ns=skew)


# -- what callers do


async def _callers(world: World, profile: Profile) -> None:
    for number in range(profile.callers):
        await asyncio.sleep(world.rng.expovariate(1.2))
        client = Client(world, f"c{number + 1}", _habits(world, profile))
        world.clients.append(client)
        world.spawn(client.live())


def _habits(world: World, profile: Profile) -> Habits:
    rng = world.rng
    leaves = "leave" in profile.rules and rng.random() < 0.6
    earlier = [client for client in world.clients if client.session_id]
    request = _request(rng, COUNTER if rng.random() < 0.25 else TALKER)
    session = ""
    if earlier and rng.random() < 0.4:
        before = rng.choice(earlier)
        request = _request(rng, before.habits.request.agent)
        if rng.random() < 0.7:
            session = before.session_id
        else:
            request = msgspec.structs.replace(request, session_id=before.session_id)
    return Habits(
        request=request,
        session=session,
        leaves_s=tuple(rng.random() * 1.5 for _ in range(rng.randint(1, 3))) if leaves else (),
        away_s=rng.choice((0.01, 0.5, 1.5, 4.0)),
        returns=rng.random() < 0.8,
        cancels_s=rng.random() * 2 if "cancel" in profile.rules and rng.random() < 0.5 else None,
        pace_s=rng.choice((0.0, 0.0, 0.03)),
    )


def _request(rng: random.Random, agent: str) -> RunRequest:
    if agent == COUNTER:
        prompt = str(rng.randint(1, 4))
    else:
        prompt = msgspec.json.encode(_script(rng)).decode()
    return RunRequest(
        agent=agent,
        prompt=prompt,
        agent_id=rng.choice(("", "", "", "fixed-1")),
        user_id=rng.choice(("", "ann", "bob")),
        tenant_id=rng.choice(("", "acme")) if rng.random() < 0.3 else "",
        interactive=rng.random() < 0.3,
        user_bearer="b" * 20 if rng.random() < 0.3 else "",
    )


def _script(rng: random.Random) -> Script:
    turns = [_turn(rng) for _ in range(rng.randint(0, 3))]
    return Script([*turns, Turn(words=rng.randint(0, 4), pace_s=rng.choice((0.005, 0.2)))])


def _turn(rng: random.Random) -> Turn:
    return Turn(
        words=rng.randint(0, 4),
        calls=tuple(rng.choice(CALLS) for _ in range(rng.randint(1, 3))),
        pace_s=rng.choice((0.005, 0.05, 0.3)),
        retry=rng.random() < 0.1,
        fails=rng.random() < 0.05,
    )


# -- what breaks


def _apply(world: World, profile: Profile, rule: str) -> None:
    act = _ACTS.get(rule)
    if act is not None:
        act(world, profile)


def _crash(world: World, profile: Profile) -> None:
    host = _victim(world)
    if host is not None:
        _trap(world, host, lambda: _crashed(world, profile, host))


def _crashed(world: World, profile: Profile, host: Host) -> None:
    world.crash(host)
    world.later(world.rng.random() * 6, _new_host, world, profile)


def _suspend(world: World, profile: Profile) -> None:
    host = _victim(world)
    if host is not None:
        seconds = world.rng.choice((1.0, 5.5, 8.0, 12.0))
        _trap(world, host, lambda: world.suspend(host, seconds))


def _stop(world: World, profile: Profile) -> None:
    host = _victim(world)
    if host is not None:
        world.note(host.name, "is told to stop")
        world.met.add("stop")
        world.disturbed_at = world.loop.time()
        host.stop()
        world.later(world.rng.random() * 3, _new_host, world, profile)


def _forget(world: World, profile: Profile) -> None:
    """Work items and timers are deleted."""
    server, rng = world.server, world.rng
    for name, queue, subject in (
        ("STARTS", server.starts, "start"),
        ("WAKES", server.wakes, "wake"),
        ("TIMERS", server.due, "due"),
    ):
        if rng.random() < 0.6:
            world.note("world", f"{len(queue.stream)} items of {name} are deleted")
            queue.stream.purge(server.subjects.any(subject))
    world.met.add("forget")
    world.disturbed_at = world.loop.time()


def _restart(world: World, profile: Profile) -> None:
    world.note("world", "the server starts again: what it kept in memory is gone")
    world.met.add("restart")
    world.disturbed_at = world.loop.time()
    world.server.restart()


def _victim(world: World) -> Host | None:
    """Some process, so long as another stays well (or the only one of a single node)."""
    well = world.well()
    trapped = {trap.host.name for trap in world.traps}
    free = [host for host in well if host.name not in trapped]
    if not free or (len(free) < 2 and len(world.hosts) > 1 and world.rng.random() < 0.7):
        return None
    return world.rng.choice(free)


def _trap(world: World, host: Host, spring: Callable[[], None]) -> None:
    rng = world.rng
    places = PLACES[:FIRST_PLACES] if rng.random() < 0.5 else PLACES
    world.traps.append(Trap(host, rng.choice(places), spring, skip=rng.choice((0, 0, 1, 2))))


_ACTS: dict[str, Callable[[World, Profile], None]] = {
    "crash": _crash,
    "suspend": _suspend,
    "stop": _stop,
    "forget": _forget,
    "restart": _restart,
}
