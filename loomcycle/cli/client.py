"""One run over HTTP, followed to its end: start, stream, reconnect where the stream broke off.

Yields frames as the server sends them, each durable frame once. Prints nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx

from loomcycle.cli.errors import BadInvocation, CommandFailed
from loomcycle.cli.sse import SseDecoder, SseEvent

GIVE_UP_S = 60.0
"""Without a single frame for so long, although we tried to reconnect, the run counts as lost."""

_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 2.0


class Frame(NamedTuple):
    """``body`` is the frame's JSON object; ``text`` the line it came in."""

    event: str
    id: str
    text: str
    body: dict[str, Any]


class Request(NamedTuple):
    """A route and its JSON body."""

    path: str
    body: dict[str, Any]


def start_request(agent: str, prompt: str, session: str) -> Request:
    """Start a run of ``agent``, or go on with ``session`` (its own agent answers then)."""
    if not session:
        return Request("/v1/runs", {"agent": agent, "prompt": prompt})
    block = {"type": "trusted-text", "text": prompt}
    body = {"segments": [{"role": "user", "content": [block]}]}
    return Request(f"/v1/sessions/{session}/messages", body)


class RunClient:
    """A server and a bearer token ("" for none)."""

    def __init__(self, target: str, token: str) -> None:
        self.target = target.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx.Timeout(10.0, read=None)
        self._http = httpx.AsyncClient(base_url=self.target, headers=headers, timeout=timeout)

    async def close(self) -> None:
        await self._http.aclose()

    async def status(self, agent_id: str) -> dict[str, Any]:
        """The run's row. Raises httpx.HTTPError, CommandFailed."""
        response = await self._http.get(f"/v1/agents/{agent_id}", timeout=10.0)
        await _check(response)
        row: dict[str, Any] = response.json()
        return row

    async def follow(self, request: Request) -> AsyncIterator[Frame]:
        """All frames up to the terminal one.

        Raises BadInvocation when the server refuses the request, CommandFailed when it cannot
        be reached or the run is lost.
        """
        loop = asyncio.get_running_loop()
        run_id, last_id, ended = "", "", False
        wait, alive_at = _FIRST_WAIT_S, loop.time()
        failure: Exception | None = None
        while not ended:
            sent = await self._open(request, run_id, last_id)
            try:
                async for event in sent:
                    frame = Frame(event.event, event.id, event.data, _object(event.data))
                    if run_id and frame.event == "agent":
                        continue
                    run_id = frame.body.get("run_id", run_id) if not run_id else run_id
                    last_id, wait, alive_at = event.id, _FIRST_WAIT_S, loop.time()
                    ended = is_terminal(frame)
                    yield frame
            except httpx.HTTPError as error:
                failure = error
            if ended:
                return
            if not run_id:
                raise self._unreachable(failure)
            if loop.time() - alive_at > GIVE_UP_S:
                raise CommandFailed(f"{self.target}: run {run_id} gave no sign for 60 s: {failure}")
            if await self._is_over(run_id, last_id):
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LAST_WAIT_S)
