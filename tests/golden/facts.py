"""Everything that a journal means: effects asked for, final state, rows and frames.

The same functions write a golden journal and check it, over the code of the day. They read the
journal as the runtime does: from a log, with the plans and histories that it names.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from events.commit import Chain, Commit, Record
from events.frames import row_texts
from events.log import EventStore
from events.vocabulary import Unrecognised, UsageTotals, is_public
from loomcycle.feed import RunFeed
from loomcycle.live import LiveRuns
from loomcycle.loading import NO_PLAN, Plans, opening, read_commits, session_history
from replay.conversation import Message
from replay.fold import apply
from replay.machine import (
    CODE_PROVIDER,
    AwaitInput,
    CallModel,
    CallTools,
    CloseCall,
    Compact,
    Finish,
    Park,
    RejectOutput,
    StartChildren,
    next_effect,
)
from replay.program import program_hash, program_of
from replay.request import hash_of, model_request
from replay.state import Phase, State
from replay.verify import Report, verify

LONG = 4096
"""Texts over this many bytes are compared by their digest."""


class EffectFact(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An effect and the number of the event after which the machine asked for it."""

    after: int
    kind: str
    iteration: int = 0
    attempt: int = 0
    request: str = ""
    calls: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    status: str = ""
    stop_reason: str = ""
    error: str = ""
    entries: tuple[int, ...] = ()
    text: str = ""
    is_error: bool = False
    until_ns: int = 0


class StateFacts(Struct, frozen=True, kw_only=True):
    """The end of the fold. ``conversation`` is the rolling hash over all messages; ``masked``
    has (event, message, block) of each mask that a model sees."""

    phase: str
    n: int
    commits: int
    hash: str
    epoch: int
    claims: int
    iteration: int
    history: int
    messages: int
    conversation: str
    provider: str
    model: str
    usage: UsageTotals | None
    final_text: str
    error: str
    masked: tuple[tuple[int, int, int], ...]
    taken: tuple[str, ...]


class FrameFact(Struct, frozen=True, array_like=True):
    id: str
    event: str
    data: str


class RowFact(Struct, frozen=True, array_like=True):
    type: str
    event: str
    payload: str | None


class Facts(Struct, frozen=True, kw_only=True):
    """``live``: frames of the request that started the run; ``replay``: of a later reader."""

    effects: tuple[EffectFact, ...]
    state: StateFacts
    rows: tuple[RowFact, ...]
    live: tuple[FrameFact, ...]
    replay: tuple[FrameFact, ...]


async def facts_of(store: EventStore, tenant: str, run: str) -> Facts:
    """Read ``run`` back from ``store``. Raises JournalError."""
    commits = await read_commits(store, tenant, run)
    state, effects = _replayed(await _opened(store, tenant, commits[0]), commits)
    return Facts(
        effects=tuple(effects),
        state=_state_facts(state),
        rows=tuple(_rows(commits)),
        live=await _frames(store, tenant, run, replay=False),
        replay=await _frames(store, tenant, run, replay=True),
    )


async def proof_of(store: EventStore, tenant: str, run: str) -> Report:
    """What ``replay.verify`` says of the journal."""
    commits = await read_commits(store, tenant, run)
    state = await _opened(store, tenant, commits[0])
    return verify(state.plan, commits, state.messages)


async def _opened(store: EventStore, tenant: str, first: Commit) -> State:
    """The state before the first event: the run's plan and what it remembers."""
    started = opening(first)
    if started is None:
        return State(NO_PLAN)
    plans = Plans(store)
    history: list[Message] = []
    if started.continues and started.previous is not None:
        history = await session_history(store, plans, tenant, started.previous)
    return State(await plans.get(started.plan), history)


def _replayed(state: State, commits: list[Commit]) -> tuple[State, list[EffectFact]]:
    """Fold event by event, noting each change of what the machine asks for."""
    effects: list[EffectFact] = []
    chain = Chain(commits[0].run)
    asked: object = None
    for commit in commits:
        chain.check(commit)
        for record in commit.records():
            event = record.event
            if isinstance(event, Unrecognised):
                state.n, state.last_ts = record.n, record.ts
                continue
            apply(state, event, record.n, record.ts, masked=record.header.masked)
            effect = _effect(state)
            if effect is None or _same(asked, effect):
                continue
            asked = effect
            effects.append(_effect_fact(state, effect))
        state.commits, state.commit_hash = commit.c, commit.hash
        state.epoch, state.writer = commit.header.epoch, commit.header.writer
    return state, effects


