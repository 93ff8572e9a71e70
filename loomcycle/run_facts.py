"""Who a run is and whether it goes on: read from its journal's two ends, not from a view.

Commands that say something to a run need this on every replica at once; the opening never
changes, so it is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from msgspec import Struct

from events.log import EventStore, Message
from events.vocabulary import RunStarted
from loomcycle.admission import terminal
from loomcycle.loading import opening, whole_commit

KEEP = 4096


class RunFacts(Struct, frozen=True):
    """Of a run's opening. ``journal`` is its subject."""

    tenant: str
    user_id: str
    is_child: bool
    sealed: tuple[str, ...]
    journal: str


class Standing(NamedTuple):
    """A run and the newest commit of its journal (leader read)."""

    facts: RunFacts
    last: Message

    @property
    def ended(self) -> bool:
        return terminal(self.last)


class RunReader:
    """Reads runs by their id alone."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._known: OrderedDict[str, RunFacts] = OrderedDict()

    async def standing(self, run_id: str) -> Standing | None:
        """None when there is no such run. Raises LogError, JournalError."""
        last = await self._store.log.last(self._store.subjects.journals(run_id))
        if last is None:
            return None
        facts = self._known.get(run_id) or await self._read(run_id, last.subject)
        return None if facts is None else Standing(facts, last)

    async def _read(self, run_id: str, subject: str) -> RunFacts | None:
        first = await self._store.log.first(subject)
        if first is None:
            return None
        started = opening(await whole_commit(self._store, first))
        if not isinstance(started, RunStarted):
            return None
        facts = RunFacts(
            tenant=started.tenant,
            user_id=started.user_id,
            is_child=bool(started.parent_agent_id) or started.parent is not None,
            sealed=started.sealed,
            journal=subject,
        )
        self._known[run_id] = facts
        while len(self._known) > KEEP:
            self._known.popitem(last=False)
        return facts
