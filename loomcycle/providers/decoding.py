"""Reads the JSON that vendors send: whatever cannot be read is one error.

There are three kinds of it: malformed or of another shape, not UTF-8, nested too deep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Unreadable(Exception):
    """Not JSON of the expected shape; the text says why."""


def read(decode: Callable[[bytes], T], data: bytes) -> T:
    """``decode(data)``, a msgspec decoder's. Raises :class:`Unreadable`."""
    try:
        data.decode()  # decoders pass over what nobody asked for, and over Raw values
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise Unreadable(str(cause)) from None


def frame(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """A frame of a stream; None for one that cannot be read (providers.md sections 6.1, 6.2)."""
    try:
        return read(decode, data)
    except Unreadable:
        return None
