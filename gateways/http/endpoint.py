"""What a route is to this gateway: a path, its methods, the scope it needs, and an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

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


class Answer:
    """The ASGI app of a function that answers at once; streams are ASGI apps of their own."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Request], Awaitable[Response]]) -> None:
        self._function = function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._function(Request(scope, receive))
        await response(scope, receive, send)
