"""Sessions as they are read back: the transcript (http-runs.md section 8)."""

from __future__ import annotations

from msgspec import Raw, Struct
from starlette.requests import Request

from events.frames import rfc3339
from gateways.http.authentication import principal_of
from gateways.http.endpoint import Answer, Endpoint
from gateways.http.replies import JsonReply
from loomcycle.errors import SessionNotFound
from loomcycle.runtime import Runtime


class SessionHead(Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    tenant_id: str
    agent: str
    created_at: str
    user_id: str = ""


class TranscriptEvent(Struct, frozen=True, omit_defaults=True):
    """``ts_ns`` in unix nanoseconds; ``payload`` only for stored input and system prompts."""

    seq: int
    run_id: str
    ts_ns: int
    type: str
    event: Raw
    payload: Raw | None = None


class Transcript(Struct, frozen=True):
    session: SessionHead
    events: list[TranscriptEvent]


def endpoints(runtime: Runtime) -> list[Endpoint]:
    sessions = Sessions(runtime)
    return [
        Endpoint(
            "/v1/sessions/{session_id}/transcript",
            ("GET",),
            "runs:read",
            Answer(sessions.transcript),
        )
    ]


class Sessions:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def transcript(self, request: Request) -> JsonReply:
        """``GET /v1/sessions/{id}/transcript``: all events of all runs of the session."""
        session_id = request.path_params["session_id"]
        found = await self._runtime.lookups.transcript(principal_of(request.scope), session_id)
        if found is None:
            raise SessionNotFound(session_id)
        session, rows = found
        head = SessionHead(
            id=session.id,
            tenant_id=session.tenant,
            agent=session.agent,
            created_at=rfc3339(session.created_ns),
            user_id=session.user_id,
        )
        events = [
            TranscriptEvent(
                row.seq,
                row.run_id,
                row.ts_ns,
                row.type,
                Raw(row.event.encode()),
                Raw(row.payload.encode()) if row.payload is not None else None,
            )
            for row in rows
        ]
        return JsonReply(Transcript(head, events))
