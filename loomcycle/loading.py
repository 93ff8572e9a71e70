"""A run read back from its journal: commits checked, blobs fetched, folded, secrets opened.

Live execution, recovery and continuation all begin here; nothing else reads a journal to act.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from events.commit import BrokenChain, Chain, Commit, JournalError, decode
from events.log import EventStore, Message
from events.plan import RunPlan, decode_plan, encode_plan
from events.vocabulary import TYPES, Event, RunRef, RunStarted
from loomcycle.journal import seal_of
from replay import conversation
from replay.fold import apply_commit
from replay.history import conversation_after
from replay.state import State

COMMITS_PER_SLICE = 200
"""Commits decoded and folded before the event loop gets a turn."""


class Plans:
    """Plans by name, decoded once. Blobs never change, so nothing is invalidated."""

    def __init__(self, store: EventStore, keep: int = 1024) -> None:
        self._store, self._keep = store, keep
        self._plans: OrderedDict[str, RunPlan] = OrderedDict()

    async def put(self, plan: RunPlan) -> str:
        """Store ``plan`` (once) and return its name."""
        name, data = encode_plan(plan)
        if name not in self._plans:
            await self._store.blobs.put(data)
            self._remember(name, plan)
        return name

    async def get(self, name: str) -> RunPlan:
        """Raises KeyError when the blob is missing."""
        plan = self._plans.get(name)
        if plan is None:
            plan = decode_plan(await self._store.blobs.get(name))
            self._remember(name, plan)
        return plan

    def _remember(self, name: str, plan: RunPlan) -> None:
        self._plans[name] = plan
        while len(self._plans) > self._keep:
            self._plans.popitem(last=False)


async def give_way(index: int) -> None:
    """Before the commit ``index`` of a journal: now and then the event loop gets a turn."""
    if index and index % COMMITS_PER_SLICE == 0:
        await asyncio.sleep(0)


@dataclass
class LoadedRun:
    """``plain`` holds unmasked events by number, where their seals could be opened; ``size`` is
    that of all bodies in bytes."""

    state: State
    journal_seq: int
    size: int
    plain: dict[int, Event] = field(default_factory=dict)


async def read_commits(store: EventStore, tenant: str, run_id: str) -> list[Commit]:
    """All commits of a run with their blobs, chain unchecked. Raises JournalError, LogError."""
    messages = await store.log.read(store.subjects.journal(tenant, run_id))
    commits: list[Commit] = []
    for index, message in enumerate(messages):
        await give_way(index)
        commits.append(await whole_commit(store, message))
    return commits


async def whole_commit(store: EventStore, message: Message) -> Commit:
    """Decode one message and fetch the bodies kept as blobs."""
    commit = decode(message.data, message.seq)
    names = commit.blobs()
    if names:
        try:
            commit.fill({name: await store.blobs.get(name) for name in names})
        except KeyError as missing:
            raise BrokenChain(
                commit.run, commit.c, commit.seq, f"blob {missing} is missing"
            ) from None
    return commit


async def load(
    store: EventStore, plans: Plans, tenant: str, run_id: str, *, secrets: bool = False
) -> LoadedRun | None:
    """Fold a run's journal; None when it holds nothing. Raises JournalError, LogError."""
    commits = await read_commits(store, tenant, run_id)
    if not commits:
        return None
    state = await fold_commits(store, plans, tenant, commits)
    size = sum(len(body) for commit in commits for body in commit.bodies)
    loaded = LoadedRun(state, commits[-1].seq, size)
    if secrets:
        loaded.plain = await _open_seals(store, run_id, commits)
    return loaded


async def fold_commits(
    store: EventStore, plans: Plans, tenant: str, commits: list[Commit]
) -> State:
    """Fold checked commits with their plan and history."""
    started = opening(commits[0])
    if started is None:
        state = State(NO_PLAN)
    else:
        history: list[conversation.Message] = []
        if started.continues and started.previous is not None:
            history = await session_history(store, plans, tenant, started.previous)
        state = State(await _plan_of(plans, commits[0], started), history)
    await _fold_checked(state, commits[0].run, commits)
    return state


async def _fold_checked(state: State, run_id: str, commits: list[Commit]) -> None:
    chain = Chain(run_id)
    for index, commit in enumerate(commits):
        await give_way(index)
        chain.check(commit)
        apply_commit(state, commit)


async def session_history(
    store: EventStore, plans: Plans, tenant: str, last: RunRef
) -> list[conversation.Message]:
    """The conversation of a session up to and including run ``last``, oldest first.

    Each run is folded with what came before it, for a compaction may have replaced that.
    """
    runs: list[tuple[RunStarted, list[Commit]]] = []
    ref: RunRef | None = last
    while ref is not None:
        commits = [
            c for c in await read_commits(store, tenant, ref.run) if c.header.events[0].n <= ref.n
        ]
        if not commits:
            raise JournalError(ref.run, 0, 0, "an earlier run of the session is missing")
        started = opening(commits[0])
        if started is None:
            break
        runs.append((started, commits))
        ref = started.previous
    history: list[conversation.Message] = []
    for started, commits in reversed(runs):
        plan = await _plan_of(plans, commits[0], started)
        state = State(plan, history if started.continues else None)
        await _fold_checked(state, started.run, commits)
        history = conversation_after(history, state)
    return history


async def _plan_of(plans: Plans, first: Commit, started: RunStarted) -> RunPlan:
    try:
        return await plans.get(started.plan)
    except KeyError:
        raise BrokenChain(first.run, 1, first.seq, f"plan {started.plan} is missing") from None


def opening(commit: Commit) -> RunStarted | None:
    """The ``run.started`` of a first commit; None for a tombstone."""
    event = commit.records()[0].event
    return event if isinstance(event, RunStarted) else None


NO_PLAN = RunPlan(agent="", provider="", model="")

_decode_plain = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def _open_seals(store: EventStore, run_id: str, commits: list[Commit]) -> dict[int, Event]:
    plain: dict[int, Event] = {}
    for commit in commits:
        masked = {e.n: e.type for e in commit.header.events if e.masked}
        if not masked:
            continue
        sealed = await store.seals.get(run_id, seal_of(commit.hash))
        if sealed is None:
            continue
        for n, raw in _decode_plain(sealed).items():
            plain[int(n)] = msgspec.json.decode(raw, type=TYPES[masked[int(n)]])
    return plain
