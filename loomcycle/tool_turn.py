"""The tool calls of one turn: run in parallel, results committed in completion order.

A call goes through steps that follow from its journal: hooks before it, a person's leave, the
tool, hooks after it. What recovery may repeat is decided here (kernel.md section 5): safe calls
and calls into our own stores (by their effect id), and hooks after a call whose result was not
committed yet; all others never, and the model is then told that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from events.vocabulary import ToolResult, ToolStarted, ToolUse
from loomcycle import approvals
from loomcycle.call_input import answered_text, denied_text, given_input
from loomcycle.hooks.around import RunHooks
from loomcycle.hooks.chain import Verdict
from loomcycle.journal import RunJournal
from loomcycle.masking import stored_form
from loomcycle.services import Services
from loomcycle.tools.base import CallContext, Deferred, Repeat, Tool, ToolOutput
from replay.machine import CODE_PROVIDER, CallTools, CloseCall
from replay.state import Call

RECOVERY_MARGIN_NS = 60_000_000_000
"""Own stores are searched from this long before the call on (clocks of several machines)."""

FRESH_NS = 1_000_000_000
"""A call that begins later than this after it was asked for may have passed to another worker
without this one's noticing; less than a lease lasts."""

UNKNOWN_OUTCOME = (
    "interrupted: the runtime stopped while this call was under way; whether it took effect is "
    "unknown, and it was not repeated"
)

Commit = Callable[[], Awaitable[None]]
Outcome = Verdict | ToolOutput | Deferred


class Step(Enum):
    """What a call needs next."""

    PREPARE = auto()
    """Ask the hooks before it."""
    ASK = auto()
    """Ask a person; the answer comes through the inbox."""
    RUN = auto()
    GIVE = auto()
    """Nothing runs: hooks or a crash have decided the result."""


@dataclass
class Work:
    """A call on its way. ``began``: its ``tool.started`` was written by this activation."""

    call: Call
    tool: Tool
    step: Step = Step.RUN
    began: bool = False

    @property
    def unsafe(self) -> bool:
        return self.tool.repeat is Repeat.UNSAFE


