"""Saying something to a live run: a message to its inbox, at most so many of them unread.

Specification: http-runs.md section 12, loop.md section 9.1. The inbox is compared and set, so
that no two gateways both send the last message that fits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress

import msgspec

from events import inbox
from events.commit import decode
from events.log import EventStore, Message, OutcomeUnknown, WrongSequence
from events.vocabulary import UserInput
from loomcycle.admission import terminal
from loomcycle.auth import Principal
from loomcycle.errors import InboxFull, NotSteerable, Unprocessable
from loomcycle.journal import pause
from loomcycle.loading import whole_commit
from loomcycle.run_facts import KEEP, RunReader, Standing
from loomcycle.said import RunEnded, masker_for, seal, stir, words
from loomcycle.services import Services

MAX_UNREAD = 16
"""Messages of people that a run has not taken yet."""

ATTEMPTS = 100
"""Each one that fails means that somebody else was faster."""


class Inputs:
    """``runs`` tells who a run is; positions of what was taken are kept to read less."""

    def __init__(self, services: Services, runs: RunReader) -> None:
        self._services = services
        self._runs = runs
        self._taken: OrderedDict[str, int] = OrderedDict()

    async def send(self, principal: Principal, run_id: str, text: str, source: str) -> None:
        """Say ``text`` to a run. Raises Unprocessable, NotSteerable, InboxFull, LogError."""
        said = text.strip()
        if not said:
            raise Unprocessable("text is required", "text")
        services = self._services
        store = services.store
        standing = await self._runs.standing(run_id)
        if standing is None or standing.ended or not principal.sees(standing.facts.tenant):
            raise NotSteerable
        facts = standing.facts
        if facts.is_child:
            raise NotSteerable
        try:
            shown = words(await masker_for(services, run_id, facts), said)
        except RunEnded:
            raise NotSteerable from None
        message = inbox.InputMessage(
            id=f"i_{services.new_hex()}",
            text=shown,
            source=source,
            at_ns=services.now_ns(),
            sealed=shown != said,
        )
        if message.sealed:
            await seal(store, run_id, message.id, said)
        seq = await self._append(run_id, standing, message)
        _, after = await asyncio.gather(
            stir(store, facts.tenant, run_id, message.id), store.log.last(facts.journal)
        )
        if after is not None and after.seq < seq and terminal(after):
            raise NotSteerable

    async def _append(self, run_id: str, standing: Standing, message: inbox.InputMessage) -> int:
        """The stream sequence of ``message``, once stored.

        Raises NotSteerable (behind a cancel nothing is heard), InboxFull, LogError.
        """
        store = self._services.store
        subject = store.subjects.inbox(standing.facts.tenant, run_id)
        for _ in range(ATTEMPTS):
            end, unread, cancelled = await self._unread(run_id, standing, subject)
            stored = [seq for seq, ident in unread if ident == message.id]
            if stored:
                return stored[0]
            if cancelled:
                raise NotSteerable
            if len(unread) >= MAX_UNREAD:
                raise InboxFull
            with suppress(WrongSequence, OutcomeUnknown):  # both: look again what is there
                return await store.log.append(
                    subject, inbox.encode(message), after=end, msg_id=message.id
                )
        raise OutcomeUnknown(f"inbox of {run_id}: no answer, or others were always faster")

    async def _unread(
        self, run_id: str, standing: Standing, subject: str
    ) -> tuple[int, list[tuple[int, str]], bool]:
        """(sequence at which the inbox ends, (sequence, id) of inputs that may not be taken yet,
        whether a cancel stands there).

        The second is exact where it could make a difference: messages are taken in order, so
        the one ``MAX_UNREAD`` before the end tells whether there is room.
        """
        store = self._services.store
        after = self._taken.get(run_id, 0)
        newest, messages = await read_all(store, subject, after)
        items = [(message.seq, _read(message)) for message in messages]
        cancelled = any(isinstance(item, inbox.CancelMessage) for _, item in items)
        inputs = [(seq, item.id) for seq, item in items if isinstance(item, inbox.InputMessage)]
        if len(inputs) < MAX_UNREAD:
            return newest, inputs, cancelled
        window = inputs[-MAX_UNREAD:]
        taken = await self._taken_since(standing, window[0][0])
        places = [i for i, (_, ident) in enumerate(window) if ident in taken]
        if not places:
            return newest, window, cancelled
        self._remember(run_id, window[places[-1]][0])
        return newest, window[places[-1] + 1 :], cancelled

    async def _taken_since(self, standing: Standing, after: int) -> set[str]:
        """Ids of the messages that the run took in commits behind ``after``."""
        store = self._services.store
        _, commits = await read_all(store, standing.facts.journal, after)
        taken: set[str] = set()
        for message in commits:
            if not any(e.type == "user_input" for e in decode(message.data).header.events):
                continue
            for _, event in (await whole_commit(store, message)).events():
                if isinstance(event, UserInput) and event.inbox:
                    taken.add(event.inbox)
        return taken

    def _remember(self, run_id: str, seq: int) -> None:
        self._taken[run_id] = seq
        self._taken.move_to_end(run_id)
        while len(self._taken) > KEEP:
            self._taken.popitem(last=False)


async def read_all(store: EventStore, subject: str, after: int) -> tuple[int, list[Message]]:
    """(last sequence of ``subject``, 0 if none; its messages behind ``after``, all of them).

    A direct read may lag behind the leader; this one is repeated until it does not.
    """
    newest = await store.log.last(subject)
    if newest is None:
        return 0, []
    if newest.seq <= after:
        return newest.seq, []
    attempt = 0
    while True:
        messages = await store.log.read(subject, after=after)
        if messages and messages[-1].seq >= newest.seq:
            return messages[-1].seq, messages
        await pause(attempt)
        attempt += 1


def _read(message: Message) -> inbox.InboxMessage | None:
    try:
        return inbox.decode(message.data)
    except msgspec.DecodeError:
        return None
