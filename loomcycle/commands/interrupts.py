"""Listing the questions that runs ask people, and answering them.

Specification: http-runs.md sections 15.2 and 15.3, tools.md section 3.13. The first answer wins,
whichever replica it reaches.
"""

from __future__ import annotations

import msgspec

from events.inbox import AnswerMessage
from loomcycle.auth import Principal
from loomcycle.errors import (
    InterruptExpired,
    InterruptNotFound,
    InterruptSettled,
    Unprocessable,
)
from loomcycle.questions import Questions
from loomcycle.run_facts import RunReader
from loomcycle.said import RunEnded, masker_for, seal, stir
from loomcycle.services import Services
from projections.rows import Interrupt
from replay.approval import APPROVE, DENY, is_answer
from replay.interrupts import QUESTION

_ALIASES = {"answered": "resolved", "expired": "timed_out"}
"""Words of published clients for statuses (clients.md)."""


class Interrupts:
    def __init__(self, services: Services, runs: RunReader, questions: Questions) -> None:
        self._services = services
        self._runs = runs
        self._questions = questions

    async def of_run(self, principal: Principal, run_id: str, status: str) -> list[Interrupt]:
        """Newest first, at most 200; "" and ``all`` mean every status."""
        return await self._questions.of_run(run_id, status_filter(status), _tenant(principal))

    async def of_user(self, principal: Principal, user_id: str, status: str) -> list[Interrupt]:
        """Newest first, at most 200; "" means ``pending``, ``all`` every status."""
        wanted = status_filter(status or "pending")
        return await self._questions.of_user(user_id, wanted, _tenant(principal))

    async def resolve(
        self,
        principal: Principal,
        run_id: str,
        interrupt_id: str,
        *,
        answer: str,
        resolved_by: str,
        kind: str = QUESTION,
    ) -> int:
        """Answer a question; the time at which it was, in unix nanoseconds.

        White space around the answer is no part of it. What it holds of known secrets is masked
        in the log, and sealed for the run.

        Raises Unprocessable, InterruptNotFound, InterruptExpired, InterruptSettled,
        ViewUnavailable, LogError.
        """
        if kind != QUESTION:
            raise Unprocessable(f'kind "{kind}" cannot be answered: use {QUESTION}', "kind")
        services = self._services
        standing = await self._runs.standing(run_id)
        if standing is None or not principal.sees(standing.facts.tenant):
            raise InterruptNotFound
        facts = standing.facts
        said = answer.strip()
        try:
            masker = await masker_for(services, run_id, facts)
        except RunEnded:
            _check(await self._questions.find(interrupt_id, run_id), said, said)
            raise InterruptSettled("the run has ended: no answer is wanted any more") from None
        at_ns = services.now_ns()
        shown = said if masker is None else masker.answer(said)
        message = AnswerMessage(
            id=f"i_{services.new_hex()}",
            interrupt_id=interrupt_id,
            answer=shown,
            resolved_by=resolved_by if masker is None else masker.text(resolved_by),
            at_ns=at_ns,
            sealed=shown != said,
        )
        if message.sealed:
            await seal(services.store, run_id, message.id, said)
        await self._questions.settle(
            facts.tenant, run_id, message, lambda question: _check(question, said, shown)
        )
        await stir(services.store, facts.tenant, run_id, message.id)
        return at_ns


def status_filter(status: str) -> str | None:
    """The status that rows must have; None for any."""
    return None if status in ("", "all") else _ALIASES.get(status, status)


def _tenant(principal: Principal) -> str | None:
    return None if principal.is_admin else principal.tenant


def _check(question: Interrupt | None, said: str, shown: str) -> None:
    """Whether an answer, masked as ``shown``, may be given to ``question`` now.

    Options are stored masked, and it is what the log shows that the run goes on with.
    """
    if question is None:
        raise InterruptNotFound
    if question.status == "timed_out":
        raise InterruptExpired
    if question.status != "pending":
        raise InterruptSettled(f"interrupt is {question.status}: no answer is wanted any more")
    if not question.options:
        if not said:
            raise Unprocessable("answer is required", "answer")
        return
    if question.approval:
        if not is_answer(shown):
            raise Unprocessable(f"answer must be {APPROVE}, {DENY} or a JSON object", "answer")
        return
    options = msgspec.json.decode(question.options, type=list[str])
    if not {option.strip() for option in options} & {said, shown}:
        raise Unprocessable(f"answer must be one of: {', '.join(options)}", "answer")
