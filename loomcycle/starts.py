"""What waits on the start queue: a validated request, ready to become a first commit.

A start item holds no credential (they are sealed under the run's id) and becomes a promise only
when a worker has committed it (kernel.md section 4).
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from events.log import Blobs
from events.vocabulary import Event, RunStarted, SystemPrompt, UserInput

INLINE_LIMIT = 256 * 1024


class StartItem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``not_after_ns``: unix nanoseconds after which the caller was refused.

    ``gateway`` is the process whose client waits. ``session_after`` is the sequence at which
    the session's subject must end for this run to be admitted (0: the run opens its session).
    ``claims_handle``: the caller chose the agent id, it must be free.
    """

    run: str
    session: str
    tenant: str
    agent_id: str
    gateway: str
    not_after_ns: int
    events: list[Raw]
    user_id: str = ""
    reader: str = "cancel"
    opens_session: bool = True
    session_after: int = 0
    claims_handle: bool = False
    max_queue_wait_ns: int = 0


class _Reference(Struct, frozen=True):
    blob: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StartItem).decode
_decode_reference = msgspec.json.Decoder(_Reference).decode
_opening = msgspec.json.Decoder(RunStarted | UserInput | SystemPrompt).decode


async def pack(item: StartItem, blobs: Blobs) -> bytes:
    """Bytes for the queue; a large item goes to the blob store, its name to the queue."""
    data = _encode(item)
    if len(data) <= INLINE_LIMIT:
        return data
    return _encode(_Reference(await blobs.put(data)))


async def unpack(data: bytes, blobs: Blobs) -> StartItem:
    """Inverse of :func:`pack`."""
    if data.startswith(b'{"blob":'):
        data = await blobs.get(_decode_reference(data).blob)
    return _decode(data)


def opening_events(item: StartItem) -> list[Event]:
    """The events that the first commit begins with."""
    return [_opening(raw) for raw in item.events]
