"""JetStream's JSON API and message headers, as far as the log needs them.

Translates every answer into a typed value or one of the errors of ``events/log.py``; other
modules see neither JSON nor status headers. Specification: NATS ADR-1, ADR-8, ADR-31.
"""

from __future__ import annotations

from calendar import timegm
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from events.log import LogError, LogFull, LogUnavailable, Message, OutcomeUnknown, WrongSequence
from events.nats_link import ApiError, Link

STREAM_NAME_IN_USE = 10058
STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
DELETE_FOUND_NOTHING = 10057
WRONG_LAST_SEQUENCE = 10071
STORE_FAILED = 10077

_WRONG_SEQUENCE_CODES = frozenset({WRONG_LAST_SEQUENCE, 10164})
_FULL_CODES = frozenset({10023, 10028, 10047, 10054, STORE_FAILED})
_UNAVAILABLE_CODES = frozenset({10008, 10009, 10039, 10074, 10076, STREAM_NOT_FOUND})
_PAGE = 100_000

T = TypeVar("T")


class PubAck(Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class _Envelope(Struct, frozen=True):
    error: ApiError | None = None


class StreamState(Struct, frozen=True):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamInfo(Struct, frozen=True):
    """``created`` and ``ts`` are RFC 3339; ``ts`` is the server's time of the answer."""

    state: StreamState = StreamState()
    created: str = ""
    ts: str = ""
    total: int = 0


class StoredMessage(Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: bytes = b""


class _MessageAnswer(Struct, frozen=True):
    message: StoredMessage


class _Listed(Struct, frozen=True):
    config: dict[str, Any]


class _List(Struct, frozen=True):
    streams: list[_Listed] | None = None


_ack_decoder = msgspec.json.Decoder(PubAck)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def unavailable(reason: str = "JetStream does not answer (no stream or no leader)") -> LogError:
    return LogUnavailable(reason)


def is_status(headers: bytes | None, code: bytes) -> bool:
    """Whether ``headers`` is an inline status of the server, such as ``503``."""
    return headers is not None and headers.startswith(b"NATS/1.0 " + code)


def error_of(error: ApiError) -> LogError:
    """The typed error for a refused append or API request."""
    text = f"{error.description} ({error.err_code})"
    if error.err_code in _WRONG_SEQUENCE_CODES:
        return WrongSequence(text)
    if error.err_code in _FULL_CODES or "insufficient" in error.description:
        return LogFull(text)
    if error.err_code in _UNAVAILABLE_CODES or error.code == 503:
        return LogUnavailable(text)
    return LogError(text)


def decode_ack(data: bytes, headers: bytes | None) -> PubAck:
    """The acknowledgement of an append; raises LogUnavailable when nobody stored it."""
    if headers is not None and is_status(headers, b"503"):
        raise unavailable()
    return _ack_decoder.decode(data)


class Api:
    """Requests to ``$JS.API``; each raises LogUnavailable when nobody answers."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def call(self, subject: str, body: object, answer: type[T], *, write: bool = False) -> T:
        """One request. A lost answer raises OutcomeUnknown for a ``write``."""
        payload = b"" if body is None else msgspec.json.encode(body)
        future = self.link.request_now(f"$JS.API.{subject}".encode(), payload)
        try:
            data, headers = await future
        except OutcomeUnknown as error:
            if write:
                raise
            raise LogUnavailable(str(error)) from None
        if is_status(headers, b"503"):
            raise unavailable()
        error_body = _envelope_decoder.decode(data).error
        if error_body is not None:
            raise Refused(error_body)
        return msgspec.json.decode(data, type=answer)

    async def configs(self, filter_subject: str) -> dict[str, dict[str, Any]]:
        """Settings, by name, of the streams that hold subjects of the filter (at most 256)."""
        answer = await self._typed("STREAM.LIST", {"subject": filter_subject}, _List)
        return {stream.config["name"]: stream.config for stream in answer.streams or ()}

    async def create_stream(self, config: dict[str, Any]) -> None:
        """Create; a stream that exists already, whatever its settings, is left alone."""
        try:
            await self.call(f"STREAM.CREATE.{config['name']}", config, _Envelope, write=True)
        except Refused as refused:
            if refused.error.err_code != STREAM_NAME_IN_USE:
                raise error_of(refused.error) from None

    async def update_stream(self, config: dict[str, Any]) -> None:
        await self._typed(f"STREAM.UPDATE.{config['name']}", config, _Envelope, write=True)

    async def create_consumer(self, stream: str, config: dict[str, Any]) -> None:
        """Create the consumer ``config['name']``, or leave an equal one alone."""
        await self._typed(
            f"CONSUMER.CREATE.{stream}.{config['name']}",
            {"stream_name": stream, "config": config},
            _Envelope,
            write=True,
        )

    async def info(self, stream: str) -> StreamInfo:
        return await self._typed(f"STREAM.INFO.{stream}", None, StreamInfo)

    async def subjects(self, stream: str, filter_subject: str) -> tuple[StreamInfo, set[str]]:
        """The stream's state and every subject of the filter that holds a message."""
        found: set[str] = set()
        while True:
            body = {"subjects_filter": filter_subject, "offset": len(found)}
            info = await self._typed(f"STREAM.INFO.{stream}", body, StreamInfo)
            page = info.state.subjects or {}
            before = len(found)
            found.update(page)
            if len(page) < _PAGE or len(found) == before:
                return info, found

    async def counts(self, stream: str, filter_subject: str) -> tuple[StreamInfo, dict[str, int]]:
        """The stream's state and the number of messages of each subject of the filter."""
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": filter_subject, "offset": len(found)}
            info = await self._typed(f"STREAM.INFO.{stream}", body, StreamInfo)
            page = info.state.subjects or {}
            before = len(found)
            found.update(page)
            if len(page) < _PAGE or len(found) == before:
                return info, found

    async def message(self, stream: str, body: dict[str, Any]) -> Message | None:
        """A message from the leader, by ``seq`` or ``last_by_subj``."""
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", body, _MessageAnswer)
        except Refused as refused:
            if refused.error.err_code == NO_MESSAGE_FOUND:
                return None
            raise error_of(refused.error) from None
        m = answer.message
        return Message(m.subject, m.seq, time_ns(m.time.encode()), m.data)

    async def delete_message(self, stream: str, seq: int) -> bool:
        """False when there was no such message."""
        body = {"seq": seq, "no_erase": True}
        try:
            await self.call(f"STREAM.MSG.DELETE.{stream}", body, _Envelope, write=True)
        except Refused as refused:
            if refused.error.err_code in (NO_MESSAGE_FOUND, DELETE_FOUND_NOTHING, 10043):
                return False
            raise error_of(refused.error) from None
        return True

    async def purge(self, stream: str, filter_subject: str) -> None:
        await self._typed(f"STREAM.PURGE.{stream}", {"filter": filter_subject}, _Envelope, True)

    async def _typed(self, subject: str, body: object, answer: type[T], write: bool = False) -> T:
        try:
            return await self.call(subject, body, answer, write=write)
        except Refused as refused:
            raise error_of(refused.error) from None


class Refused(LogError):
    """The server's own error; translated before it leaves this package."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error


# --- times and delivery positions ---------------------------------------------------------


@lru_cache(maxsize=256)
def _whole_seconds(text: bytes) -> int:
    return timegm(datetime.fromisoformat(text.decode()).utctimetuple())


def time_ns(text: bytes) -> int:
    """RFC 3339 in UTC, with up to nanoseconds -> nanoseconds since 1970; raises ValueError."""
    if not text.endswith(b"Z"):
        raise ValueError(f"{text!r} is not a time in UTC")
    digits = text[20:-1]
    fraction = int(digits) * 10 ** (9 - len(digits)) if digits else 0
    return _whole_seconds(text[:19]) * 1_000_000_000 + fraction


class Position(Struct, frozen=True):
    """Where a delivered message stands, as its reply subject tells (NATS ADR-15)."""

    deliveries: int
    seq: int
    consumer_seq: int
    time_ns: int


def position(reply: bytes) -> Position:
    """Decode ``$JS.ACK....`` with nine tokens, or with domain and account before them."""
    tokens = reply.split(b".")
    at = 4 if len(tokens) == 9 else 6
    return Position(int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 3]))


def header(headers: bytes, name: bytes) -> bytes:
    """The value of one header line; empty when absent."""
    start = headers.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return headers[start : headers.index(b"\r\n", start)].strip()
