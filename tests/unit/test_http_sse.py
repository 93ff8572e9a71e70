"""Event streams: the bytes of frames, how few sends they take, and how a stream ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateways.http.sse import HANG_UP, PIECE, EventStream
from loomcycle.feed import FeedFrame
from tests.wire.asgi import AsgiClient

FRAMES = [FeedFrame("0", "session", b'{"type":"session"}'), FeedFrame("7.1.3", "text", b"{}")]


def stream_to(client: AsgiClient) -> EventStream:
    return EventStream(client.scope, client.send, None)


class Connection:
    """The transport below an ASGI server, as far as breaking off a response needs it."""

    def __init__(self, client: AsgiClient, *, stuck: bool) -> None:
        self.client, self.stuck, self.aborted = client, stuck, False

    def close(self) -> None:
        if not self.stuck:
            self.client.leave()

    def abort(self) -> None:
        self.aborted = True
        self.client.leave()


async def test_frames_are_framed_and_go_out_in_one_send() -> None:
    client = AsgiClient()
    await stream_to(client).open(FRAMES)
    start, body = client.sent
    assert start["status"] == 200
    assert client.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "connection": "keep-alive",
        "x-accel-buffering": "no",
    }
    assert body["more_body"] is True
    assert body["body"] == (
        b'id: 0\nevent: session\ndata: {"type":"session"}\n\nid: 7.1.3\nevent: text\ndata: {}\n\n'
    )


async def test_a_client_that_wants_to_close_is_not_promised_keep_alive() -> None:
    client = AsgiClient(headers={"Connection": "close"})
    await stream_to(client).open([])
    assert "connection" not in client.headers


async def test_a_large_batch_is_sent_in_pieces() -> None:
    client = AsgiClient()
    frame = FeedFrame("1", "text", b"x" * (PIECE // 2))
    await stream_to(client).write([frame] * 5)
    assert [len(message["body"]) > PIECE for message in client.sent] == [True, True, False]


async def test_nothing_is_sent_for_no_frames() -> None:
    client = AsgiClient()
    await stream_to(client).write([])
    assert client.sent == []


async def test_an_end_completes_the_response() -> None:
    client = AsgiClient()
    stream = stream_to(client)
    await stream.open([])
    await stream.end()
    assert client.sent[-1].get("more_body", False) is False
    assert stream.ended


async def test_the_last_frames_and_the_end_are_one_send() -> None:
    client = AsgiClient()
    await stream_to(client).write(FRAMES, last=True)
    (message,) = client.sent
    assert message["more_body"] is False
    assert message["body"].count(b"event: ") == 2


async def test_a_broken_off_stream_never_looks_complete() -> None:
    client = AsgiClient(body=[])
    client.scope["extensions"] = {HANG_UP: Connection(client, stuck=False)}
    stream = stream_to(client)
    await stream.open(FRAMES)
    await stream.break_off(client.receive)
    assert all(message.get("more_body", True) for message in client.sent)


async def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: Any) -> None:
    monkeypatch.setattr("gateways.http.sse.HANG_UP_S", 0.01)
    client = AsgiClient(body=[])
    connection = Connection(client, stuck=True)
    client.scope["extensions"] = {HANG_UP: cast(asyncio.Transport, connection)}
    await stream_to(client).break_off(client.receive)
    assert connection.aborted
