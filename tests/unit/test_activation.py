"""A parked run that goes on: what comes after its claim, and what becomes of its timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from events import inbox
from events.commit import decode
from events.hooks import HookRegistered
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from events.plan import ToolSpec
from events.vocabulary import CallWaiting, ChildStarted, Event, Text
from loomcycle.activation import Activation
from loomcycle.hooks.chain import HookChain
from loomcycle.hooks.client import HookClient
from loomcycle.hooks.registry import HookRegistry
from loomcycle.wakes import PARK_TIMER
from replay.children import child_ids
from replay.machine import Finish, closing, next_effect
from tests.processes import RUN, TENANT, Process, types_of
from tests.stories import PLAN, answers, calls
from tests.virtual_time import play

CALL_N = 4
"""Where the first call stands in the stories."""

HOUR_NS = 3_600_000_000_000
START_NS = 1_800_000_000_000_000_000
AGENTIC = replace(PLAN, tools=(*PLAN.tools, ToolSpec("Agent", "spawns", Raw(b"{}"))))
TIMER = (PARK_TIMER, RUN)


def now_ns() -> int:
    return START_NS + int(asyncio.get_running_loop().time() * 1e9)


def answer(ident: str = "intr_1", text: str = "yes") -> inbox.InboxMessage:
    return inbox.AnswerMessage(id=f"i_{ident}", interrupt_id=ident, answer=text)


def asks(call_id: str = "t1", ref: str = "intr_1", until_ns: int = START_NS + HOUR_NS) -> Event:
    return CallWaiting(tool_use_id=call_id, kind="answer", ref=ref, until_ns=until_ns)


def question() -> list[Event]:
    return [calls("t1", "Interruption"), answers("tool_use"), asks()]


def spawn() -> list[Event]:
    run, session, agent_id = child_ids(RUN, CALL_N, 0)
    child = ChildStarted(
        tool_use_id="t1", index=0, run=run, session=session, agent="w", agent_id=agent_id
    )
    call = calls("t1", "Agent", '{"name":"w","prompt":"p"}')
    waits = CallWaiting(tool_use_id="t1", kind="children")
    return [call, answers("tool_use"), waits, child]


async def answered(process: Process) -> None:
    await tell(process, answer())


async def tell(process: Process, *messages: inbox.InboxMessage) -> None:
    for message in messages:
        await process.store.log.append(
            process.store.subjects.inbox(TENANT, RUN), inbox.encode(message)
        )


async def child_ends(process: Process) -> None:
    run, session, agent_id = child_ids(RUN, CALL_N, 0)
    facts: dict[str, Any] = {"run": run, "session": session, "agent_id": agent_id}
    told = [*await process.opening(**facts), Text(text="found"), answers()]
    journal = await process.has(*told, run=run)
    finish = next_effect(journal.state)
    assert isinstance(finish, Finish)
    await journal.commit(closing(journal.state, finish))
    await tell(
        process, inbox.ChildMessage(id="i_child", run=run, n=CALL_N, index=0, ok=True, text="found")
    )


async def parks(process: Process, *waits: Event, **facts: Any) -> None:
    """The run comes to where it waits, and is parked by this process."""
    opening = await process.opening(AGENTIC, **facts)
    journal = await process.has(*opening, *waits, plan=AGENTIC)
    await Activation(process.services, journal).drive()
    process.ownership.keep(journal)
    assert (await types_of(process.store))[-1][-1] == "run.parked"


async def goes_on(process: Process) -> None:
    activation = await process.takes()
    assert activation is not None
    await activation.drive()
    process.ownership.keep(activation.journal)


# --- hooks after a call that waited ---------------------------------------------------------------


class Watched(HookClient):
    """The callback of the one hook: another process looks at the run while it is asked."""

    def __init__(self, other: Process) -> None:
        super().__init__()
        self.other = other
        self.asked: list[list[str]] = []
        """The types of the last commit, each time."""
        self.taken = 0

    async def post(self, url: str, body: bytes, timeout_ms: int) -> bytes:
        self.asked.append((await types_of(self.other.store))[-1])
        self.taken += await self.other.takes() is not None
        return b'{"result":{"text":"reviewed"}}'


async def hooked(process: Process, client: HookClient) -> None:
    registry = HookRegistry(process.store)
    await registry.register(
        HookRegistered(
            id="hook_1",
            owner="app",
            name="audit",
            phase="post",
            callback_url="http://127.0.0.1:9/audit",
            registered_at_ns=1,
        )
    )
    process.services.hooks = HookChain(registry, client)


@pytest.mark.parametrize(
    ("waits", "came", "taken"),
    [
        (question(), answered, ["run.claimed", "interrupt.closed"]),
        (spawn(), child_ends, ["run.claimed", "child.finished"]),
    ],
    ids=["question", "child"],
)
@pytest.mark.parametrize("warm", [True, False], ids=["from-memory", "from-the-log"])
def test_hooks_after_a_call_that_waited_are_asked_by_the_owner_alone(
    waits: list[Event], came: Callable[[Process], Awaitable[None]], taken: list[str], warm: bool
) -> None:
    async def story() -> None:
        server = MemoryServer(now_ns=now_ns)
        one, two = Process(server, "one", now_ns), Process(server, "two", now_ns)
        await one.cluster.start()
        await parks(one if warm else two, *waits)
        await came(one)
        client = Watched(two)
        await hooked(one, client)
        await goes_on(one)
        assert client.asked == [taken]
        assert client.taken == 0, "the run has an owner who lives"
        commits = await types_of(one.store)
        assert commits[-1][-1] == "run.finished"
        assert sum(types.count("tool_result") for types in commits) == 1
        await one.cluster.stop()

    play(story)


def test_a_result_that_hooks_made_is_stored_before_they_are_asked_about_the_next() -> None:
    async def story() -> None:
        server = MemoryServer(now_ns=now_ns)
        one, two = Process(server, "one", now_ns), Process(server, "two", now_ns)
        await one.cluster.start()
        both = [calls("t1", "Interruption"), calls("t2", "Interruption"), answers("tool_use")]
        await parks(one, *both, asks(), asks("t2", "intr_2"))
        await tell(one, answer(), answer("intr_2"))
        client = Watched(two)
        await hooked(one, client)
        await goes_on(one)
        assert [asked[0] for asked in client.asked] == ["run.claimed", "call.reviewed"]
        assert client.asked[1][-1] == "tool_result"
        await one.cluster.stop()

    play(story)


def test_without_hooks_a_claim_is_stored_with_what_follows_from_it() -> None:
    async def story() -> None:
        process = Process(MemoryServer(now_ns=now_ns), "one", now_ns)
        await parks(process, *question())
        await answered(process)
        await goes_on(process)
        claimed = next(types for types in await types_of(process.store) if "run.claimed" in types)
        assert claimed[:3] == ["run.claimed", "interrupt.closed", "tool_result"]

    play(story)


# --- timers of parked runs ------------------------------------------------------------------------


def test_a_timer_is_cancelled_when_the_run_ends_before_its_time() -> None:
    async def story() -> None:
        process = Process(MemoryServer(now_ns=now_ns), "p", now_ns)
        await parks(process, *question())
        assert set(await process.store.timers.pending()) == {TIMER}
        await answered(process)
        await goes_on(process)
        assert (await types_of(process.store))[-1][-1] == "run.finished"
        assert not await process.store.timers.pending()

    play(story)


def test_a_timer_is_cancelled_when_the_run_is_cancelled() -> None:
    async def story() -> None:
        process = Process(MemoryServer(now_ns=now_ns), "p", now_ns)
        await parks(process, *question())
        await tell(process, inbox.CancelMessage(id="i_1", reason="enough"))
        await goes_on(process)
        assert (await types_of(process.store))[-1][-1] == "run.finished"
        assert not await process.store.timers.pending()

    play(story)


def test_a_timer_is_cancelled_when_the_run_then_waits_for_something_without_a_time() -> None:
    async def story() -> None:
        process = Process(MemoryServer(now_ns=now_ns), "p", now_ns)
        await parks(process, *question(), interactive=True)
        await answered(process)
        await goes_on(process)
        assert (await types_of(process.store))[-1][-1] == "run.parked"
        assert not await process.store.timers.pending()

    play(story)


def test_a_timer_moves_to_the_time_of_what_the_run_waits_for_next() -> None:
    async def story() -> None:
        server = MemoryServer(now_ns=now_ns)
        process = Process(server, "p", now_ns)
        later = START_NS + 2 * HOUR_NS
        both = [calls("t1", "Interruption"), calls("t2", "Interruption"), answers("tool_use")]
        await parks(process, *both, asks(), asks("t2", "intr_2", later))
        first = server.timers.handles[TIMER].when()
        await answered(process)
        await goes_on(process)
        (timer,) = await process.store.timers.pending()
        assert timer == TIMER
        assert server.timers.handles[TIMER].when() == pytest.approx(first + HOUR_NS / 1e9)

    play(story)


def test_a_timer_that_cannot_be_cancelled_does_not_keep_the_run_from_ending() -> None:
    cancels = []

    async def faults(client: str, operation: str) -> Fault | None:
        if operation == "timers.cancel":
            cancels.append(client)
            return Fault.FAIL_BEFORE
        return None

    async def story() -> None:
        process = Process(MemoryServer(faults, now_ns=now_ns), "p", now_ns)
        await parks(process, *question())
        await answered(process)
        await goes_on(process)
        last = await process.store.log.last(process.store.subjects.journal(TENANT, RUN))
        assert last is not None
        assert decode(last.data).header.events[-1].type == "run.finished"
        assert cancels == ["p"]
        assert await process.takes() is None

    play(story)


def test_a_run_that_never_had_a_timer_cancels_none() -> None:
    operations = []

    async def watch(client: str, operation: str) -> None:
        operations.append(operation)

    async def story() -> None:
        process = Process(MemoryServer(watch, now_ns=now_ns), "p", now_ns)
        await parks(process, *spawn())
        await child_ends(process)
        await goes_on(process)
        assert (await types_of(process.store))[-1][-1] == "run.finished"
        assert not [each for each in operations if each.startswith("timers.")]

    play(story)
