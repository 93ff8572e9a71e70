"""The Log interface on JetStream: append, leader reads, direct batch reads, tails.

``append`` is the hot path: one message out, one future, no task. Every other caller-visible
promise (kernel.md sections 3 and 7) is kept here; subjects map to streams by ``events/streams``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache

import msgspec

from events.log import LogError, LogUnavailable, Message, OutcomeUnknown
from events.nats_api import Api, decode_ack, error_of, header, is_status, time_ns
from events.nats_link import Link
from events.nats_tail import tail_stream
from events.streams import BY_NAME, stream_of
from events.subjects import Subjects

READ_BATCH = 2000
"""Messages per direct batch request."""

_READ_BYTES = 16 * 1024 * 1024
_STORED = re.compile(
    rb"\r\nNats-Subject: (\S+)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: (\S+)\r\n"
)
"""What a direct read tells of each message, in the server's order (NATS ADR-31)."""

_ENDS_INTERVAL_S = 0.001
_RESERVED_IN_HEADERS = str.maketrans("", "", "\r\n")


class NatsLog:
    """See :class:`events.log.Log`."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._api = Api(link)
        self._subjects = subjects
        self._prefix = subjects.prefix
        self._ends: dict[str, asyncio.Future[int]] = {}
        self._reading_ends: set[asyncio.Task[None]] = set()
        self._stream_of = lru_cache(maxsize=1024)(
            lambda subject: stream_of(subjects, subject).stream(subjects.prefix)
        )

    # --- append ---------------------------------------------------------------------------

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        after: int | None = None,
        scope: str | None = None,
        msg_id: str | None = None,
    ) -> int:
        self._stream_of(subject)  # refuses foreign subjects
        headers = b""
        if after is not None:
            headers = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % after
            if scope is not None:
                headers += f"Nats-Expected-Last-Subject-Sequence-Subject: {scope}\r\n".encode()
        if msg_id is not None:
            headers += f"Nats-Msg-Id: {msg_id.translate(_RESERVED_IN_HEADERS)}\r\n".encode()
        answer, status = await self._link.request_now(subject.encode(), data, headers)
        ack = decode_ack(answer, status)
        if ack.error is not None:
            raise error_of(ack.error)
        return ack.seq

    # --- reads ----------------------------------------------------------------------------

    async def last(self, subject: str) -> Message | None:
        return await self._api.message(self._stream_of(subject), {"last_by_subj": subject})

    async def first(self, subject: str, *, after: int = 0) -> Message | None:
        wanted = {"seq": after + 1, "next_by_subj": subject}
        return await self._api.message(self._stream_of(subject), wanted)

    async def read(self, subject: str, *, after: int = 0, limit: int = 0) -> list[Message]:
        stream = self._stream_of(subject)
        messages: list[Message] = []
        while True:
            batch = min(READ_BATCH, limit - len(messages)) if limit else READ_BATCH
            before = len(messages)
            pending = await self._read_batch(stream, subject, after, batch, messages)
            if not pending or len(messages) == before or len(messages) == limit:
                return messages
            after = messages[-1].seq

    async def _read_batch(
        self, stream: str, subject: str, after: int, batch: int, into: list[Message]
    ) -> int:
        """One direct batch; returns how many messages of the subject were left behind it."""
        pending = 0
        failure: LogError | None = None

        def collect(data: bytes, headers: bytes | None) -> bool:
            nonlocal pending, failure
            if headers is None:
                failure = LogUnavailable("direct read was answered without headers")
                return True
            if headers.startswith(b"NATS/1.0 "):
                if is_status(headers, b"204"):
                    pending = int(header(headers, b"Nats-Num-Pending") or b"0")
                elif not is_status(headers, b"404"):
                    reason = headers[9:60].split(b"\r\n")[0].decode(errors="replace")
                    failure = LogUnavailable(f"direct read of {stream} refused: {reason}")
                return True
            stored = _STORED.search(headers)
            if stored is None:
                failure = LogUnavailable("direct read was answered without a sequence")
                return True
            name, seq, stamp = stored.groups()
            into.append(Message(name.decode(), int(seq), time_ns(stamp), data))
            return False

        request = msgspec.json.encode(
            {
                "seq": after + 1,
                "next_by_subj": subject,
                "batch": batch,
                "max_bytes": _READ_BYTES,
            }
        )
        future = self._link.request_now(
            b"$JS.API.DIRECT.GET." + stream.encode(), request, collect=collect
        )
        try:
            _, headers = await future
        except OutcomeUnknown as error:
            raise LogUnavailable(str(error)) from None
        if is_status(headers, b"503"):
            raise LogUnavailable(f"stream {stream} is missing or has no leader")
        if failure is not None:
            raise failure
        return pending

    def tail(self, stream: str, *, after: int = 0) -> AsyncIterator[list[Message]]:
        return tail_stream(self._link, BY_NAME[stream].stream(self._prefix), after)

    async def ends(self, streams: Sequence[str]) -> dict[str, int]:
        futures = [self._end(BY_NAME[name].stream(self._prefix)) for name in streams]
        return dict(zip(streams, await asyncio.gather(*futures), strict=True))

    def _end(self, stream: str) -> asyncio.Future[int]:
        """Everybody who asks before the question is sent shares one answer."""
        future = self._ends.get(stream)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._ends[stream] = future
            task = asyncio.create_task(self._read_end(stream, future))
            self._reading_ends.add(task)
            task.add_done_callback(self._reading_ends.discard)
        return asyncio.shield(future)

    async def _read_end(self, stream: str, future: asyncio.Future[int]) -> None:
        await asyncio.sleep(_ENDS_INTERVAL_S)
        self._ends.pop(stream, None)
        try:
            future.set_result((await self._api.info(stream)).state.last_seq)
        except LogError as error:
            future.set_exception(error)
            with contextlib.suppress(LogError):
                future.result()

    async def purge(self, subject: str) -> None:
        await self._api.purge(self._stream_of(subject), subject)
