"""Starts while the log is away: who is refused, or leaves, is forgotten and never begins.

In virtual time, over the log in memory.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from events.commit import decode
from events.log import LogError, LogUnavailable
from events.memory_faults import Fault
from events.memory_store import MemoryServer
from events.vocabulary import RunStarted
from loomcycle.admission import Admission
from loomcycle.cluster import Cluster, Member
from loomcycle.errors import Backpressure, CommandError, UserQuotaExhausted
from loomcycle.feed import RunFeed
from loomcycle.journal import RunJournal
from loomcycle.live import LiveRuns
from loomcycle.loading import Plans
from loomcycle.promises import Limits, Promises
from loomcycle.providers.registry import Registry
from loomcycle.readers import DISCONNECTED
from loomcycle.services import Services
from loomcycle.starts import Start, StartItem, pack
from loomcycle.worker import Worker
from replay.state import State
from tests.stories import PLAN, costs, opens
from tests.virtual_time import play

RUN = "r_ab00000000000001"
QUEUE_TIMEOUT_S = 5.0
OUTAGE_S = 600.0
SOON_S = 5.0
DEPTH = 4


class Process:
    """A worker and the starts of its clients. ``strikes``: a fault of each such operation."""

    def __init__(self, *, user_cap: int = 0) -> None:
        self.strikes: dict[str, Fault] = {}
        self.reached: dict[str, asyncio.Event] = {}
        """Operations that are said when they come, and then wait for ever."""
        self.server = MemoryServer(self._fault, now_ns=now_ns)
        self.store = self.server.connect("w1")
        self.services = Services(
            store=self.store,
            live=LiveRuns(self.store.live),
            plans=Plans(self.store),
            providers=Registry({}, {}),
            tools={},
            process="w1",
            now_ns=now_ns,
        )
        self.cluster = Cluster(self.store, "w1", Member(slots=4), alone_at_boot=True)
        self.worker = Worker(self.services, self.cluster, Admission(self.store), slots=4)
        limits = Limits(queue_timeout_s=QUEUE_TIMEOUT_S, queue_depth=DEPTH, user_cap=user_cap)
        self.promises = Promises(self.services, self.worker, limits, lambda: True)

    async def _fault(self, client: str, operation: str) -> Fault | None:
        if operation in self.reached:
            self.reached[operation].set()
            await asyncio.Event().wait()
        return self.strikes.get(operation)

    async def begun(self) -> Process:
        """Its worker takes starts; one that does not leaves them all to the queue."""
        await self.worker.start()
        return self

    async def start(self) -> Start:
        """A start whose plan is known here."""
        plan = await self.services.plans.put(PLAN)
        started, words, _ = opens(plan=plan)
        assert isinstance(started, RunStarted)
        item = StartItem(
            run=RUN,
            session=started.session,
            tenant="",
            agent_id=started.agent_id,
            gateway="w1",
            not_after_ns=now_ns() + int(QUEUE_TIMEOUT_S * 1e9),
            user_id="u1",
        )
        return Start(item, [started, words])

    async def obtain(self) -> None:
        feed = RunFeed(self.store, self.services.live, "", RUN, process="w1")
        await feed.open(fresh=True)
        try:
            await self.promises.obtain(await self.start(), feed, sealed=False)
        finally:
            feed.close()

    async def journal(self) -> list[str]:
        """The types of all events of the run."""
        messages = await self.store.log.read(self.store.subjects.journal("", RUN))
        return [e.type for m in messages for e in decode(m.data, m.seq).header.events]


def now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


TOMBSTONE = ["run.withdrawn"]

UNSENT = (Fault.FAIL_BEFORE,)
UNKNOWN = (Fault.UNKNOWN_LOST, Fault.UNKNOWN_STORED, Fault.LATE)


@pytest.mark.parametrize("fault", UNSENT + UNKNOWN, ids=lambda fault: fault.name.lower())
def test_a_start_whose_post_failed_is_forgotten(fault: Fault) -> None:
    async def story() -> None:
        process = Process()
        process.strikes["starts.post"] = fault
        for _ in range(2 * DEPTH):
            with pytest.raises(LogError):
                await process.obtain()
            assert process.promises.waiting == 0
        await asyncio.sleep(SOON_S)
        assert await process.journal() == (TOMBSTONE if fault in UNKNOWN else [])

    play(story)


@pytest.mark.parametrize(
    ("reason", "inbox"),
    [("log unavailable", ["cancel"]), (DISCONNECTED, [])],
    ids=["refused", "left"],
)
def test_a_detached_start_that_began_all_the_same_is_cancelled_unless_its_client_only_left(
    reason: str, inbox: list[str]
) -> None:
    async def story() -> None:
        process = Process()
        start = await process.start()
        item = msgspec.structs.replace(start.item, reader="continue")
        assert await process.worker._ownership.begin(start, lambda: False) is not None
        await process.promises._withdraw_quietly(item, 0, reason)
        messages = await process.store.log.read(process.store.subjects.inbox("", RUN))
        assert [msgspec.json.decode(m.data)["type"] for m in messages] == inbox

    play(story)


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [((1, 0), Backpressure), ((0, 1), UserQuotaExhausted)],
    ids=["queue-full", "user-cap"],
)
def test_a_start_that_the_queue_refused_is_forgotten(
    limits: tuple[int, int], refusal: type[CommandError]
) -> None:
    async def story() -> None:
        process = Process(user_cap=limits[1])
        process.server.limit_starts(*limits)
        await process.store.starts.post("", "u1", "r_ab00000000000002", b"")
        with pytest.raises(refusal):
            await process.obtain()
        assert process.promises.waiting == 0
        await asyncio.sleep(SOON_S)
        assert await process.journal() == [], "it was never sent"

    play(story)


def test_a_start_that_may_be_queued_is_withdrawn_however_late_the_log_answers() -> None:
    async def story() -> None:
        process = Process()
        process.strikes["starts.post"] = Fault.UNKNOWN_STORED
        with pytest.raises(LogError):
            await process.obtain()
        process.server.cut_off("w1")
        await asyncio.sleep(OUTAGE_S)
        process.server.restore("w1")
        await asyncio.sleep(SOON_S)
        assert await process.journal() == TOMBSTONE

    play(story)


def test_a_client_that_leaves_during_the_post_takes_its_start_along() -> None:
    async def story() -> None:
        process = Process()
        posted = process.reached["starts.post:after"] = asyncio.Event()
        obtaining = asyncio.create_task(process.obtain())
        await posted.wait()
        obtaining.cancel()
        await asyncio.wait([obtaining])
        assert process.promises.waiting == 0
        await asyncio.sleep(SOON_S)
        assert await process.journal() == TOMBSTONE
        await process.begun()
        await asyncio.sleep(SOON_S)
        assert await process.journal() == TOMBSTONE
        assert not (await process.store.starts.stats()).total

    play(story)


def test_a_claim_whose_caller_was_refused_waits_for_the_log_no_longer() -> None:
    async def story() -> None:
        process = await Process().begun()
        await process.start()
        process.server.cut_off("w1")
        with pytest.raises(LogUnavailable):
            await process.obtain()
        await asyncio.sleep(QUEUE_TIMEOUT_S / 2)
        assert process.worker.active == 0
        process.server.restore("w1")
        await asyncio.sleep(SOON_S)
        assert await process.journal() == TOMBSTONE

    play(story)


def test_a_queued_start_does_not_begin_when_the_log_is_back_too_late() -> None:
    async def story() -> None:
        process = await Process().begun()
        start = await process.start()
        data, _ = await pack(start, process.store.seals)
        process.strikes["log.append"] = Fault.FAIL_BEFORE
        await process.store.starts.post("", "u1", RUN, data)
        await asyncio.sleep(QUEUE_TIMEOUT_S / 2)
        assert process.worker.active == 1
        await asyncio.sleep(QUEUE_TIMEOUT_S)
        process.strikes.clear()
        await asyncio.sleep(SOON_S)
        assert (await process.journal(), process.worker.active) == ([], 0)
        assert not (await process.store.starts.stats()).total

    play(story)


# -- the first commit's wait


class Nobody:
    def committed(self, *_: object) -> None:
        """Nobody listens."""


class Writer:
    """A run's first writer, and the log that it is cut off from; ``vain`` is what it is told."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store = self.server.connect("w1")
        self.vain = False
        self.journal = RunJournal(
            self.store,
            State(PLAN),
            tenant="",
            run_id=RUN,
            worker="w1",
            epoch=0,
            now_ns=now_ns,
            observer=Nobody(),
        )
        self.journal.in_vain = lambda: self.vain
        for event in opens():
            self.journal.stage(event)

    async def commits(self) -> int:
        return len(await self.store.log.read(self.store.subjects.journal("", RUN)))


