"""Children of a run: started under ids that follow from the call, watched, cancelled with it.

The parent's journal says ``child.started`` before the child's first commit; whoever takes the
parent over looks after children that have none, and after ends that nobody told. A child is
an ordinary run otherwise: it needs its parent for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from events import inbox
from events.commit import JournalError
from events.content import ContentBlock, Segment
from events.vocabulary import (
    ChildFinished,
    ChildStarted,
    Event,
    ParentCall,
    RunFinished,
    RunStarted,
    SpawnChildBody,
    SpawnChildResult,
    SpawnChildStarted,
)
from loomcycle.admission import terminal
from loomcycle.call_input import given_to_children
from loomcycle.errors import CommandError
from loomcycle.journal import RunJournal, patiently, withdraw
from loomcycle.loading import load
from loomcycle.masking import decode_credentials
from loomcycle.ownership import CREDENTIALS
from loomcycle.services import Services
from loomcycle.starts import opening_of
from loomcycle.wakes import wake_data
from replay import children
from replay.children import ChildIds, Spawn, child_ids
from replay.machine import MACHINE_VERSION, StartChildren
from replay.state import Call, Child

PARENT_CANCELLED = "parent run cancelled"
"""Why a child is cancelled whose parent has ended (loop.md section 8)."""


class Birth(NamedTuple):
    """A child that can be started: the events of its first commit. ``entry`` of ``call``."""

    call: Call
    entry: int
    ids: ChildIds
    opening: list[Event]


class Children:
    """The children of one run."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal
        self._told_to_end: set[str] = set()
        self._shown = self._finished() if services.resume_fanout else set()

    async def start(self, effect: StartChildren, commit: Callable[[], Awaitable[None]]) -> None:
        """Record the children that ``effect`` names, then make their first commits.

        One that cannot be resolved has finished at once. Raises LogError, Fenced.
        """
        call, journal = effect.call, self._journal
        indexes = [index for index, _ in effect.spawns]
        prepared = await asyncio.gather(*(self._prepare(call, index) for index in indexes))
        births: list[Birth] = []
        for index, outcome in zip(indexes, prepared, strict=True):
            if isinstance(outcome, Birth):
                births.append(outcome)
                self._record(outcome)
            else:
                journal.stage(ChildFinished(tool_use_id=call.id, index=index, error=outcome))
        if self._services.resume_fanout:
            self.show_results()
        await commit()
        await self._begin(births)

    async def look_after(self) -> None:
        """After a takeover: begin children that have no journal, record ends not told yet.

        Raises LogError, Fenced.
        """
        running = list(self._running())
        looks = await asyncio.gather(*(self._look(*entry) for entry in running))
        births: list[Birth] = []
        for found in looks:
            if isinstance(found, ChildFinished):
                self._journal.stage(found)
            elif found is not None:
                births.append(found)
        if births and self._journal.staged:
            await self._journal.commit()
        await self._begin(births)

    async def cancel(self, reason: str) -> None:
        """Ask all children that run to end; one that has not begun never will."""
        waiting = [child for _, _, child in self._running() if child.run not in self._told_to_end]
        await asyncio.gather(*(self._cancel(child.run, reason) for child in waiting))

    def show_results(self) -> None:
        """Stage what re-read streams are shown of children that finished since the last time.

        What had finished before this owner came was shown in the commit that said so.
        """
        for call, index in sorted(self._finished() - self._shown):
            self._journal.stage(self._result_shown(call, index))
        self._shown = self._finished()

    # -- beginning

    async def _prepare(self, call: Call, index: int) -> Birth | str:
        """The child of an entry, or why there can be none."""
        services, journal = self._services, self._journal
        facts = journal.state.started
        spawn = self._entries(call)[index]
        ids = child_ids(facts.run, call.n, index)
        assert services.child_plans is not None, "a run with the Agent tool needs child plans"
        planner = services.child_plans
        try:
            resolved = await patiently(lambda: planner.resolve(journal.state, spawn))
        except CommandError as cause:
            return str(cause)
        started = RunStarted(
            run=ids.run,
            session=ids.session,
            agent=spawn.name,
            agent_id=ids.agent_id,
            tenant=facts.tenant,
            user_id=facts.user_id,
            user_tier=facts.user_tier,
            plan=resolved.name,
            machine=MACHINE_VERSION,
            origin="child",
            reader="continue",
            principal=facts.principal,
            token_id=facts.token_id,
            parent_agent_id=facts.agent_id,
            parent=ParentCall(facts.run, call.n, index),
            depth=facts.depth + 1,
            root=facts.root or facts.run,
            parent_context=facts.parent_context,
            caller_hosts=facts.caller_hosts,
            web_search_filter=facts.web_search_filter,
            sealed=(CREDENTIALS,) if CREDENTIALS in facts.sealed else (),
            started_ns=services.now_ns(),
        )
        said = (Segment("user", (ContentBlock("trusted-text", spawn.prompt),)),)
        return Birth(call, index, ids, opening_of(started, said, resolved.system_prompt))

    def _entries(self, call: Call) -> list[Spawn]:
        """The entries of a call in plain text; masks in what a person edited stay masks."""
        return children.read(given_to_children(call, self._journal)).entries()

    def _record(self, birth: Birth) -> None:
        call_id, index, ids = birth.call.id, birth.entry, birth.ids
        facts = birth.opening[0]
        assert isinstance(facts, RunStarted)
        self._journal.stage(
            ChildStarted(
                tool_use_id=call_id,
                index=index,
                run=ids.run,
                session=ids.session,
                agent=facts.agent,
                agent_id=ids.agent_id,
            )
        )
        if self._services.resume_fanout:
            body = SpawnChildBody(
                tool_use_id=call_id, index=index, run_id=ids.run, agent=facts.agent
            )
            self._journal.stage(SpawnChildStarted(spawn_child=body))

    async def _begin(self, births: list[Birth]) -> None:
        if births:
            sealed = await self._credentials()
            await asyncio.gather(*(self._begin_one(birth, sealed) for birth in births))

    async def _begin_one(self, birth: Birth, sealed: bytes | None) -> None:
        """Seal the credentials under the child's own id, then make its first commit."""
        services, run = self._services, birth.ids.run
        assert services.births is not None, "a process that advances runs has a worker"
        if sealed is not None:
            await patiently(lambda: services.store.seals.put(run, CREDENTIALS, sealed))
        await services.births.begin_child(birth.opening, decode_credentials(sealed))

    async def _credentials(self) -> bytes | None:
        """Bearer and credentials of this run, for its children."""
        facts = self._journal.state.started
        if CREDENTIALS not in facts.sealed:
            return None
        seals = self._services.store.seals
        return await patiently(lambda: seals.get(facts.run, CREDENTIALS))

    # -- looking

    async def _look(self, call: Call, index: int, child: Child) -> ChildFinished | Birth | None:
        """How a child ended; what to begin when it has not begun; None while it runs."""
        services, journal = self._services, self._journal
        store = services.store
        subject = store.subjects.journal(journal.tenant, child.run)
        last = await patiently(lambda: store.log.last(subject))
        if last is not None:
            return await self._end(call, index, child) if terminal(last) else None
        outcome = await self._prepare(call, index)
        if isinstance(outcome, Birth):
            return outcome
        if not await self._withdraw(child.run, outcome):
            return None
        return self._ended(call, index, child, RunFinished(status="failed", error=outcome), "")

    async def _end(self, call: Call, index: int, child: Child) -> ChildFinished:
        store, plans = self._services.store, self._services.plans
        tenant, final_text = self._journal.tenant, ""
        try:
            loaded = await patiently(lambda: load(store, plans, tenant, child.run))
        except JournalError as cause:
            finished = RunFinished(status="failed", error=str(cause))
        else:
            assert loaded is not None
            assert loaded.state.finished is not None
            finished, final_text = loaded.state.finished, loaded.state.final_text
        return self._ended(call, index, child, finished, final_text)

    def _ended(
        self, call: Call, index: int, child: Child, finished: RunFinished, final_text: str
    ) -> ChildFinished:
        ids = child_ids(self._journal.state.run, call.n, index)
        agent = self._entries(call)[index].name
        ok, text, error = children.outcome(agent, ids, finished, final_text)
        return ChildFinished(
            tool_use_id=call.id, index=index, run=child.run, ok=ok, text=text, error=error
        )

    def _running(self) -> Iterator[tuple[Call, int, Child]]:
        """Children that this journal does not know to have ended."""
        for call in self._waiting_calls():
            for index, child in call.children.items():
                if child.finished is None:
                    yield call, index, child

    def _waiting_calls(self) -> Iterator[Call]:
        for call in self._journal.state.pending():
            if call.waiting is not None and call.waiting.kind == "children":
                yield call

    # -- ending

    async def _cancel(self, run: str, reason: str) -> None:
        store, tenant = self._services.store, self._journal.tenant
        journal = store.subjects.journal(tenant, run)
        last = await patiently(lambda: store.log.last(journal))
        begun = last is not None or not await self._withdraw(run, reason)
        if begun and (last is None or not terminal(last)):
            message = inbox.CancelMessage(id=f"parent:{run}", reason=reason)
            subject, data = store.subjects.inbox(tenant, run), inbox.encode(message)
            await patiently(lambda: store.log.append(subject, data, msg_id=message.id))
            store.live.poke(run, b"inbox")
            await patiently(lambda: store.wakes.post(run, message.id, wake_data(tenant)))
        self._told_to_end.add(run)

    async def _withdraw(self, run: str, reason: str) -> bool:
        """Whether a child without journal can never begin any more."""
        services, tenant = self._services, self._journal.tenant
        withdrawn = await patiently(
            lambda: withdraw(
                services.store,
                tenant,
                run,
                reason,
                writer=services.process,
                ts=services.now_ns(),
            )
        )
        if withdrawn and CREDENTIALS in self._journal.state.started.sealed:
            await patiently(lambda: services.store.seals.delete(run))
        return withdrawn

    # -- showing

    def _finished(self) -> set[tuple[int, int]]:
        """(number of the call, index of the entry) of children of this turn that have ended."""
        return {
            (call.n, index)
            for call in self._waiting_calls()
            for index, child in call.children.items()
            if child.finished is not None
        }

    def _result_shown(self, n: int, index: int) -> SpawnChildResult:
        call = next(call for call in self._waiting_calls() if call.n == n)
        end = call.children[index].finished
        assert end is not None
        body = SpawnChildBody(
            tool_use_id=call.id,
            index=index,
            run_id=end.run,
            agent=children.read(children.arguments(call)).entries()[index].name,
            ok=end.ok,
            output=end.text,
            error=end.error,
        )
        return SpawnChildResult(spawn_child=body)
