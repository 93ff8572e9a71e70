"""Following one stream for ever: an ephemeral pull consumer that is replaced when in doubt.

The position is the reader's own. After a reconnect, a gap or silence a new consumer with a new
name starts behind it, so a batch is never repeated and nothing is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from events.log import LogError, Message
from events.nats_api import Api, position
from events.nats_link import Link

log = logging.getLogger(__name__)

BATCH = 1000
"""Messages asked for at a time; asked again when half of them have been taken."""

_BYTES = 8 * 1024 * 1024
_EXPIRES_S = 30.0
_HEARTBEAT_S = 7.0
_SILENCE_S = 15.0
"""A consumer that was not heard of for so long (two heartbeats) is gone."""

_INACTIVE_S = 60.0
_RETRY_S = 0.1
_SECOND_NS = 1_000_000_000


class _Consumer:
    """One incarnation of the consumer and what it has delivered so far."""

    def __init__(self, link: Link, stream: str, after: int) -> None:
        self.link = link
        self.stream = stream
        self.after = after
        self.name = "tail-" + link.fresh_inbox().rsplit(".", 1)[1]
        self.arrived: deque[Message] = deque()
        self.changed = asyncio.Event()
        self.broken = ""
        self._expected = 1
        self._asked = 0
        self._heard = time.monotonic()
        self._inbox = link.fresh_inbox()
        self._sid = 0
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self.name}".encode()

    async def open(self) -> None:
        await Api(self.link).create_consumer(
            self.stream,
            {
                "name": self.name,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": self.after + 1,
                "ack_policy": "none",
                "replay_policy": "instant",
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": int(_INACTIVE_S * _SECOND_NS),
            },
        )
        self._sid = self.link.attach(self._inbox, self._receive)
        self.ask()

    def ask(self) -> None:
        """Keep between half a batch and a batch outstanding."""
        if self._asked + len(self.arrived) > BATCH // 2:
            return
        count = BATCH - self._asked
        self._asked += count
        self.link.publish_now(
            self._next,
            msgspec.json.encode(
                {
                    "batch": count,
                    "max_bytes": _BYTES,
                    "expires": int(_EXPIRES_S * _SECOND_NS),
                    "idle_heartbeat": int(_HEARTBEAT_S * _SECOND_NS),
                }
            ),
            self._inbox.encode(),
        )

    def _receive(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self._heard = time.monotonic()
        if headers is not None and headers.startswith(b"NATS/1.0 "):
            self._status(headers[9:12])
            return
        if self.broken:
            return
        at = position(reply)
        if at.consumer_seq != self._expected:
            self.give_up(f"expected delivery {self._expected}, got {at.consumer_seq}")
            return
        self._expected += 1
        self._asked -= 1
        self.arrived.append(Message(subject.decode(), at.seq, at.time_ns, data))
        self.changed.set()

    def _status(self, code: bytes) -> None:
        if code == b"100":
            return
        if code in (b"408", b"409", b"404"):
            # The request ended (time, bytes, leadership): its rest is not coming any more.
            self._asked = 0
        else:
            self.give_up(f"status {code.decode(errors='replace')}")
        self.changed.set()

    def give_up(self, reason: str) -> None:
        self.broken = self.broken or reason
        self.changed.set()

    def patience_s(self) -> float:
        """For so long it may still be silent."""
        return self._heard + _SILENCE_S - time.monotonic()

    def take(self) -> list[Message]:
        messages = list(self.arrived)
        self.arrived.clear()
        self.changed.clear()
        return messages

    def close(self) -> None:
        self.link.detach(self._sid)
        with contextlib.suppress(LogError):
            self.link.publish_now(
                f"$JS.API.CONSUMER.DELETE.{self.stream}.{self.name}".encode(), b""
            )


async def tail_stream(link: Link, stream: str, after: int) -> AsyncIterator[list[Message]]:
    """Batches behind ``after``, for ever (see :meth:`events.log.Log.tail`)."""
    while not link.is_closed:
        consumer = _Consumer(link, stream, after)

        def lost(consumer: _Consumer = consumer) -> None:
            consumer.give_up("the connection broke")

        link.lost.append(lost)
        try:
            await consumer.open()
            async for messages in _deliver(consumer):
                after = messages[-1].seq
                yield messages
            log.info("tail of %s starts again behind %d: %s", stream, after, consumer.broken)
        except LogError as error:
            log.info("tail of %s waits behind %d: %s", stream, after, error)
            await asyncio.sleep(_RETRY_S)
        finally:
            link.lost.remove(lost)
            consumer.close()


async def _deliver(consumer: _Consumer) -> AsyncIterator[list[Message]]:
    while True:
        if messages := consumer.take():
            yield messages
        if consumer.arrived:
            continue
        if consumer.broken:
            return
        consumer.ask()
        try:
            async with asyncio.timeout(consumer.patience_s()):
                await consumer.changed.wait()
        except TimeoutError:
            if consumer.patience_s() <= 0:
                consumer.give_up("no heartbeat")
