"""From typed errors to statuses and bodies; the only place that knows both.

Specification: http-runs.md sections 1.2, 3.5, 16 and 19 (clients classify by words in bodies).
Causes of failures of the log are logged, never shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ExceptionHandler

from events.log import LogError
from gateways.http.replies import JsonReply, json_error, text_error
from loomcycle.errors import (
    AgentGone,
    AgentIdInUse,
    AlreadyPausing,
    Backpressure,
    BudgetSpent,
    CommandError,
    HookNotFound,
    InboxFull,
    InterruptExpired,
    InterruptNotFound,
    InterruptSettled,
    InvalidArgument,
    InvalidRegistration,
    LaterRuns,
    LogAway,
    ModelUnavailable,
    NoRunForId,
    NotPaused,
    NotSteerable,
    PauseFailed,
    ProviderListFailed,
    ProviderUnavailable,
    ProviderUnknown,
    RunBusy,
    RunNotFound,
    RuntimePaused,
    SessionBusy,
    SessionDamaged,
    SessionNotFound,
    SummaryFailed,
    SummaryUnavailable,
    UnknownAgentId,
    Unprocessable,
    UserQuotaExhausted,
    ViewAway,
)
from projections.framework import ViewUnavailable

log = logging.getLogger("loomcycle.http")

RETRY_SOON = {"Retry-After": "1"}
QUOTA_RETRY = {"Retry-After": "5"}

_OTHER_ERRORS_WORDS = ("snapshot", "session", "hook")
"""Words by which clients recognise other errors of the same status."""


class Refusal(Exception):
    """A refusal of the gateway itself, answered as plain text."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class ShuttingDown(Exception):
    """The server stops; the same request works elsewhere, or here in a moment."""


class ClientGone(Exception):
    """The client hung up; nobody is left to be answered."""


def reply_to(error: Exception) -> Response | None:
    """The answer to ``error``; None when nobody waits for one. Raises ``error`` if unknown."""
    message = str(error)
    match error:
        case Refusal():
            return text_error(error.status, message, error.headers)
        case Unprocessable():
            return text_error(422, message)
        case InvalidArgument():
            return text_error(400, message)
        case NotSteerable() | InterruptNotFound():
            return text_error(404, message)
        case InterruptSettled():
            return text_error(409, message)
        case InterruptExpired():
            return text_error(410, message)
        case InboxFull():
            return text_error(429, message, RETRY_SOON)
        case SessionNotFound() | RunNotFound():
            return text_error(404, message)
        case ModelUnavailable() | SummaryUnavailable():
            return text_error(503, message)
        case NoRunForId():
            return text_error(404, message)
        case SummaryFailed():
            return text_error(502, message)
        case RunBusy() | AgentGone() | LaterRuns() | BudgetSpent():
            return json_error(409, error.code, message)
        case ProviderUnknown():
            return json_error(404, error.code, _classified(message, "unknown provider"))
        case ProviderUnavailable():
            return json_error(503, error.code, message)
        case ProviderListFailed():
            return json_error(502, error.code, message)
        case UnknownAgentId():
            return json_error(404, error.code, _classified(message, "no run has this agent_id"))
        case InvalidRegistration():
            return json_error(400, error.code, message)
        case HookNotFound():
            return json_error(404, error.code, message)
        case RuntimePaused():
            return json_error(503, error.code, message)
        case AlreadyPausing() | NotPaused():
            return json_error(409, error.code, message)
        case PauseFailed() | SessionDamaged():
            return json_error(500, error.code, message)
        case SessionBusy():
            return json_error(409, error.code, message)
        case AgentIdInUse():
            text = _classified(message, "agent_id is in use by a live run")
            return json_error(409, error.code, text)
        case Backpressure():
            return json_error(429, error.code, message)
        case UserQuotaExhausted():
            return json_error(
                429, error.code, message, QUOTA_RETRY, user_id=error.user_id, cap=error.cap
            )
        case LogAway() | ViewAway():
            retry = {"Retry-After": str(error.retry_after_s)}
            return json_error(503, error.code, message, retry)
        case ViewUnavailable():
            return json_error(503, error.code, message, RETRY_SOON)
        case LogError():
            log.warning("request refused, the log failed: %r", error)
            text = "the log cannot be read or written now: try again"
            return json_error(503, LogAway.code, text, RETRY_SOON)
        case ShuttingDown():
            text = "this server is shutting down: try again"
            return json_error(503, "shutting_down", text, RETRY_SOON)
        case ClientGone():
            return None
        case _:
            raise error


def exception_handlers() -> dict[type[Exception], ExceptionHandler]:
    """What the application does about exceptions of its endpoints."""
    known = (Refusal, CommandError, ViewUnavailable, LogError, ShuttingDown, ClientGone)
    return {
        **dict.fromkeys(known, _known),
        HTTPException: _routing,
        Exception: _unknown,
    }


async def _known(request: Request, error: Exception) -> Response:
    return reply_to(error)  # type: ignore[return-value]


async def _routing(request: Request, error: Exception) -> Response:
    """No such route, or not with this method (before authentication, section 1.1)."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = {"Allow": ", ".join(allowed_methods(request))}
        return text_error(405, "method not allowed", allow)
    if error.status_code == 404:
        return text_error(404, "404 page not found")
    return text_error(error.status_code, error.detail, error.headers)


async def _unknown(request: Request, error: Exception) -> Response:
    return JsonReply({"error": "internal server error"}, 500)


def allowed_methods(request: Request) -> list[str]:
    """Methods of all routes that have the request's path, sorted."""
    app: Starlette = request.app
    methods: set[str] = set()
    for route in app.routes:
        if route.matches(request.scope)[0] is Match.PARTIAL:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


def _classified(message: str, without_names: str) -> str:
    """``message``, unless a name quoted in it would make clients take it for another error."""
    lowered = message.lower()
    return without_names if any(word in lowered for word in _OTHER_ERRORS_WORDS) else message
