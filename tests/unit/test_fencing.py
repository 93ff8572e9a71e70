"""What a worker may still do that lost its run without noticing: nothing that anybody sees."""

from __future__ import annotations

import time

import pytest

from events import inbox
from events.commit import decode
from events.log import EventStore
from events.memory_store import MemoryServer
from events.vocabulary import Event, RunClaimed, Started
from loomcycle.admission import Admission, ended
from loomcycle.cluster import Cluster, Member
from loomcycle.journal import Fenced, RunJournal, withdraw
from loomcycle.live import Delta, LiveRuns
from loomcycle.loading import Plans, load
from loomcycle.masking import Redaction
from loomcycle.memory import writes
from loomcycle.memory.rows import Address
from loomcycle.memory.store import RowStore
from loomcycle.memory.writes import Write
from loomcycle.redaction import Redactor
from loomcycle.starts import StartItem
from loomcycle.taking import user_turn
from replay.fold import fold
from replay.machine import Finish, closing
from replay.state import State
from tests.stories import PLAN, cancels, opens

RUN = "r_ab00000000000001"
TENANT = "acme"
SECRETS = ("correct-horse-battery", "staple-of-the-second-message")


class Nobody:
    def committed(self, *_: object) -> None:
        """Nobody listens."""


def journal(
    store: EventStore,
    worker: str,
    state: State | None = None,
    journal_seq: int = 0,
    *,
    masked: bool = False,
) -> RunJournal:
    credentials = {f"c{n}": text for n, text in enumerate(SECRETS)}
    masker = Redaction(Redactor([], shapes=False)).for_run(credentials)
    return RunJournal(
        store,
        state or State(PLAN),
        tenant=TENANT,
        run_id=RUN,
        worker=worker,
        epoch=0,
        now_ns=time.time_ns,
        observer=Nobody(),
        masker=masker if masked else None,
        journal_seq=journal_seq,
    )


async def begun(store: EventStore, worker: str) -> RunJournal:
    own = journal(store, worker)
    for event in opens():
        own.stage(event)
    await own.commit()
    return own


async def taken_over(server: MemoryServer) -> RunJournal:
    """The journal as its first owner knows it, after another took the run over."""
    first = await begun(server.connect("w1"), "w1")
    store = server.connect("w2")
    (message,) = await store.log.read(store.subjects.journal(TENANT, RUN))
    state = fold(PLAN, [decode(message.data, message.seq)])
    second = journal(store, "w2", state, message.seq)
    second.stage(RunClaimed(worker="w2"))
    await second.commit()
    return first


async def test_an_inbox_message_does_not_hide_a_commit_of_another_before_it() -> None:
    server = MemoryServer()
    stale = await taken_over(server)
    store = server.connect("gateway")
    message = inbox.encode(inbox.CancelMessage(id="i_1", reason="enough"))
    await store.log.append(stale.inbox_subject, message)
    with pytest.raises(Fenced):
        await stale.read_inbox()
    assert stale.run_seq == stale.journal_seq


async def test_a_closing_commit_behind_another_owners_is_refused() -> None:
    server = MemoryServer()
    stale = await taken_over(server)
    store = server.connect("gateway")
    message = inbox.encode(inbox.CancelMessage(id="i_1", reason="enough"))
    await store.log.append(stale.inbox_subject, message)
    stale.stage(cancels())
    with pytest.raises(Fenced):
        await stale.commit(closing(stale.state, Finish("cancelled", "enough")))
    assert len(await store.log.read(store.subjects.journal(TENANT, RUN))) == 2


