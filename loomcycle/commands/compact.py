"""Compacting a conversation on request: of a parked run by its owner, of an ended one here.

Specification: compaction.md section 5. A parked run is asked over its inbox and answers in its
journal; to the journal of an ended run a commit is added, for those who continue its session.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from events import inbox
from events.log import OutcomeUnknown, WrongSequence
from events.plan import Pair
from events.vocabulary import (
    CompactionRequested,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    RunAmended,
    RunFinished,
    RunParked,
    UserInput,
)
from loomcycle.admission import SESSION_BUSY, withdrawn
from loomcycle.auth import Principal
from loomcycle.commands.inputs import MAX_UNREAD, read_all
from loomcycle.compaction_turn import (
    BLANK,
    FAILED,
    OverBudget,
    Summary,
    bounded,
    outcome,
    reserve,
    summarise,
)
from loomcycle.definitions import Definitions
from loomcycle.errors import (
    AgentGone,
    BudgetSpent,
    InboxFull,
    InvalidArgument,
    LaterRuns,
    ModelUnavailable,
    NoRunForId,
    RunBusy,
    SummaryFailed,
    SummaryUnavailable,
    UnknownAgent,
)
from loomcycle.journal import amend, withdraw
from loomcycle.loading import LoadedRun, load, whole_commit
from loomcycle.planning import Narrowing
from loomcycle.providers.base import ProviderError, ProviderNotConfigured
from loomcycle.run_facts import RunReader, Standing
from loomcycle.said import stir
from loomcycle.services import Services
from loomcycle.session_lock import Amending, SessionLine, line_of, take
from replay.compaction import MIN_MESSAGES, Cut, cut, estimate, summary_request
from replay.compaction_proof import failure
from replay.fold import apply
from replay.history import completion
from replay.machine import CODE_PROVIDER
from replay.state import Phase, State

MANUAL = "manual"

WAIT_S = 180.0
"""For so long the owner of a parked run is waited for; it is a model call."""

POLL_S = 0.02

ADMITTED_NS = 1_000_000_000
"""For so long a run that was admitted to the session may have no commit."""

RACES = 3
"""So often somebody else may amend the same run at the same time."""


class Compacted(Struct, frozen=True):
    """``applied``: by a parked run (``live``), after a run's end (``marker``), or not at all."""

    run_id: str
    compacted: bool
    before_tokens: int
    after_tokens: int
    applied: Literal["live", "marker", "noop"]


class _Summarised(NamedTuple):
    """``max_tokens``: how long a budget let it be, 0 when none bounds it."""

    made: Summary
    max_tokens: int