def _effect(state: State) -> object:
    if state.phase in (Phase.NEW, Phase.OPENING):
        return None
    return next_effect(state)


def _same(before: object, now: object) -> bool:
    """Calls that are merely fewer than before are the same effect, further on."""
    if isinstance(before, CallTools) and isinstance(now, CallTools):
        return {call.n for call in now.calls} <= {call.n for call in before.calls}
    return before == now


def _effect_fact(state: State, effect: object) -> EffectFact:
    match effect:
        case CallModel(iteration, attempt):
            return EffectFact(
                after=state.n,
                kind="call_model",
                iteration=iteration,
                attempt=attempt,
                request=_request(state),
            )
        case CallTools(calls):
            return EffectFact(
                after=state.n,
                kind="call_tools",
                calls=tuple(call.id for call in calls),
                begun=tuple(call.id for call in calls if call.started),
            )
        case Finish(status, stop_reason, error):
            return EffectFact(
                after=state.n, kind="finish", status=status, stop_reason=stop_reason, error=error
            )
        case StartChildren(call, spawns):
            return EffectFact(
                after=state.n,
                kind="start_children",
                calls=(call.id,),
                entries=tuple(index for index, _ in spawns),
            )
        case CloseCall(call, text, is_error):
            return EffectFact(
                after=state.n,
                kind="close_call",
                calls=(call.id,),
                text=_shown(text),
                is_error=is_error,
            )
        case Compact(trigger):
            return EffectFact(after=state.n, kind="compact", text=trigger)
        case RejectOutput(error):
            return EffectFact(after=state.n, kind="reject_output", error=error)
        case AwaitInput(since_turn):
            return EffectFact(after=state.n, kind="await_input", iteration=since_turn)
        case Park(reason, until_ns):
            return EffectFact(after=state.n, kind="park", text=reason, until_ns=until_ns)
        case _:
            return EffectFact(after=state.n, kind="halt")


def _request(state: State) -> str:
    if state.plan.provider == CODE_PROVIDER:
        return program_hash(state, program_of(state))
    return hash_of(state, model_request(state))


def _state_facts(state: State) -> StateFacts:
    return StateFacts(
        phase=state.phase.value,
        n=state.n,
        commits=state.commits,
        hash=state.commit_hash,
        epoch=state.epoch,
        claims=state.claims,
        iteration=state.iteration,
        history=state.history,
        messages=len(state.messages),
        conversation=state.rolling.over(state.messages).hex(),
        provider=state.provider,
        model=state.model,
        usage=state.usage,
        final_text=_shown(state.final_text),
        error=state.error,
        masked=tuple((n, *place) for n, place in sorted(state.masked.items())),
        taken=tuple(sorted(state.taken)),
    )


def _rows(commits: list[Commit]) -> list[RowFact]:
    records = (record for commit in commits for record in commit.records())
    return [_row(record) for record in records if is_public(record.type)]


def _row(record: Record) -> RowFact:
    event, payload = row_texts(record.event, record.body)
    shown = None if payload is None else _shown(payload.decode())
    return RowFact(record.type, _shown(event.decode()), shown)


async def _frames(
    store: EventStore, tenant: str, run: str, *, replay: bool
) -> tuple[FrameFact, ...]:
    """What a reader who attaches after the end is sent."""
    feed = RunFeed(store, LiveRuns(store.live), tenant, run, process="reader", replay=replay)
    frames: list[FrameFact] = []
    async with feed:
        while not feed.ended:
            frames += [
                FrameFact(frame.id, frame.event, _shown(frame.data.decode()))
                for frame in await feed.next()
            ]
    return tuple(frames)


def _shown(text: str) -> str:
    data = text.encode()
    return text if len(data) <= LONG else f"sha256 {sha256(data).hexdigest()} of {len(data)} bytes"
