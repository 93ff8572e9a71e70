"""Arguments of tool calls: what models send is untrusted text, what we keep is one JSON value.

Malformed text is kept as a JSON string, so that the tool refuses it and the model can correct
itself; vendors that insist on an object get such a value wrapped.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

EMPTY = Raw(b"{}")


def parse(text: str) -> Raw:
    """The JSON value in ``text``; ``{}`` when blank, a JSON string of the text when malformed."""
    text = text.strip()
    if not text:
        return EMPTY
    data = text.encode()
    return Raw(data) if is_json(data) else Raw(msgspec.json.encode(text))


def as_object(value: Raw) -> Raw:
    """``value`` if it is an object, else ``{"invalid_arguments": value}``."""
    if bytes(value).lstrip().startswith(b"{"):
        return value
    return Raw(msgspec.json.encode({"invalid_arguments": value}))


def is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
