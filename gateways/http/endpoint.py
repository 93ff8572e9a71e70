"""What a route is to this gateway: a path, its methods, the scope it needs, and an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp

ANYBODY = ""
"""Any principal, even one without scopes."""

PUBLIC = None
"""No authentication at all."""


class Endpoint(NamedTuple):
    """``scope`` is a scope of auth.md section 7, ANYBODY or PUBLIC; no ``methods`` means all."""

    path: str
    methods: tuple[str, ...]
    scope: str | None
    app: ASGIApp


def endpoint(
    method: str,
    path: str,
    scope: str | None,
    answer: Callable[[Request], Awaitable[Response]],
) -> Endpoint:
    """An endpoint that answers at once; streams are ASGI apps of their own."""
    return Endpoint(path, (method,), scope, request_response(answer))
