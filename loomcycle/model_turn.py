"""One turn of a run's model: stream the answer, show it live, stage what it said.

For a code-js agent the "model" is the run's program (``loomcycle/program_turn.py``). Nothing is
staged until the turn is over, so an abandoned turn leaves no trace but the text that was shown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from events.plan import Pair
from events.vocabulary import (
    ModelAnswered,
    ModelAttemptFailed,
    ModelFailed,
    Retry,
    RetryBody,
    Text,
    ToolCall,
    ToolUse,
    Usage,
    UsageTotals,
)
from loomcycle.journal import RunJournal
from loomcycle.masking import DeltaShow, holds_secret, tool_name, unmasked
from loomcycle.program_turn import ProgramTurn
from loomcycle.providers.base import (
    Capabilities,
    Done,
    ProviderError,
    ProviderNotConfigured,
    RetryDelta,
    TextDelta,
    ToolCallDelta,
)
from loomcycle.providers.base import Usage as CallUsage
from loomcycle.providers.defects import contained
from loomcycle.providers.errors import ErrorClass
from loomcycle.routing.recovery import (
    Failure,
    RetrySame,
    Stay,
    SwitchTo,
    failure_of,
    recover,
    retry_event,
    suppressed_event,
    switch_events,
)
from loomcycle.services import Services
from replay.machine import CODE_PROVIDER, CallModel
from replay.request import hash_of, model_request

Commit = Callable[[], Awaitable[None]]


class ModelTurn:
    """Performs ``CallModel`` effects of one run. ``began`` is the last one that was begun."""

    def __init__(self, services: Services, journal: RunJournal) -> None:
        self._services = services
        self._journal = journal
        self._program: ProgramTurn | None = None
        self.began: CallModel | None = None
        self.unfinished: Text | None = None
        self._pause: asyncio.Event | None = None
        self._hurried = False

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None

    def hurry(self) -> None:
        """Do not wait before calls are repeated: whoever takes the run over makes them."""
        self._hurried = True
        if self._pause is not None:
            self._pause.set()

    async def perform(self, effect: CallModel, commit: Commit, max_tokens: int = 0) -> None:
        """Stage the turn's events. Raises only cancellation and the journal's own errors.

        ``commit`` stores what is staged and is never torn by an interrupt. ``max_tokens``: how
        long a budget lets the answer be, 0 when none bounds it.
        """
        if self._journal.state.plan.provider == CODE_PROVIDER:
            if self._program is None:
                self._program = ProgramTurn(self._services, self._journal)
            await self._program.perform(effect)
        else:
            self.began, self.unfinished = effect, None
            await self._ask(effect, commit, max_tokens)

    async def _ask(self, effect: CallModel, commit: Commit, max_tokens: int) -> None:
        journal, services = self._journal, self._services
        state = journal.state
        request = model_request(state, max_tokens)
        asked = hash_of(state, request)
        show = DeltaShow(services, journal, effect.attempt)
        calls: list[ToolCallDelta] = []
        done = Done()
        failure: Failure | None = None
        try:
            provider = services.providers.get(state.provider)
            async with aclosing(contained(provider, unmasked(request, journal))) as deltas:
                async for delta in deltas:
                    match delta:
                        case TextDelta(text):
                            show.add(text)
                        case ToolCallDelta():
                            calls.append(delta)
                        case RetryDelta():
                            await self._announce(delta, commit)
                        case Done():
                            done = delta
                        case _:
                            pass
        except ProviderError as cause:
            failure = failure_of(cause, partial=cause.partial)
        except ProviderNotConfigured as cause:
            failure = failure_of(cause)
        except asyncio.CancelledError:
            text = show.finish()
            if text:
                self.unfinished = Text(text=text, attempt=effect.attempt)
            raise
        text = show.finish()
        if failure is not None:
            await self._failed(effect, asked, max_tokens, failure, text, commit)
            return
        if text:
            journal.stage(Text(text=text, attempt=effect.attempt))
        for use in _named(calls, effect.iteration, journal):
            journal.stage(ToolCall(tool_use=use))
        if done.usage is not None:
            journal.stage(Usage(usage=_totals(done.usage, state.context_window)))
        journal.stage(
            ModelAnswered(
                request=asked,
                iteration=effect.iteration,
                attempt=effect.attempt,
                provider=state.provider,
                model=(done.usage.model if done.usage else "") or state.asked_model,
                stop_reason=done.stop_reason,
                reasoning=done.reasoning,
                max_tokens=max_tokens,
            )
        )
        services.availability.succeeded(state.provider, state.asked_model)

    async def _failed(
        self,
        effect: CallModel,
        asked: str,
        max_tokens: int,
        failure: Failure,
        text: str,
        commit: Commit,
    ) -> None:
        """Record a failed call and what comes of it, in one commit; ``text`` was shown."""
        journal, availability = self._journal, self._services.availability
        state = journal.state
        live = Pair(state.provider, state.asked_model)
        if not state.plan.routing.pinned:  # right after boot others may not be probed yet
            for pair in state.plan.routing.candidates:
                await availability.settled(pair.provider)
        decision = recover(state, failure, availability.usable)
        if not isinstance(decision, RetrySame):
            self._report(live, failure, switched=isinstance(decision, SwitchTo))
        match decision:
            case RetrySame() | SwitchTo():
                journal.stage(
                    ModelAttemptFailed(
                        request=asked,
                        iteration=effect.iteration,
                        attempt=effect.attempt,
                        error=failure.text,
                        failure=failure.kind.value,
                        partial=failure.partial,
                        max_tokens=max_tokens,
                    )
                )
                self._stage_recovery(decision)
                await commit()
                if isinstance(decision, RetrySame):
                    await self._wait(decision.wait_ms / 1000)
            case _:
                if text:
                    journal.stage(Text(text=text, attempt=effect.attempt))
                if isinstance(decision, Stay):
                    journal.stage(suppressed_event(state, failure))
                journal.stage(
                    ModelFailed(
                        request=asked,
                        iteration=effect.iteration,
                        attempt=effect.attempt,
                        error=failure.text,
                        partial=failure.partial,
                        max_tokens=max_tokens,
                    )
                )

    def _stage_recovery(self, decision: RetrySame | SwitchTo) -> None:
        """What follows ``model.attempt_failed``; the cause is told as the journal keeps it."""
        journal, state = self._journal, self._journal.state
        if isinstance(decision, RetrySame):
            journal.stage(retry_event(state, decision))
            return
        cause = state.failure.error if state.failure is not None else ""
        window = self._capabilities(decision.pair.provider).context_window
        for event in switch_events(state, decision, cause, window):
            journal.stage(event)

    def _report(self, live: Pair, failure: Failure, *, switched: bool) -> None:
        """Tell this process' matrix what the call came to."""
        availability = self._services.availability
        if failure.rate_limited:
            availability.cool_down(live, self._journal.state.plan.routing.cooldown_ms)
        if switched or not (failure.rate_limited or failure.kind is ErrorClass.CANCELLED):
            availability.stall(live)

    def _capabilities(self, provider: str) -> Capabilities:
        try:
            return self._services.providers.get(provider).capabilities
        except ProviderNotConfigured:
            return Capabilities()

    async def _wait(self, seconds: float) -> None:
        if self._hurried:
            return
        self._pause = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._pause.wait()
        finally:
            self._pause = None

    async def _announce(self, delta: RetryDelta, commit: Commit) -> None:
        """A wait is durable before it begins."""
        self._journal.stage(
            Retry(
                retry=RetryBody(
                    provider=delta.provider,
                    attempt=delta.attempt,
                    wait_ms=delta.wait_ms,
                    reason=delta.reason,
                )
            )
        )
        await commit()


def _named(calls: list[ToolCallDelta], iteration: int, journal: RunJournal) -> list[ToolUse]:
    """The calls with an id each, unique in the turn (loop.md section 2), and no secret in it.

    Nobody needs the vendor's own id or name again, so neither is sealed like other masked text.
    """
    seen: set[str] = set()
    named: list[ToolUse] = []
    for slot, call in enumerate(calls):
        call_id = call.id
        if not call_id or call_id in seen or holds_secret(call_id, journal):
            call_id = f"lc-{iteration}-{slot}"
        seen.add(call_id)
        named.append(ToolUse(call_id, tool_name(call.name, journal), call.input))
    return named


def _totals(usage: CallUsage, context_window: int) -> UsageTotals:
    return UsageTotals(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
        cache_read_input_tokens=usage.cache_read_input_tokens,
        model=usage.model,
        max_context_tokens=usage.max_context_tokens or context_window,
    )
