"""Words that steer the whole runtime, on a subject of DEFS: whether it is paused.

The newest one holds, for every process and over restarts (kernel.md section 10). Nothing here
reads a clock or appends.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from events.subjects import Subjects

RuntimeState = Literal["running", "pausing", "paused"]


class PauseChanged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="runtime.pause"):
    """The runtime is in ``state`` from here on. Times are unix nanoseconds.

    ``id`` makes each word its own. ``until_ns``: by then a pausing runtime counts as paused,
    whatever became of the process that drains it.
    """

    id: str
    state: RuntimeState
    at_ns: int
    until_ns: int = 0
    by: str = ""


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PauseChanged).decode


def decode(data: bytes) -> PauseChanged:
    """Raises ``msgspec.DecodeError`` for what no version of this system wrote."""
    word: PauseChanged = _decode(data)
    return word


def pause_subject(subjects: Subjects) -> str:
    """Where the words about pausing stand, the same for all tenants."""
    return subjects.definition("", "runtime", "pause")
