"""Open questions to people: found in the views, settled by whoever is first in the run's inbox.

What a view has seen is compared with where the run ends, journal and inbox together, and that
end is what the answer's append expects: so one answer wins on all replicas, and no answer comes
after a question's end.
"""

from __future__ import annotations

from collections.abc import Callable

from events import inbox
from events.inbox import AnswerMessage, WithdrawMessage
from events.log import EventStore, OutcomeUnknown, WrongSequence
from events.streams import RUN_STREAM_NAMES, stream_of
from projections.rows import Interrupt
from projections.views import Views

ATTEMPTS = 100
"""Each one that fails means that the run or its inbox moved in between."""


class Questions:
    """``timeout_s``: how long a view may need to reach the log's end (else ViewUnavailable)."""

    def __init__(
        self,
        store: EventStore,
        views: Views,
        now_ns: Callable[[], int],
        *,
        timeout_s: float = 5.0,
    ) -> None:
        self.store = store
        self._views = views
        self._now_ns = now_ns
        self._timeout_s = timeout_s

    async def find(self, interrupt_id: str, run_id: str = "") -> Interrupt | None:
        """The question as it stands now; ``run_id`` spares the streams of other runs.

        Raises ViewUnavailable, LogError.
        """
        await self._caught_up(run_id)
        found = await self._views.queries.interrupt(interrupt_id, now_ns=self._now_ns())
        return found if found is not None and run_id in ("", found.run_id) else None

    async def of_run(self, run_id: str, status: str | None, tenant: str | None) -> list[Interrupt]:
        """Newest first, at most 200. Raises ViewUnavailable, LogError."""
        await self._caught_up(run_id)
        queries = self._views.queries
        return await queries.interrupts_of_run(run_id, status, tenant, now_ns=self._now_ns())

    async def of_user(
        self, user_id: str, status: str | None, tenant: str | None
    ) -> list[Interrupt]:
        """Newest first, at most 200. Raises ViewUnavailable, LogError."""
        await self._caught_up()
        queries = self._views.queries
        return await queries.interrupts_of_user(user_id, status, tenant, now_ns=self._now_ns())

    async def _caught_up(self, run_id: str = "") -> None:
        """Wait until the views have seen what the log holds now (of one run's stream)."""
        names: list[str] = list(RUN_STREAM_NAMES)
        if run_id:
            subjects = self.store.subjects
            names = [stream_of(subjects, subjects.journal("", run_id)).name]
        await self._views.barrier(await self.store.log.ends(names), self._timeout_s)

    async def settle(
        self,
        tenant: str,
        run_id: str,
        message: AnswerMessage | WithdrawMessage,
        check: Callable[[Interrupt | None], None],
    ) -> None:
        """Put ``message`` into the run's inbox. ``check`` raises unless the question is as it
        must be: it is asked again whenever the run moved in between. Raises ViewUnavailable,
        LogError, and what ``check`` raises.
        """
        store = self.store
        scope = store.subjects.run(tenant, run_id)
        subject = store.subjects.inbox(tenant, run_id)
        for _ in range(ATTEMPTS):
            end = await store.log.last(scope)
            question = await self.find(message.interrupt_id, run_id)
            if question is not None and question.message == message.id:
                return
            check(question)
            try:
                await store.log.append(
                    subject,
                    inbox.encode(message),
                    after=end.seq if end is not None else 0,
                    scope=scope,
                    msg_id=message.id,
                )
            except (WrongSequence, OutcomeUnknown):
                continue
            return
        raise OutcomeUnknown(f"inbox of {run_id}: no answer, or the run moved every time")