async def test_a_fenced_owner_leaves_the_secrets_of_the_next_one_alone() -> None:
    """Both take up one parked run; the first saw one message in its inbox, the second two."""
    server = MemoryServer()
    gateway = server.connect("gateway")
    plans = Plans(gateway)
    opening = opens(tenant=TENANT, plan=await plans.put(PLAN))
    beginner = journal(gateway, "w0")
    for event in opening:
        beginner.stage(event)
    await beginner.commit()
    owners = []
    for worker, words in (("w1", SECRETS[:1]), ("w2", SECRETS)):
        store = server.connect(worker)
        loaded = await load(store, plans, TENANT, RUN)
        assert loaded is not None
        owner = journal(store, worker, loaded.state, loaded.journal_seq, masked=True)
        owner.stage(RunClaimed(worker=worker))
        for text in words:
            owner.stage(user_turn(f"use {text}"))
        owners.append(owner)
    stale, current = owners
    await current.commit()
    with pytest.raises(Fenced):
        await stale.commit()

    stored = await gateway.log.read(gateway.subjects.journal(TENANT, RUN))
    assert not any(text.encode() in message.data for message in stored for text in SECRETS)
    third = await load(gateway, plans, TENANT, RUN, secrets=True)
    assert third is not None
    assert third.plain == current.plain
    assert [e.payload[0].content[0].text for e in third.plain.values()] == [  # type: ignore[attr-defined]
        f"use {text}" for text in SECRETS
    ]


async def test_an_effect_that_the_next_owner_had_is_not_had_again() -> None:
    server = MemoryServer()
    address = Address(TENANT, "agent", "teller")
    results = []
    for worker in ("w2", "w1"):
        store = server.connect(worker)
        rows = RowStore(store.log, store.subjects)
        write = Write(address=address, key="n", now_ns=time.time_ns(), effect_id=f"{RUN}.4")
        results.append(await rows.write(write, writes.incr(write, 1)))
    assert results == [b'{"value":1}', b'{"value":1}']
    assert len(server.stream("STATE")) == 1


async def test_a_process_that_came_a_moment_ago_is_not_judged_dead() -> None:
    server = MemoryServer()
    old = Cluster(server.connect("w1"), "w1", Member(slots=1), alone_at_boot=True)
    await old.start()
    new = Cluster(server.connect("w2"), "w2", Member(slots=1), alone_at_boot=False)
    await new.start()
    assert not old.is_alive("w2")
    assert not await old.is_gone("w2")
    assert await old.is_gone("w3")
    await new.stop()
    await old.stop()


def item(run: str) -> StartItem:
    return StartItem(
        run=run,
        session=run.replace("r_", "s_"),
        tenant=TENANT,
        agent_id="fixed",
        gateway="g",
        not_after_ns=0,
        events=[],
        claims_handle=True,
    )


async def test_a_holder_that_never_began_cannot_begin_once_its_handle_has_passed_on() -> None:
    server = MemoryServer()
    store = server.connect("w1")
    admission = Admission(store)
    await admission.admit(item(RUN), writer="w1", ts=1)
    await admission.admit(item("r_ab00000000000002"), writer="w2", ts=2)
    with pytest.raises(Fenced):
        await begun(store, "w1")


async def test_a_run_that_began_holds_its_handle() -> None:
    store = MemoryServer().connect("w1")
    await begun(store, "w1")
    assert not await ended(store, TENANT, RUN, "reason", writer="w2", ts=1)
    assert not await withdraw(store, TENANT, RUN, "reason", writer="w2", ts=1)


class Reader:
    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def on_commit(self, commit: object) -> None:
        """Only text is of interest."""

    def on_delta(self, delta: Delta) -> None:
        self.deltas.append(delta)


async def test_text_says_which_commit_it_follows_and_is_forgotten_with_its_writer() -> None:
    store = MemoryServer().connect("w1")
    live = LiveRuns(store.live)
    live.opened(RUN, remote=False)
    events: list[Event] = [Started()]
    await begun(store, "w1")
    (message,) = await store.log.read(store.subjects.journal(TENANT, RUN))
    header = decode(message.data).header
    live.commit(RUN, message.seq, header, events, message.data)
    live.delta(RUN, 1, "so far")
    reader = Reader()
    live.attach(RUN, reader)
    assert reader.deltas == [Delta(1, 0, "so far", 1)]
    live.closed(RUN)
    late = Reader()
    live.attach(RUN, late)
    assert late.deltas == []
    live.detach(RUN, reader)
    live.detach(RUN, late)
    assert live.readers(RUN) == 0
