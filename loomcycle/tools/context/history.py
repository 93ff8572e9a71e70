"""Operation ``history`` of Context: past events of a session, as its transcript holds them.

An agent sees its own session, or with scope ``any`` those of its whole tenant; other scopes are
reserved and grant nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from events.log import EventStore, LogError
from events.streams import RUN_STREAM_NAMES, stream_of
from loomcycle.tools.base import CallContext, ToolOutput
from loomcycle.tools.context.request import ContextInput, Operation, answer, refuse
from loomcycle.tools.timestamps import parse_rfc3339, rfc3339_nano
from projections.framework import ViewUnavailable
from projections.rows import TranscriptRow
from projections.views import Views

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000

_FURTHEST_NS = 2**63 - 1

_scope = msgspec.json.Decoder(str)


class _Event(Struct, kw_only=True):
    """``payload`` is the event's JSON, left out where there is nothing but its type."""

    seq: int
    run_id: str
    ts: str
    type: str
    payload: Raw | UnsetType = UNSET


class _History(Struct):
    agent_id: str
    session_id: str
    events: list[_Event]
    count: int
    truncated: bool


class Transcripts:
    """Reads what the log held when it was asked. ``timeout_s``: how long a view may need."""

    def __init__(self, store: EventStore, views: Views, *, timeout_s: float = 5.0) -> None:
        self._store = store
        self._views = views
        self._timeout_s = timeout_s

    async def session_of(self, tenant: str, agent_id: str) -> str | None:
        """The session of a handle's latest run. Raises ViewUnavailable, LogError."""
        await self._caught_up(*RUN_STREAM_NAMES)
        run = await self._views.queries.run_by_agent_id(tenant, agent_id)
        return run.session_id if run is not None else None

    async def rows(
        self, session_id: str, types: list[str], since_ns: int, limit: int
    ) -> list[TranscriptRow]:
        """The oldest rows of a session. Raises ViewUnavailable, LogError."""
        subjects = self._store.subjects
        await self._caught_up(stream_of(subjects, subjects.journal("", session_id)).name)
        return await self._views.queries.history(
            session_id, types=types, since_ns=since_ns, limit=limit
        )

    async def _caught_up(self, *streams: str) -> None:
        await self._views.barrier(await self._store.log.ends(streams), self._timeout_s)


def operations(transcripts: Transcripts) -> dict[str, Operation]:
    async def history(request: ContextInput, context: CallContext) -> ToolOutput:
        try:
            return answer(await _history(transcripts, request, context))
        except _Refused as refusal:
            return refuse("history", str(refusal))
        except (ViewUnavailable, LogError) as cause:
            return refuse("history", f"the transcript cannot be read now: {cause}")

    return {"history": history}


class _Refused(Exception):
    """Why nothing is shown."""


async def _history(
    transcripts: Transcripts, request: ContextInput, context: CallContext
) -> _History:
    agent_id = request.agent_id or context.agent_id
    _check_scope(context, agent_id)
    since_ns = _since_ns(request.since_ts)
    limit = request.limit or 0
    limit = min(limit, MAX_LIMIT) if limit > 0 else DEFAULT_LIMIT
    session = await _session(transcripts, agent_id, context)
    wanted = request.event_types or []
    types = [kind for kind in wanted if kind and "|" not in kind]
    rows: list[TranscriptRow] = []
    if types or not wanted:
        rows = await transcripts.rows(session, types, since_ns, limit + 1)
    events = [_event(row) for row in rows[:limit]]
    return _History(agent_id, session, events, len(events), truncated=len(rows) > limit)


def _check_scope(context: CallContext, agent_id: str) -> None:
    """Raises _Refused unless the run's agent may see the history of ``agent_id``."""
    raw = context.plan.extra.get("history_scope")
    scope = _scope.decode(raw) if raw is not None else ""
    if scope == "any" or (scope == "self" and agent_id == context.agent_id):
        return
    if scope == "self":
        raise _Refused(f'access denied: history_scope self does not show agent_id "{agent_id}"')
    if scope:
        raise _Refused(f"access denied: history_scope {scope} is reserved; use self or any")
    raise _Refused("access denied: this agent has no history_scope; set it to self or any")


def _since_ns(text: str | None) -> int:
    if not text:
        return 0
    try:
        since_ns = parse_rfc3339(text)
    except ValueError as error:
        raise _Refused(f"since_ts: {error}") from None
    return min(max(since_ns, 0), _FURTHEST_NS)


async def _session(transcripts: Transcripts, agent_id: str, context: CallContext) -> str:
    if agent_id == context.agent_id and context.session_id:
        return context.session_id
    session = await transcripts.session_of(context.tenant, agent_id)
    if session is None:
        raise _Refused(f'agent_id "{agent_id}" not found')
    return session


def _event(row: TranscriptRow) -> _Event:
    shown = _Event(seq=row.seq, run_id=row.run_id, ts=rfc3339_nano(row.ts_ns), type=row.type)
    payload = row.payload if row.payload is not None else row.event
    if payload != f'{{"type":"{row.type}"}}':
        shown.payload = Raw(payload.encode())
    return shown
