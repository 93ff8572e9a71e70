"""One turn of a run's model: stream the answer, show it live, stage what it said.

For a code-js agent the "model" is the run's program (``loomcycle/program_turn.py``). Nothing is
staged until the turn is over, so an abandoned turn leaves no trace but the text that was shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from events.vocabulary import (
    ModelAnswered,
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
from loomcycle.masking import DeltaShow, unmasked
from loomcycle.program_turn import ProgramTurn
from loomcycle.providers.base import (
    Done,
    ProviderError,
    ProviderNotConfigured,
    RetryDelta,
    TextDelta,
    ToolCallDelta,
)
from loomcycle.providers.base import Usage as CallUsage
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

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None

    async def perform(self, effect: CallModel, commit: Commit) -> None:
        """Stage the turn's events. Raises only cancellation and the journal's own errors.

        ``commit`` stores what is staged and is never torn by an interrupt.
        """
        if self._journal.state.plan.provider == CODE_PROVIDER:
            if self._program is None:
                self._program = ProgramTurn(self._services, self._journal)
            await self._program.perform(effect)
        else:
            self.began, self.unfinished = effect, None
            await self._ask(effect, commit)

    async def _ask(self, effect: CallModel, commit: Commit) -> None:
        journal, services = self._journal, self._services
        state = journal.state
        request = model_request(state)
        asked = hash_of(state, request)
        show = DeltaShow(services, journal, effect.attempt)
        calls: list[ToolCallDelta] = []
        done = Done()
        failure: ProviderError | None = None
        try:
            provider = services.providers.get(state.provider)
            async with aclosing(provider.stream(unmasked(request, journal))) as deltas:
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
            failure = cause
        except ProviderNotConfigured as cause:
            failure = ProviderError(str(cause))
        except asyncio.CancelledError:
            text = show.finish()
            if text:
                self.unfinished = Text(text=text, attempt=effect.attempt)
            raise
        text = show.finish()
        if text:
            journal.stage(Text(text=text, attempt=effect.attempt))
        if failure is not None:
            journal.stage(
                ModelFailed(
                    request=asked,
                    iteration=effect.iteration,
                    attempt=effect.attempt,
                    error=str(failure),
                    partial=failure.partial,
                )
            )
            return
        for use in _named(calls, effect.iteration):
            journal.stage(ToolCall(tool_use=use))
        if done.usage is not None:
            journal.stage(Usage(usage=_totals(done.usage, state.plan.context_window)))
        journal.stage(
            ModelAnswered(
                request=asked,
                iteration=effect.iteration,
                attempt=effect.attempt,
                provider=state.provider,
                model=(done.usage.model if done.usage else "") or state.plan.model,
                stop_reason=done.stop_reason,
                reasoning=done.reasoning,
            )
        )

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


def _named(calls: list[ToolCallDelta], iteration: int) -> list[ToolUse]:
    """The calls with an id each, unique in the turn (loop.md section 2)."""
    seen: set[str] = set()
    named: list[ToolUse] = []
    for slot, call in enumerate(calls):
        call_id = call.id
        if not call_id or call_id in seen:
            call_id = f"lc-{iteration}-{slot}"
        seen.add(call_id)
        named.append(ToolUse(call_id, call.name, call.input))
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
