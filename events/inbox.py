"""What others may say to a run: messages on its inbox, durable before anybody acts on them."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class CancelMessage(Struct, frozen=True, tag_field="type", tag="cancel"):
    """End the run. ``id`` is the message's own id, named by the journal when it is taken."""

    id: str
    reason: str
    by: str = ""


InboxMessage = CancelMessage

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InboxMessage).decode


def decode(data: bytes) -> InboxMessage:
    """Raises ``msgspec.DecodeError`` for what no version of this system wrote."""
    return _decode(data)
