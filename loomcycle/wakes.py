"""The payload of wake items: what a worker needs besides the run's id in the subject."""

from __future__ import annotations

import msgspec
from msgspec import Struct

PARK_TIMER = "park"
"""Kind of the timers that wake parked runs; their data is a wake's."""


class Wake(Struct, frozen=True, omit_defaults=True):
    """``released_by``: the process that let the run go, though it may be alive still.

    ``seen``: number and stream sequence of the last commit that the waker knows of.
    ``check``: the run may have missed something (a child's end): look, whatever its inbox says.
    """

    tenant: str
    released_by: str = ""
    seen: tuple[int, int] = (0, 0)
    check: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wake).decode


def wake_data(
    tenant: str, released_by: str = "", seen: tuple[int, int] = (0, 0), *, check: bool = False
) -> bytes:
    return _encode(Wake(tenant, released_by, seen, check))


def read_wake(data: bytes) -> Wake:
    return _decode(data)
