"""Messages that nobody stores, over core NATS: frames of live runs and pokes to their owners.

While disconnected they are dropped; whoever follows a run fills gaps from its journal.
"""

from __future__ import annotations

from collections.abc import Callable

from events.nats_link import Link
from events.subjects import Subjects


class NatsLive:
    """See :class:`events.log.Live`."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._subjects = subjects

    def publish(self, run_id: str, data: bytes) -> None:
        self._send(self._subjects.live(run_id), data)

    def poke(self, run_id: str, data: bytes) -> None:
        self._send(self._subjects.signal(run_id), data)

    async def follow(self, run_id: str, receive: Callable[[bytes], None]) -> Callable[[], None]:
        def on_message(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes | None) -> None:
            receive(data)

        sid = self._link.attach(self._subjects.live(run_id), on_message)
        try:
            await self._link.settle()
        except BaseException:
            self._link.detach(sid)
            raise
        return lambda: self._link.detach(sid)

    async def pokes(self, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        def on_message(subject: bytes, _reply: bytes, data: bytes, _headers: bytes | None) -> None:
            receive(self._subjects.parse(subject.decode()).run_id, data)

        sid = self._link.attach(self._subjects.any("sig"), on_message)
        await self._link.settle()
        return lambda: self._link.detach(sid)

    def _send(self, subject: str, data: bytes) -> None:
        if self._link.is_connected:
            self._link.publish_now(subject.encode(), data)