class ToolTurn:
    """Performs ``CallTools`` effects of one run."""

    def __init__(self, services: Services, journal: RunJournal, *, resumed_n: int) -> None:
        self._services = services
        self._journal = journal
        self._hooks = RunHooks(services.hooks, journal)
        self._resumed_n = resumed_n
        self.only_repeatable = False
        """Whether everything performed last may be performed again after a crash."""

    async def perform(self, effect: CallTools, commit: Commit) -> None:
        """Stage and commit what each call comes to; a program's last result stays staged."""
        journal = self._journal
        slots = asyncio.Semaphore(max(1, journal.state.plan.tool_parallelism))
        ready = self._known(effect.calls)
        self.only_repeatable = not any(work.unsafe for work in ready)
        tasks: dict[asyncio.Task[Outcome], Work] = {}
        try:
            while ready or tasks:
                going = [work for work in ready if self._may_go(work)]
                if journal.staged and (going or tasks):
                    await commit()
                if len(going) == 1 and not tasks:
                    came = [(going[0], await self._advance(going[0]))]
                else:
                    tasks |= {asyncio.create_task(self._in_slot(w, slots)): w for w in going}
                    came = await _first(tasks)
                ready = [work for work, outcome in came if self._goes_on(work, outcome)]
        finally:
            await _abandon(tasks)
        if journal.staged and not self._keeps_staged():
            await commit()

    @property
    def asks_others(self) -> bool:
        """Whether a result is shown to hooks: an effect, which must not come before the claim."""
        hooks = self._services.hooks
        return hooks is not None and hooks.any

    async def close(self, effect: CloseCall) -> None:
        """Stage the result of a call that waited for it."""
        output = ToolOutput(answered_text(effect, self._journal), effect.is_error)
        self._result(effect.call, await self._hooks.after(effect.call, output))

    def _known(self, calls: Iterable[Call]) -> list[Work]:
        """Calls of tools that the run has; the others get their result here."""
        allowed = {spec.name for spec in self._journal.state.plan.tools}
        works: list[Work] = []
        for call in calls:
            tool = self._services.tools.get(call.name) if call.name in allowed else None
            if tool is None:
                self._result(call, ToolOutput(f"tool not found: {call.name}", True))
            else:
                works.append(Work(call, tool))
        return works

    def _keeps_staged(self) -> bool:
        return self.only_repeatable and self._journal.state.plan.provider == CODE_PROVIDER

    # --- steps ----------------------------------------------------------------------------

    def _may_go(self, work: Work) -> bool:
        """Stage what must be stored before the call's next step; False when it has to wait."""
        work.step = self._next(work)
        call = work.call
        if work.step is Step.ASK:
            asked = approvals.question(self._journal.state, call, self._services.now_ns())
            self._result(call, asked)
            return False
        if work.step is Step.RUN and work.unsafe:
            work.began = True
            self._journal.stage(ToolStarted(tool_use_id=call.id, effect_id=self._effect_id(call)))
        return True

    def _next(self, work: Work) -> Step:
        call, state = work.call, self._journal.state
        if call.started and work.unsafe:
            return Step.GIVE
        if self._hooks.are_due(call):
            return Step.PREPARE
        if call.prepared is not None and call.prepared.denied is not None:
            return Step.GIVE
        if approvals.is_missing(state, call):
            return Step.ASK
        return Step.RUN

    async def _advance(self, work: Work) -> Outcome:
        call = work.call
        match work.step:
            case Step.PREPARE:
                return await self._hooks.before(call)
            case Step.RUN:
                output = await self._run(call, work.tool)
            case _:
                output = self._given(call)
        if isinstance(output, Deferred):
            return output
        return await self._hooks.after(call, output)

    async def _in_slot(self, work: Work, slots: asyncio.Semaphore) -> Outcome:
        async with slots:
            return await self._advance(work)

    def _goes_on(self, work: Work, outcome: Outcome) -> bool:
        """Stage what a step came to; whether the call has another step now."""
        if isinstance(outcome, Verdict):
            for event in self._hooks.decided(work.call, outcome):
                self._journal.stage(event)
            return True
        self._result(work.call, outcome)
        return False

    async def _run(self, call: Call, tool: Tool) -> ToolOutput | Deferred:
        given = given_input(call, self._journal)
        if tool.repeat is Repeat.OWN_STORE:
            given = stored_form(given, self._journal)
        try:
            return await tool.call(given, self._context(call))
        except Exception as cause:
            return ToolOutput(f"{call.name} failed: {type(cause).__name__}: {cause}", True)

    def _given(self, call: Call) -> ToolOutput:
        prepared = call.prepared
        if prepared is None or prepared.denied is None:
            return ToolOutput(UNKNOWN_OUTCOME, True)
        return ToolOutput(denied_text(call, prepared, self._journal), prepared.denied_is_error)

    def _result(self, call: Call, output: ToolOutput | Deferred) -> None:
        for event in output.events:
            self._journal.stage(event)
        if isinstance(output, Deferred):
            self._journal.stage(output.waiting)
            return
        self._journal.stage(
            ToolResult(
                tool_use=ToolUse(call.id, call.name, call.input),
                text=output.text,
                is_error=output.is_error,
            )
        )

    # --- identity -------------------------------------------------------------------------

    def _effect_id(self, call: Call) -> str:
        return f"{self._journal.state.run}.{call.n}"

    def _context(self, call: Call) -> CallContext:
        state = self._journal.state
        facts = state.started
        now = self._services.now_ns()
        recovering = call.n <= self._resumed_n or now - call.ts > FRESH_NS
        return CallContext(
            run_id=facts.run,
            session_id=facts.session,
            agent_id=facts.agent_id,
            tenant=facts.tenant,
            user_id=facts.user_id,
            user_tier=facts.user_tier,
            effect_id=self._effect_id(call),
            plan=state.plan,
            started_ns=state.started_ns,
            now_ns=now,
            recovering_since=call.ts - RECOVERY_MARGIN_NS if recovering else None,
            provider=state.provider,
            model=state.model,
            used_tokens=state.used,
            caller_hosts=facts.caller_hosts,
            web_search_filter=facts.web_search_filter,
            call_n=call.n,
            tool_use_id=call.id,
            hosts=call.prepared.hosts if call.prepared is not None else (),
            state=state,
        )


async def _first(tasks: dict[asyncio.Task[Outcome], Work]) -> list[tuple[Work, Outcome]]:
    """What came in next, in the order of the calls; taken out of ``tasks``."""
    if not tasks:
        return []
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return [(tasks.pop(task), task.result()) for task in list(tasks) if task in done]


async def _abandon(tasks: Iterable[asyncio.Task[Outcome]]) -> None:
    left = list(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.gather(*left, return_exceptions=True)
