"""A client at the ASGI level: what a server would hand to an application, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from gateways.http.clients import CONNECTION


class AsgiClient:
    """One request. ``body`` comes in its pieces; afterwards the client stays until it leaves.

    ``slow`` makes every send wait until the test says :meth:`drain`.
    """

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        *,
        headers: Mapping[str, str] | None = None,
        body: Iterable[bytes] = (b"",),
        slow: bool = False,
    ) -> None:
        path, _, query = path.partition("?")
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "state": {},
            "extensions": {CONNECTION: self},
        }
        self.on_lost: Callable[[], None] | None = None
        pieces = list(body)
        self._pieces = [
            {"type": "http.request", "body": piece, "more_body": n + 1 < len(pieces)}
            for n, piece in enumerate(pieces)
        ]
        self._gone = asyncio.Event()
        self._taken = asyncio.Event()
        if not slow:
            self._taken.set()
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self._pieces:
            return self._pieces.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self._taken.wait()
        self.sent.append(message)

    async def call(self, app: ASGIApp) -> AsgiClient:
        await app(self.scope, self.receive, self.send)
        return self

    def leave(self) -> None:
        self._gone.set()
        if self.on_lost is not None:
            self.on_lost()

    @property
    def lost(self) -> bool:
        return self._gone.is_set()

    def drain(self) -> None:
        self._taken.set()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def request_scope(**headers: Any) -> Scope:
    """A scope with ``headers`` (underscores for hyphens)."""
    return AsgiClient(headers={k.replace("_", "-"): v for k, v in headers.items()}).scope
