"""``loomcycle run`` on the wire: streams that break, servers that refuse, verdicts.

The server is a script of raw HTTP answers on 127.0.0.1, one for each connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from loomcycle.cli import client as client_module
from loomcycle.cli.client import Frame, Request, RunClient, start_request
from loomcycle.cli.errors import BadInvocation, CommandFailed
from loomcycle.cli.run import perform

SESSION = 'id: 0\nevent: session\ndata: {"type":"session","text":"s_1"}\n\n'
AGENT = (
    "id: 0\nevent: agent\n"
    'data: {"agent_id":"a_1","run_id":"r_1","session_id":"s_1","parent_agent_id":null}\n\n'
)
DONE = 'id: 3072\nevent: done\ndata: {"type":"done","usage":{},"stop_reason":"end_turn"}\n\n'


def text(id_: str, words: str) -> str:
    return f'id: {id_}\nevent: text\ndata: {{"type":"text","text":"{words}"}}\n\n'


def stream(*frames: str, ends: bool = True) -> bytes:
    """A chunked event stream; without its last chunk when the connection is to break."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    body = "".join(frames).encode()
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return head + b"connection: close\r\n\r\n" + chunk + (b"0\r\n\r\n" if ends else b"")


def answer(status: int, body: str) -> bytes:
    data = body.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    return head.encode() + data


def row(status: str) -> bytes:
    return answer(200, json.dumps({"agent_id": "a_1", "status": status}))


class Script:
    """Answers connections in order and keeps the requests (first line, headers, body)."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.lines: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = head.strip().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (f.partition(":") for f in fields)}
        self.lines.append(line.removesuffix(" HTTP/1.1"))
        self.headers.append(headers)
        self.bodies.append(await reader.readexactly(int(headers.get("content-length", 0))))
        writer.write(self._answers.pop(0))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[Script]:
    script = Script(*answers)
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script


async def follow(script: Script, request: Request | None = None, token: str = "") -> list[Frame]:
    client = RunClient(script.url, token)
    try:
        async with aclosing(client.follow(request or start_request("a", "hi"))) as frames:
            return [frame async for frame in frames]
    finally:
        await client.close()


def words(frames: list[Frame]) -> str:
    return "".join(frame.body["text"] for frame in frames if frame.event == "text")


async def test_a_whole_stream_needs_one_connection() -> None:
    async with serving(stream(SESSION, AGENT, text("1024", "hello"), DONE)) as script:
        frames = await follow(script, token="tok-1")
    assert [f.event for f in frames] == ["session", "agent", "text", "done"]
    assert script.lines == ["POST /v1/runs"]
    assert script.headers[0]["authorization"] == "Bearer tok-1"
    assert json.loads(script.bodies[0]) == {"agent": "a", "prompt": "hi"}


async def test_a_broken_stream_is_picked_up_after_the_last_frame() -> None:
    async with serving(
        stream(SESSION, AGENT, text("1024.1.3", "hel"), ends=False),
        stream(AGENT, text("1024.1.5", "lo "), ends=False),
        stream(AGENT, text("2048", "you"), DONE),
    ) as script:
        frames = await follow(script)
    assert words(frames) == "hello you"
    assert [f.event for f in frames].count("agent") == 1
    assert script.lines[1:] == ["GET /v1/runs/r_1/stream"] * 2
    assert [h.get("last-event-id") for h in script.headers] == [None, "1024.1.3", "1024.1.5"]


async def test_a_half_frame_before_the_break_is_not_shown() -> None:
    async with serving(
        stream(SESSION, AGENT, 'id: 1024\nevent: text\ndata: {"type":"te', ends=False),
        stream(AGENT, text("1024", "whole"), DONE),
    ) as script:
        frames = await follow(script)
    assert words(frames) == "whole"
    assert script.headers[1]["last-event-id"] == "0"


async def test_a_server_that_restarts_is_waited_for() -> None:
    async with serving(
        stream(SESSION, AGENT, ends=False),
        answer(503, '{"error":"views are rebuilding"}'),
        stream(AGENT, text("1024", "back"), DONE),
    ) as script:
        assert words(await follow(script)) == "back"


async def test_a_stream_that_ended_without_a_last_word_is_settled_by_the_status() -> None:
    async with serving(
        stream(SESSION, AGENT), stream(AGENT), row("running"), stream(AGENT), row("cancelled")
    ) as script:
        frames = await follow(script)
    assert [f.event for f in frames] == ["session", "agent"]
    assert script.lines[2] == "GET /v1/agents/a_1"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadInvocation),
        (401, BadInvocation),
        (404, BadInvocation),
        (409, CommandFailed),
        (429, BadInvocation),
        (500, CommandFailed),
        (503, CommandFailed),
    ],
)
async def test_a_refusal_says_why_and_means_its_exit_code(
    status: int, kind: type[CommandFailed]
) -> None:
    async with serving(answer(status, '{"code":"c","error":"not so"}')) as script:
        with pytest.raises(CommandFailed) as refused:
            await follow(script)
        assert str(refused.value) == f"{script.url}/v1/runs: not so"
    assert type(refused.value) is kind


async def test_a_stream_without_a_run_is_a_failure() -> None:
    async with serving(stream()) as script:
        with pytest.raises(CommandFailed, match="had no run"):
            await follow(script)


async def test_a_run_that_vanished_is_a_failure() -> None:
    async with serving(stream(SESSION, AGENT, ends=False), answer(404, "no such run\n")) as script:
        with pytest.raises(CommandFailed, match="no such run"):
            await follow(script)


async def test_a_server_that_never_comes_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GIVE_UP_S", 0.0)
    async with serving(stream(SESSION, AGENT, ends=False), b"") as script:
        with pytest.raises(CommandFailed, match="run r_1 is lost"):
            await follow(script)


Captured = pytest.CaptureFixture[str]


async def test_a_session_is_continued_with_its_own_agent(capsys: Captured) -> None:
    async with serving(stream(SESSION, AGENT, text("1024", "more"), DONE)) as script:
        shown = await perform(script.url, "", start_request("", "go on", session="s_1"))
    assert script.lines == ["POST /v1/sessions/s_1/messages"]
    assert shown.completed
    assert capsys.readouterr().out == "more\n"


async def test_json_is_one_frame_per_line(capsys: Captured) -> None:
    async with serving(stream(SESSION, AGENT, text("1024", "hé"), DONE)) as script:
        shown = await perform(script.url, "", start_request("a", "hi"), as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["session", "agent", "text", "done"]
    assert lines[2] == {"event": "text", "id": "1024", "data": {"type": "text", "text": "hé"}}
    assert shown.completed


@pytest.mark.parametrize(
    ("answers", "completed"),
    [
        ((stream(SESSION, AGENT, DONE),), True),
        ((stream(AGENT, 'event: error\ndata: {"error":"boom"}\n\n'),), False),
        ((stream(AGENT), stream(AGENT), row("cancelled"), row("cancelled")), False),
        ((stream(AGENT), stream(AGENT), row("completed"), row("completed")), True),
    ],
)
async def test_the_verdict(answers: tuple[bytes, ...], completed: bool, capsys: Captured) -> None:
    async with serving(*answers) as script:
        shown = await perform(script.url, "", start_request("a", "hi"))
    assert shown.completed is completed
