"""Events of the STATE stream that views fold: one JSON object per message.

Memory only (specification: memory.md sections 2 to 4): each write of a row is one message on
``mem.<tenant>.<scope>.<scope_id>.<key>``. The names stand in the event, because a long name
is a hash in the subject. Nothing here reads a clock or appends.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

STATE_VERSION = 1


class StateError(Exception):
    """A message of STATE that cannot be folded; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnreadableState(StateError):
    """The bytes are no event of the type that their subject promises."""


class FutureState(StateError):
    """A newer version wrote the event and it must be understood to go on."""


class MemoryWritten(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="memory.written"):
    """The row (tenant, scope, scope_id, key) has this value from now on, or is gone.

    ``value`` is JSON, byte for byte as written, UNSET for a row that is gone (JSON ``null`` is a
    value). Times are unix nanoseconds; ``expires_at_ns`` None means never. ``created_at_ns`` is
    the row's first write, kept by later ones. ``effect_id`` and ``result`` let a recovered run
    find its own write and answer with the same text (kernel.md section 5).
    """

    tenant: str = ""
    scope: str
    scope_id: str
    key: str
    op: str
    value: Raw | UnsetType = UNSET
    expires_at_ns: int | None = None
    created_at_ns: int
    updated_at_ns: int
    effect_id: str = ""
    result: Raw | UnsetType = UNSET
    v: int = STATE_VERSION
    must_understand: bool = True


class _Envelope(Struct):
    type: str = ""
    v: int = STATE_VERSION
    must_understand: bool = True


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MemoryWritten).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def encode(event: MemoryWritten) -> bytes:
    """The bytes to append on ``Subjects.memory(tenant, scope, scope_id, key)``."""
    return _encode(event)


def decode(data: bytes) -> MemoryWritten | None:
    """Inverse of :func:`encode`; None for a newer event that need not be understood.

    Raises UnreadableState, FutureState.
    """
    try:
        event = _decode(data)
        if event.v <= STATE_VERSION:
            return event
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as cause:
        _judge(data, str(cause))
        return None
    _judge(data, "")
    return None


def _judge(data: bytes, reason: str) -> None:
    """Raise for an event that was not understood, unless it need not be."""
    try:
        envelope = _decode_envelope(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as cause:
        raise UnreadableState(f"not an event: {cause}") from None
    known = envelope.type == MemoryWritten.__struct_config__.tag
    if known and envelope.v <= STATE_VERSION:
        raise UnreadableState(f"{envelope.type} does not decode: {reason}")
    if not envelope.type:
        raise UnreadableState("names no type")
    if envelope.must_understand:
        raise FutureState(f"event has unknown type {envelope.type!r} version {envelope.v}")
