"""Who calls, and may they: a plain ASGI wrapper around each endpoint (auth.md sections 2 and 8).

Wrong method and unknown path were answered before; this module knows no route.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from gateways.http.replies import text_error
from loomcycle.auth import Authenticator, Principal, bearer_of

log = logging.getLogger("loomcycle.auth")

COOKIE = "loomcycle_session"
_PRINCIPAL = "loomcycle.principal"


class Guard:
    """Calls ``app`` for principals that hold ``needed`` ("" = any principal).

    ``verbose`` logs why a credential was refused; the answer never says it.
    """

    __slots__ = ("_app", "_auth", "_needed", "_verbose")

    def __init__(
        self, app: ASGIApp, auth: Authenticator, needed: str, *, verbose: bool = False
    ) -> None:
        self._app, self._auth, self._needed, self._verbose = app, auth, needed, verbose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bearer = credential(scope["headers"])
        principal = self._auth.resolve(bearer)
        if principal is None:
            if self._verbose:
                reason = "unknown credential" if bearer else "no usable credential"
                log.info("401 for %s: %s", scope["path"], reason)
            await text_error(401, "unauthorized")(scope, receive, send)
            return
        if not principal.may(self._needed):
            challenge = {"WWW-Authenticate": f'Bearer scope="{self._needed}"'}
            await text_error(403, "insufficient scope", challenge)(scope, receive, send)
            return
        scope[_PRINCIPAL] = principal
        await self._app(scope, receive, send)


def principal_of(scope: Scope) -> Principal:
    """The caller of a guarded endpoint."""
    principal: Principal = scope[_PRINCIPAL]
    return principal


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The bearer of a request: its first Authorization header, else the session cookie."""
    cookies: list[str] = []
    for name, value in headers:
        if name == b"authorization":
            return bearer_of(value.decode("latin-1"), None)
        if name == b"cookie":
            cookies.append(value.decode("latin-1"))
    if not cookies:
        return None
    return bearer_of(None, cookie_parser("; ".join(cookies)).get(COOKIE))
