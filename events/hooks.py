"""Hook registrations: one JSON object per message on ``hook.<tenant>.<owner>.<name>`` of STATE.

Specification: hooks.md sections 2 and 3. The names stand in the event, because a long name is a
hash in the subject. Nothing here reads a clock or appends.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from events.state import STATE_VERSION, FutureState, UnreadableState


class HookRegistered(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="hook.registered"):
    """The hook (tenant, owner, name) is this from now on, under a new ``id``.

    Its place in the chain is that of the first registration since it was last deleted. An empty
    ``tenant`` means every tenant; ``agents`` and ``tools`` are patterns (exact, or a prefix and
    ``*``), None or none at all meaning all. ``timeout_ms`` is as given (0 = the default).
    """

    id: str
    tenant: str = ""
    owner: str
    name: str
    phase: Literal["pre", "post"]
    callback_url: str
    agents: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    fail_mode: Literal["open", "closed"] = "open"
    timeout_ms: int = 0
    registered_at_ns: int
    v: int = STATE_VERSION
    must_understand: bool = True


class HookDeleted(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="hook.deleted"):
    """The hook (tenant, owner, name), whose id was ``id``, is gone."""

    id: str
    tenant: str = ""
    owner: str
    name: str
    v: int = STATE_VERSION
    must_understand: bool = True


HookEvent = HookRegistered | HookDeleted


class _Envelope(Struct):
    type: str = ""
    v: int = STATE_VERSION
    must_understand: bool = True


_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in (HookRegistered, HookDeleted))

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HookEvent).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def decode(data: bytes) -> HookEvent | None:
    """Inverse of ``encode``; None for a newer event that need not be understood.

    Raises UnreadableState, FutureState.
    """
    try:
        envelope = _decode_envelope(data)
        if envelope.type in _KNOWN and envelope.v <= STATE_VERSION:
            event: HookEvent = _decode(data)
            return event
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise UnreadableState(f"not an event of a hook: {cause}") from None
    if not envelope.type:
        raise UnreadableState("names no type")
    if envelope.must_understand:
        raise FutureState(f"event has unknown type {envelope.type!r} version {envelope.v}")
    return None
