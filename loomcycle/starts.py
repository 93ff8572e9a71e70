"""What waits on the start queue: a validated request, ready to become a first commit.

A start item holds no credential (they are sealed under the run's id) and becomes a promise only
when a worker has committed it (kernel.md section 4).
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from events.log import Seals
from events.vocabulary import Event, RunStarted, SystemPrompt, UserInput

INLINE_LIMIT = 256 * 1024

START = "start"
"""Name of the seal that holds a large start item."""


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


class _Sealed(Struct, frozen=True, tag_field="kind", tag="sealed"):
    run: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StartItem).decode
_decode_sealed = msgspec.json.Decoder(_Sealed).decode
_SEALED = b'{"kind":"sealed"'
_opening = msgspec.json.Decoder(RunStarted | UserInput | SystemPrompt).decode


def is_large(events: list[Raw]) -> bool:
    """Whether a start with these opening events is kept beside the queue."""
    return sum(len(bytes(event)) for event in events) > INLINE_LIMIT


async def pack(item: StartItem, seals: Seals) -> bytes:
    """Bytes for the queue; a large item is sealed under its run, for nothing of it is masked yet.

    The seal goes with the run's others: :data:`START` must be named in ``RunStarted.sealed``.
    """
    data = _encode(item)
    if not is_large(item.events):
        return data
    await seals.put(item.run, START, data)
    return _encode(_Sealed(item.run))


async def unpack(data: bytes, seals: Seals) -> StartItem:
    """Inverse of :func:`pack`. Raises KeyError when the seal is gone: the start was taken back."""
    if data.startswith(_SEALED):
        run_id = _decode_sealed(data).run
        sealed = await seals.get(run_id, START)
        if sealed is None:
            raise KeyError(f"start of {run_id}")
        data = sealed
    return _decode(data)


def opening_events(item: StartItem) -> list[Event]:
    """The events that the first commit begins with."""
    return [_opening(raw) for raw in item.events]
