"""Errors on the wire: statuses, shapes, and the words by which published clients classify."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from events.log import LogFull, LogUnavailable, OutcomeUnknown
from gateways.http.errors import ClientGone, Refusal, ShuttingDown, exception_handlers, reply_to
from loomcycle.errors import (
    AgentIdInUse,
    Backpressure,
    InvalidArgument,
    LogAway,
    ModelUnavailable,
    RunNotFound,
    SessionBusy,
    SessionNotFound,
    UnknownAgent,
    UnknownAgentId,
    UserQuotaExhausted,
)
from projections.framework import ViewHeld, ViewUnavailable
from tests.wire.asgi import AsgiClient


def answered(error: Exception) -> Response:
    response = reply_to(error)
    assert response is not None
    return response


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Refusal(415, "wrong type"), 415, "wrong type\n"),
        (InvalidArgument("agent is required", "agent"), 400, "agent is required\n"),
        (UnknownAgent('unknown agent "é"', "agent"), 400, 'unknown agent "é"\n'),
        (SessionNotFound("s_1"), 404, "session not found: s_1\n"),
        (RunNotFound(), 404, "no such run\n"),
        (ModelUnavailable("no model now"), 503, "no model now\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_text_errors(error: Exception, status: int, text: str) -> None:
    response = answered(error)
    assert (response.status_code, bytes(response.body).decode()) == (status, text)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (SessionBusy('s_"1'), 409, "session_busy", None),
        (AgentIdInUse("a_1"), 409, "agent_id_in_use", None),
        (UnknownAgentId("a_1"), 404, "unknown_agent_id", None),
        (Backpressure("queue full"), 429, "backpressure", None),
        (UserQuotaExhausted("u1", 2), 429, "per_user_quota_exhausted", "5"),
        (LogAway("the log is away", 3), 503, "log_unavailable", "3"),
        (LogUnavailable("nats://secret@host"), 503, "log_unavailable", "1"),
        (LogFull("disk"), 503, "log_unavailable", "1"),
        (OutcomeUnknown("late"), 503, "log_unavailable", "1"),
        (ViewUnavailable("rebuilding"), 503, "view_unavailable", "1"),
        (ViewHeld("newer event"), 503, "view_held", "1"),
        (ShuttingDown(), 503, "shutting_down", "1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_errors(error: Exception, status: int, code: str, retry_after: str | None) -> None:
    response = answered(error)
    body = json.loads(bytes(response.body))
    assert (response.status_code, body["code"]) == (status, code)
    assert body["error"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers.get("retry-after") == retry_after


def test_a_full_user_is_told_who_and_how_many() -> None:
    body = json.loads(bytes(answered(UserQuotaExhausted("u1", 2)).body))
    assert (body["user_id"], body["cap"]) == ("u1", 2)


def test_a_failed_log_is_not_described_to_clients() -> None:
    assert b"secret" not in answered(LogUnavailable("nats://secret@host")).body


@pytest.mark.parametrize("agent_id", ["my-session", "Snapshot-1", "hooked"])
def test_names_in_a_body_never_make_it_another_error(agent_id: str) -> None:
    for error in (AgentIdInUse(agent_id), UnknownAgentId(agent_id)):
        text = bytes(answered(error).body).decode().lower()
        assert not any(word in text for word in ("session", "snapshot", "hook"))
        assert "agent" in text


def test_a_client_that_left_is_not_answered() -> None:
    assert reply_to(ClientGone()) is None


async def broken(request: Request) -> Response:
    raise ZeroDivisionError("secret detail")


def app() -> Starlette:
    routes = [
        Route("/things", broken, methods=["GET"]),
        Route("/things", broken, methods=["POST"]),
        Route("/things/{name}", broken, methods=["DELETE"]),
    ]
    app = Starlette(routes=routes, exception_handlers=exception_handlers())
    app.router.redirect_slashes = False
    return app


async def test_an_unknown_path_is_a_404_in_plain_text() -> None:
    for path in ("/nothing", "/things/", "/"):
        client = await AsgiClient("GET", path).call(app())
        assert (client.status, client.body) == (404, b"404 page not found\n")
        assert client.headers["content-type"] == "text/plain; charset=utf-8"


async def test_a_wrong_method_names_the_right_ones_of_all_routes_of_that_path() -> None:
    client = await AsgiClient("PUT", "/things").call(app())
    assert client.status == 405
    assert client.headers["allow"] == "GET, HEAD, POST"


async def test_an_unforeseen_failure_is_a_500_without_details() -> None:
    client = AsgiClient("GET", "/things")
    with pytest.raises(ZeroDivisionError):
        await client.call(app())
    assert (client.status, client.body) == (500, b'{"error":"internal server error"}')
    assert client.headers["content-type"] == "application/json"
