"""What a client sees of a journal: the public frame of each event, and nothing of the rest.

The body of a public event is its frame, so most frames are the stored bytes. Rules that differ
between a live stream and a replayed one stand here and nowhere else (http-runs.md 4, 8, 11).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct

from events.commit import Record
from events.vocabulary import (
    Event,
    SystemPrompt,
    Unrecognised,
    UserInput,
    is_public,
    type_of,
)

_encode = msgspec.json.Encoder().encode

_BARE = {kind: f'{{"type":"{kind}"}}'.encode() for kind in ("user_input", "system_prompt")}
"""Transcript rows of these types keep their content in ``payload``."""


_NOT_LIVE = frozenset({"system_prompt", "spawn_child_started", "spawn_child_result"})
"""Public types that the stream of the request which started the run does not show."""


class Frame(NamedTuple):
    """``seq`` orders frames; ``data`` is one line of JSON."""

    seq: int
    event: str
    data: bytes


class _SteerInput(Struct, omit_defaults=True):
    text: str
    source: str
    seen_at: str = ""


class _Steer(Struct, tag_field="type", tag="steer"):
    user_input: _SteerInput


def steer_text(event: UserInput) -> str:
    """Texts of the user-role segments, joined by newlines; "" when there is none."""
    return "\n".join(
        block.text
        for segment in event.payload
        if segment.role == "user"
        for block in segment.content
        if block.text
    )


def replay_frame(record: Record) -> Frame | None:
    """The frame of ``record`` on a replayed stream; None for what clients do not see.

    Input appears as ``steer`` with source ``replay``; system prompts are skipped.
    """
    if not is_public(record.type):
        return None
    if record.type == "user_input":
        event = record.event
        text = steer_text(event) if isinstance(event, UserInput) else ""
        if not text:
            return None
        return Frame(record.seq, "steer", _encode(_Steer(_SteerInput(text, "replay"))))
    if record.type == "system_prompt":
        return None
    return Frame(record.seq, record.type, record.body)


def live_frame(record: Record) -> Frame | None:
    """The frame of ``record`` on the stream of the request that started the run.

    The opening input is not repeated; input that came through the inbox is a ``steer``.
    """
    kind = record.header.type
    if kind == "user_input":
        event = record.event
        if not isinstance(event, UserInput) or not event.inbox:
            return None
        seen = rfc3339(record.ts)
        body = _Steer(_SteerInput(steer_text(event), event.source or "api", seen))
        return Frame(record.seq, "steer", _encode(body))
    if kind in _NOT_LIVE or not is_public(kind):
        return None
    return Frame(record.seq, kind, record.body)


def row_texts(event: Event | Unrecognised, body: bytes) -> tuple[bytes, bytes | None]:
    """The texts ``event`` and ``payload`` of the transcript's row of a public event."""
    if isinstance(event, UserInput | SystemPrompt):
        return _BARE[type_of(event)], _encode(event.payload)
    return body, None


def rfc3339(ns: int) -> str:
    """UTC, up to nine fractional digits, trailing zeros trimmed (http-runs.md section 1.4)."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"
