"""Request bodies: read up to a limit, check the content type, decode the first JSON value.

Specification: http-runs.md sections 1.1, 1.5 and 3.5 rows 1 and 2. Nothing here knows a route.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from gateways.http.errors import ClientGone, Refusal
from gateways.http.nulls import without_nulls

T = TypeVar("T")

MIB = 1024 * 1024

UNREAD_BYTES = 16 * MIB
UNREAD_S = 2.0
"""So much of a body that is too large, and for so long, is taken before the client is answered.

A connection that closes on unread bytes is reset, and the client never sees the answer."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
"""msgspec's complaint; the number counts the first of those characters in."""

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Every escape of a JSON text, surrogate pairs as one."""


class BodyTooLarge(Refusal):
    """The body is longer than its route takes."""

    def __init__(self) -> None:
        super().__init__(400, "bad json: http: request body too large")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes. Raises BodyTooLarge, ClientGone."""
    declared = header(scope, b"content-length")
    if declared and declared.isdigit() and int(declared) > limit:
        if header(scope, b"expect") is None:  # else the client waits for the answer
            await _discard(receive)
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            if message.get("more_body", False):
                await _discard(receive)
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _discard(receive: Receive) -> None:
    """Take what remains of a body, within the limits above. Raises ClientGone."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_S):
            while size < UNREAD_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class JsonBody(Generic[T]):
    """Bodies of one msgspec type, at most ``limit`` bytes."""

    def __init__(self, kind: type[T], *, limit: int = MIB) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._limit = limit

    async def read(self, scope: Scope, receive: Receive) -> T:
        """Raises Refusal (400, 415), ClientGone."""
        check_content_type(scope)
        return self.decode(await read_body(scope, receive, self._limit))

    def decode(self, data: bytes) -> T:
        """The first JSON value of ``data``; what follows it is ignored, so are nulls of fields
        that cannot be null. Raises Refusal with the path of a wrong field."""
        try:
            return self._decoder.decode(_utf8(data))
        except (msgspec.DecodeError, RecursionError) as cause:
            return self._decode_leniently(data, cause)

    def _decode_leniently(self, data: bytes, cause: Exception) -> T:
        """Called for what is not strictly right. Raises Refusal."""
        try:
            value = first_value(data)
            if not isinstance(cause, msgspec.ValidationError):
                try:
                    return self._decoder.decode(value)
                except msgspec.ValidationError as later:
                    cause = later
            if "got `null`" not in str(cause):
                raise cause
            return self._decoder.decode(without_nulls(value, self._kind))
        except RecursionError:
            raise Refusal(400, "bad json: nested too deeply") from None
        except msgspec.DecodeError as final:
            raise Refusal(400, f"bad json: {final}") from None


def first_value(data: bytes) -> bytes:
    """The first JSON value of ``data``, halves of surrogate pairs replaced.

    Raises msgspec.DecodeError, RecursionError.
    """
    data = _ESCAPE.sub(_whole, _utf8(data))
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError as cause:
        trailing = _TRAILING.search(str(cause))
        if trailing is None:
            raise
        return data[: int(trailing[1]) - 1]
    return data


def _utf8(data: bytes) -> bytes:
    """Checks also what msgspec passes through undecoded. Raises msgspec.DecodeError."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as cause:
            text = f"JSON is malformed: invalid UTF-8 (byte {cause.start})"
            raise msgspec.DecodeError(text) from None
    return data


def _whole(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["lone"] else escape[0]


def check_content_type(scope: Scope) -> None:
    """An absent header is fine. Raises Refusal (415)."""
    given = header(scope, b"content-type")
    if given and not given.strip().lower().startswith(b"application/json"):
        raise Refusal(415, "Content-Type must be application/json")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header called ``name`` (lower case)."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None
