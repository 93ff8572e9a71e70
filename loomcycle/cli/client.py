"""One run over HTTP, followed to its end: start, stream, reconnect where the stream broke off.

Yields frames as the server sends them, each durable frame once. Prints nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from loomcycle.cli.errors import BadInvocation, CommandFailed
from loomcycle.cli.sse import SseDecoder

GIVE_UP_S = 60.0
"""After so long without a connection the run counts as lost."""

READ_TIMEOUT_S = 90.0
"""Longer than the keepalive; a silent connection is then replaced, which loses nothing."""

_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 2.0


class Frame(NamedTuple):
    """``body`` is the frame's JSON object, ``text`` the line it came in."""

    event: str
    id: str
    text: str
    body: dict[str, Any]


class Request(NamedTuple):
    """A route and its JSON body."""

    path: str
    body: dict[str, Any]


class _Broken(Exception):
    """The connection failed, or the server asked for patience: try again."""


def start_request(agent: str, prompt: str, *, session: str = "", user_id: str = "") -> Request:
    """Start a run of ``agent``, or go on with ``session`` (its own agent answers then)."""
    if session:
        block = {"type": "trusted-text", "text": prompt}
        body = {"segments": [{"role": "user", "content": [block]}]}
        return Request(f"/v1/sessions/{quote(session, safe='')}/messages", body)
    owner = {"user_id": user_id} if user_id else {}
    return Request("/v1/runs", {"agent": agent, "prompt": prompt, **owner})


class RunClient:
    """A server and a bearer token ("" for none)."""

    def __init__(self, target: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx.Timeout(10.0, read=READ_TIMEOUT_S)
        self._http = httpx.AsyncClient(
            base_url=target, headers=headers, timeout=timeout, trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def status(self, agent_id: str) -> str:
        """The run's status as the server has it. Raises BadInvocation, CommandFailed."""
        try:
            return await self._status(agent_id)
        except _Broken as failure:
            raise CommandFailed(str(failure)) from None

    async def _status(self, agent_id: str) -> str:
        try:
            response = await self._http.get(f"/v1/agents/{agent_id}", timeout=10.0)
        except httpx.HTTPError as error:
            raise _Broken(str(_unreachable(error))) from None
        if response.status_code >= 500:
            raise _Broken(str(_refused(response)))
        if response.status_code != 200:
            raise _refused(response)
        return str(response.json()["status"])

    async def follow(self, request: Request) -> AsyncGenerator[Frame, None]:
        """All frames up to the end of the run.

        Raises BadInvocation when the server refuses the request, CommandFailed when it cannot
        be reached or the run is lost.
        """
        handle: dict[str, Any] = {}
        last = Frame("", "", "", {})
        try:
            async for last in self._frames("POST", request.path, "", request.body):
                if last.event == "agent":
                    handle = last.body
                yield last
        except _Broken as failure:
            if not handle:
                raise CommandFailed(str(failure)) from None
        if not handle:
            raise CommandFailed(f"{self._http.base_url}{request.path}: the stream had no run")
        async for frame in self._rest(handle, last):
            yield frame

    async def _rest(self, handle: dict[str, Any], last: Frame) -> AsyncGenerator[Frame, None]:
        """What is missing after ``last``, over as many connections as it takes."""
        path = f"/v1/runs/{handle['run_id']}/stream"
        loop = asyncio.get_running_loop()
        wait, connected_at = _FIRST_WAIT_S, loop.time()
        while not _ends(last):
            try:
                async for frame in self._frames("GET", path, last.id, None):
                    wait, connected_at = _FIRST_WAIT_S, loop.time()
                    if frame.event != "agent":
                        last = frame
                        yield frame
                if _ends(last) or await self._status(handle["agent_id"]) != "running":
                    return
            except _Broken as failure:
                if loop.time() - connected_at > GIVE_UP_S:
                    raise CommandFailed(f"run {handle['run_id']} is lost: {failure}") from None
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LAST_WAIT_S)

    async def _frames(
        self, method: str, path: str, last_id: str, body: dict[str, Any] | None
    ) -> AsyncGenerator[Frame, None]:
        """The frames of one connection. Raises _Broken, BadInvocation, CommandFailed."""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        decoder = SseDecoder(last_id)
        try:
            async with self._http.stream(method, path, json=body, headers=headers) as response:
                if response.status_code != 200:
                    await response.aread()
                    if method == "GET" and response.status_code >= 500:
                        raise _Broken(str(_refused(response)))
                    raise _refused(response)
                async for text in response.aiter_text():
                    for event in decoder.feed(text):
                        yield Frame(event.event, event.id, event.data, _object(event.data))
        except httpx.HTTPError as error:
            raise _Broken(str(_unreachable(error))) from None


def _ends(frame: Frame) -> bool:
    """An ``error`` ends a run unless another frame follows it on the same stream."""
    return frame.event in ("done", "error")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _unreachable(error: httpx.HTTPError) -> CommandFailed:
    return CommandFailed(f"{error.request.url}: {str(error) or type(error).__name__}")


def _refused(response: httpx.Response) -> CommandFailed:
    kind = BadInvocation if 400 <= response.status_code < 500 else CommandFailed
    if response.status_code == 409:
        kind = CommandFailed
    return kind(f"{response.request.url}: {error_text(response.text)}")


def error_text(body: str) -> str:
    """``<message> (<error>)`` or ``<error>`` of a JSON body, else its first 200 characters."""
    fields = _object(body)
    error, message = fields.get("error"), fields.get("message")
    if error:
        return f"{message} ({error})" if message else str(error)
    return str(message or body[:200].strip() or "empty response")