class Compactions:
    """Compacts runs on request of people."""

    def __init__(self, services: Services, runs: RunReader, definitions: Definitions) -> None:
        self._services = services
        self._runs = runs
        self._definitions = definitions

    async def compact(self, principal: Principal, run_id: str) -> Compacted:
        """Raises NoRunForId, RunBusy, AgentGone, LaterRuns, InboxFull, BudgetSpent,
        SummaryFailed, SummaryUnavailable, LogError."""
        services = self._services
        for race in range(RACES):
            standing = await self._runs.standing(run_id)
            if standing is None or not principal.sees(standing.facts.tenant):
                raise NoRunForId
            tenant = standing.facts.tenant
            loaded = await self._load(tenant, run_id, standing.last.seq)
            state = loaded.state
            if race and services.budgets is not None:
                await services.budgets.ended(state)
            line = SessionLine((), 0, False)
            if state.phase is Phase.FINISHED:
                line = await line_of(services.store, state.started.tenant, state.started.session)
                if await self._superseded(state, line):
                    raise LaterRuns
                if await self._has_moved(standing, loaded):
                    continue
            elif state.phase is not Phase.AWAITING:
                raise RunBusy
            if len(state.messages) + len(completion(state)) < MIN_MESSAGES:
                return _noop(state)
            agent = state.started.agent
            try:
                self._definitions.agent(agent, state.started.tenant)
            except UnknownAgent:
                raise AgentGone(agent) from None
            if state.phase is Phase.AWAITING:
                return await self._ask_owner(run_id, standing, loaded)
            try:
                return await self._amend(state, line.end)
            except WrongSequence:
                continue
        raise RunBusy

    async def _load(self, tenant: str, run_id: str, seq: int) -> LoadedRun:
        """The run as of the commit ``seq`` or later; a replica that lags is asked again."""
        services = self._services
        while True:
            loaded = await load(services.store, services.plans, tenant, run_id)
            if loaded is not None and loaded.journal_seq >= seq:
                return loaded
            await asyncio.sleep(POLL_S)

    # --- a parked run ---------------------------------------------------------------------

    async def _ask_owner(self, run_id: str, standing: Standing, loaded: LoadedRun) -> Compacted:
        """Put the request into the inbox and wait for what the journal says about it."""
        if cut(loaded.state, MANUAL) is None or loaded.state.provider == CODE_PROVIDER:
            return _noop(loaded.state)
        store, tenant = self._services.store, standing.facts.tenant
        subject = store.subjects.inbox(tenant, run_id)
        _, unread = await read_all(store, subject, loaded.journal_seq)
        said = sum(_is_input(message.data) for message in unread)
        if said:
            raise InboxFull if said >= MAX_UNREAD else RunBusy
        message = inbox.CompactMessage(id=f"i_{self._services.new_hex()}")
        data = inbox.encode(message)
        try:
            seq = await store.log.append(subject, data, msg_id=message.id)
        except OutcomeUnknown:
            seq = await store.log.append(subject, data, msg_id=message.id)
        await stir(store, tenant, run_id, message.id)
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._answer(standing, run_id, message.id, seq)
        except TimeoutError:
            raise SummaryFailed(
                f"summarize: no outcome within {WAIT_S:.0f} s; the run compacts when it can"
            ) from None

    async def _answer(
        self, standing: Standing, run_id: str, message_id: str, after: int
    ) -> Compacted:
        store, tenant = self._services.store, standing.facts.tenant
        requested = False
        cause = ""
        while True:
            end, commits = await read_all(store, standing.facts.journal, after)
            after = max(after, end)
            for commit in commits:
                for _, event in (await whole_commit(store, commit)).events():
                    match event:
                        case CompactionRequested(inbox=ident) if ident == message_id:
                            requested = True
                        case UserInput() | RunParked() | RunFinished() if not requested:
                            raise RunBusy  # something else came first, the request concerns nothing
                        case Error(error=text) if requested:
                            cause = text.removeprefix(failure(MANUAL, ""))
                        case ContextCompaction(context_compaction=body) if requested:
                            tokens = (body.before_tokens, body.after_tokens)
                            return Compacted(run_id, True, *tokens, "live")
                        case CompactionSkipped(reason=reason) if requested:
                            loaded = await self._load(tenant, run_id, commit.seq)
                            return _skipped(loaded.state, reason, cause)
                        case RunFinished():
                            raise RunBusy
            await asyncio.sleep(POLL_S)

    # --- an ended run ---------------------------------------------------------------------

    async def _amend(self, state: State, after: int) -> Compacted:
        """Summarise here and add the compaction to the journal, if the session still ends at
        ``after``: nobody went on with the old conversation. Raises WrongSequence, …"""
        services = self._services
        pair = await self._pair(state)
        events: list[Event] = []
        self._add(
            state, events, RunAmended(by=services.process, provider=pair.provider, model=pair.model)
        )
        division = None if pair.provider == CODE_PROVIDER else cut(state, MANUAL)
        if division is None:
            return _noop(state)
        budgets = services.budgets
        try:
            summary = await self._summary(state, division)
            for event in outcome(state, division, MANUAL, *summary):
                self._add(state, events, event)
            await amend(
                services.store,
                state,
                events,
                noted=await self._note(state, after),
                writer=services.process,
                ts=services.now_ns(),
            )
        finally:
            if budgets is not None:
                await budgets.ended(state)
        made = events[-1]
        assert isinstance(made, ContextCompaction)
        body = made.context_compaction
        return Compacted(state.run, True, body.before_tokens, body.after_tokens, "marker")

    async def _note(self, state: State, after: int) -> int:
        """Take the session over for the amendment of its last run; sequence of the note."""
        services, facts = self._services, state.started
        subject = services.store.subjects.session(facts.tenant, facts.session)
        note = Amending(by=services.new_hex(), amends=facts.run)
        noted = await take(services.store, subject, note, after)
        if not noted:
            raise WrongSequence(f"the session of {facts.run} went on")
        return noted

    async def _summary(self, state: State, division: Cut) -> _Summarised:
        request = summary_request(state, division)
        try:
            longest = await reserve(self._services, state, request)
            made = await summarise(self._services.providers, bounded(request, longest))
        except OverBudget as cause:
            raise BudgetSpent(str(cause)) from None
        except (ProviderError, ProviderNotConfigured) as cause:
            raise SummaryFailed(f"summarize: {self._masked(str(cause))}") from None
        if not made.text:
            raise SummaryFailed("summarization produced no text")
        return _Summarised(made, longest)

    def _add(self, state: State, events: list[Event], event: Event) -> None:
        """Fold ``event`` as it will be stored. (The run's own seals went with its end.)"""
        redaction = self._services.redaction
        shown = event if redaction is None else redaction.for_run({}).mask(event)
        apply(state, shown, state.n + 1, self._services.now_ns())
        events.append(shown)

    def _masked(self, text: str) -> str:
        redaction = self._services.redaction
        return text if redaction is None else redaction.text(text)

    async def _pair(self, state: State) -> Pair:
        """Who summarises: what the agent resolves to today. Raises SummaryUnavailable."""
        facts, settings = state.started, state.plan.compaction
        try:
            narrowing = Narrowing(user_tier=facts.user_tier)
            plan = (await self._definitions.resolve(facts.agent, facts.tenant, narrowing)).plan
            if plan.provider != CODE_PROVIDER:
                self._services.providers.get(plan.provider)
        except (InvalidArgument, ModelUnavailable, ProviderNotConfigured) as cause:
            raise SummaryUnavailable(str(cause)) from None
        own = settings.model if plan.provider == state.plan.provider else plan.compaction.model
        return Pair(plan.provider, own or plan.model)

    async def _superseded(self, state: State, line: SessionLine) -> bool:
        """Whether the session has runs after this one, which would not see the compaction."""
        facts, runs = state.started, line.runs
        for run_id in runs[runs.index(facts.run) + 1 :] if facts.run in runs else runs:
            if not await self._never_began(facts.tenant, run_id):
                return True
        return False

    async def _never_began(self, tenant: str, run_id: str) -> bool:
        """Whether an admitted run said nothing. One without a commit is about to make its first;
        if it takes too long it was lost, and is withdrawn."""
        services = self._services
        store, until = services.store, services.now_ns() + ADMITTED_NS
        while True:
            last = await store.log.last(store.subjects.journal(tenant, run_id))
            if last is not None:
                return withdrawn(last)
            now = services.now_ns()
            if now >= until:
                return await withdraw(
                    store, tenant, run_id, SESSION_BUSY, writer=services.process, ts=now
                )
            await asyncio.sleep(POLL_S)

    async def _has_moved(self, standing: Standing, loaded: LoadedRun) -> bool:
        """Whether the journal got another commit before the session was looked at."""
        last = await self._services.store.log.last(standing.facts.journal)
        return last is None or last.seq != loaded.journal_seq


def _noop(state: State) -> Compacted:
    tokens = estimate([*state.messages, *completion(state)])
    return Compacted(state.run, False, tokens, tokens, "noop")


def _skipped(state: State, reason: str, cause: str) -> Compacted:
    """Raises SummaryFailed unless there was nothing to do."""
    if reason == FAILED:
        raise SummaryFailed(f"summarize: {cause}")
    if reason == BLANK:
        raise SummaryFailed("summarization produced no text")
    return _noop(state)


def _is_input(data: bytes) -> bool:
    try:
        return isinstance(inbox.decode(data), inbox.InputMessage)
    except msgspec.DecodeError:
        return False