def test_a_first_commit_in_vain_ends_its_wait_and_is_not_stored_later() -> None:
    async def story() -> None:
        writer = Writer()
        writer.server.cut_off("w1")
        asyncio.get_running_loop().call_later(SOON_S / 2, setattr, writer, "vain", True)
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(writer.journal.commit(), SOON_S)
        writer.server.restore("w1")
        await asyncio.sleep(SOON_S)
        assert await writer.commits() == 0

    play(story)


def test_a_first_commit_that_is_wanted_waits_for_the_log() -> None:
    async def story() -> None:
        writer = Writer()
        writer.server.cut_off("w1")
        committing = asyncio.create_task(writer.journal.commit())
        await asyncio.sleep(OUTAGE_S)
        assert not committing.done()
        writer.server.restore("w1")
        await asyncio.wait_for(committing, SOON_S)
        assert await writer.commits() == 1

    play(story)


def test_later_commits_of_an_accepted_run_are_never_in_vain() -> None:
    async def story() -> None:
        writer = Writer()
        await writer.journal.commit()
        writer.vain = True
        writer.journal.stage(costs())
        writer.server.cut_off("w1")
        committing = asyncio.create_task(writer.journal.commit())
        await asyncio.sleep(OUTAGE_S)
        writer.server.restore("w1")
        await asyncio.wait_for(committing, SOON_S)
        assert await writer.commits() == 2

    play(story)
