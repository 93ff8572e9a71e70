"""The tool calls of one turn: run in parallel, results committed in completion order.

What recovery may repeat is decided here (kernel.md section 5): safe calls again, calls into our
own stores by their effect id, all others never; the model is then told that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from events.vocabulary import ToolResult, ToolStarted, ToolUse
from loomcycle.journal import RunJournal
from loomcycle.masking import plain_input, stored_form
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


class ToolTurn:
    """Performs ``CallTools`` effects of one run."""

    def __init__(self, services: Services, journal: RunJournal, *, resumed_n: int) -> None:
        self._services = services
        self._journal = journal
        self._resumed_n = resumed_n
        self.only_repeatable = False
        """Whether everything performed last may be performed again after a crash."""

    async def perform(self, effect: CallTools, commit: Commit) -> None:
        """Stage and commit a result for each call; a program's last result stays staged."""
        journal, tools = self._journal, self._services.tools
        allowed = {spec.name for spec in journal.state.plan.tools}
        runnable: list[tuple[Call, Tool]] = []
        for call in effect.calls:
            tool = tools.get(call.name) if call.name in allowed else None
            if tool is None:
                self._result(call, ToolOutput(f"tool not found: {call.name}", True))
            elif call.started and tool.repeat is Repeat.UNSAFE:
                self._result(call, ToolOutput(UNKNOWN_OUTCOME, True))
            else:
                runnable.append((call, tool))
        unsafe = [call for call, tool in runnable if tool.repeat is Repeat.UNSAFE]
        self.only_repeatable = not unsafe
        for call in unsafe:
            journal.stage(ToolStarted(tool_use_id=call.id, effect_id=self._effect_id(call)))
        if unsafe:
            await commit()
        if len(runnable) == 1:
            call, tool = runnable[0]
            self._result(call, await self._call(call, tool))
        elif runnable:
            await self._all(runnable, commit)
        if journal.staged and not self._keeps_staged():
            await commit()

    def _keeps_staged(self) -> bool:
        return self.only_repeatable and self._journal.state.plan.provider == CODE_PROVIDER

    async def _all(self, runnable: list[tuple[Call, Tool]], commit: Commit) -> None:
        slots = asyncio.Semaphore(max(1, self._journal.state.plan.tool_parallelism))

        async def one(call: Call, tool: Tool) -> tuple[Call, ToolOutput | Deferred]:
            async with slots:
                return call, await self._call(call, tool)

        tasks = {asyncio.create_task(one(call, tool)) for call, tool in runnable}
        order = list(tasks)
        try:
            while tasks:
                finished, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(finished, key=order.index):
                    self._result(*task.result())
                if tasks:
                    await commit()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, call: Call, tool: Tool) -> ToolOutput | Deferred:
        given = plain_input(call, self._journal)
        if tool.repeat is Repeat.OWN_STORE:
            given = stored_form(given, self._journal)
        try:
            return await tool.call(given, self._context(call))
        except Exception as cause:
            return ToolOutput(f"{call.name} failed: {type(cause).__name__}: {cause}", True)

    async def close(self, effect: CloseCall) -> None:
        """Stage the result of a call that waited for it."""
        self._result(effect.call, ToolOutput(effect.text, effect.is_error))

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

    def _effect_id(self, call: Call) -> str:
        return f"{self._journal.state.run}.{call.n}"

    def _context(self, call: Call) -> CallContext:
        state = self._journal.state
        facts = state.started
        now = self._services.now_ns()
        recovering = call.n <= self._resumed_n or now - call.ts > FRESH_NS
        last = state.last_usage
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
            used_tokens=last.input_tokens + last.output_tokens if last is not None else 0,
            caller_hosts=facts.caller_hosts,
            web_search_filter=facts.web_search_filter,
            call_n=call.n,
            tool_use_id=call.id,
            state=state,
        )
