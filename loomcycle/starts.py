"""A validated request, ready to become a first commit, and its form on the start queue.

A start item holds no credential (they are sealed under the run's id) and becomes a promise only
when a worker has committed it (kernel.md section 4).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from events.content import Segment
from events.log import Seals
from events.vocabulary import Event, RunStarted, SystemPrompt, SystemPromptBody, UserInput

INLINE_LIMIT = 256 * 1024

START = "start"
"""Name of the seal that holds a large start item."""


class StartItem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``not_after_ns``: unix nanoseconds after which the caller was refused.

    ``gateway`` is the process whose client waits. ``session_after`` is the sequence at which
    the session's subject must end for this run to be admitted (0: the run opens its session).
    ``claims_handle``: the caller chose the agent id, it must be free. ``events`` is filled on
    the queue only.
    """

    run: str
    session: str
    tenant: str
    agent_id: str
    gateway: str
    not_after_ns: int
    events: list[Raw] = []
    user_id: str = ""
    reader: str = "cancel"
    opens_session: bool = True
    session_after: int = 0
    claims_handle: bool = False
    max_queue_wait_ns: int = 0


class Start(NamedTuple):
    """A start and the events that its first commit begins with (``RunStarted`` first)."""

    item: StartItem
    opening: list[Event]


def opening_of(
    started: RunStarted, payload: tuple[Segment, ...], system_prompt: str
) -> list[Event]:
    """The events that a run's first commit begins with: who and what, the input, the prompt."""
    opening: list[Event] = [started, UserInput(payload=payload)]
    if system_prompt:
        opening.append(SystemPrompt(payload=SystemPromptBody(system_prompt=system_prompt)))
    return opening


class _Sealed(Struct, frozen=True, tag_field="kind", tag="sealed"):
    run: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StartItem).decode
_decode_sealed = msgspec.json.Decoder(_Sealed).decode
_SEALED = b'{"kind":"sealed"'
_opening = msgspec.json.Decoder(RunStarted | UserInput | SystemPrompt).decode


async def pack(start: Start, seals: Seals) -> tuple[bytes, bool]:
    """Bytes for the queue, and whether a seal holds the start: it does when it is large.

    (Nothing of it is masked yet.) The seal goes with the run's others.
    """
    item, opening = start
    events = [Raw(_encode(event)) for event in opening]
    large = sum(len(bytes(event)) for event in events) > INLINE_LIMIT
    if large:
        facts = opening[0]
        assert isinstance(facts, RunStarted)
        events[0] = Raw(_encode(replace(facts, sealed=(*facts.sealed, START))))
    data = _encode(replace(item, events=events))
    if not large:
        return data, False
    await seals.put(item.run, START, data)
    return _encode(_Sealed(item.run)), True


async def unpack(data: bytes, seals: Seals) -> Start:
    """Inverse of :func:`pack`. Raises KeyError when the seal is gone: the start was taken back."""
    if data.startswith(_SEALED):
        run_id = _decode_sealed(data).run
        sealed = await seals.get(run_id, START)
        if sealed is None:
            raise KeyError(f"start of {run_id}")
        data = sealed
    item = _decode(data)
    return Start(item, [_opening(raw) for raw in item.events])
