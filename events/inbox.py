"""What others may say to a run: messages on its inbox, durable before anybody acts on them.

``id`` is each message's own id, named by the journal when the message is taken. Times are unix
nanoseconds.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class CancelMessage(Struct, frozen=True, tag_field="type", tag="cancel"):
    """End the run."""

    id: str
    reason: str
    by: str = ""


class InputMessage(Struct, frozen=True, tag_field="type", tag="input"):
    """A person says something: a user turn at the next boundary.

    ``sealed``: the text is masked, what was really said is sealed beside the run.
    """

    id: str
    text: str
    source: str = "api"
    at_ns: int = 0
    sealed: bool = False


class AnswerMessage(Struct, frozen=True, tag_field="type", tag="answer"):
    """The answer to a question; the first one in the inbox counts.

    ``sealed``: the answer is masked, what was really said is sealed beside the run.
    """

    id: str
    interrupt_id: str
    answer: str
    resolved_by: str = "api"
    at_ns: int = 0
    sealed: bool = False


class WithdrawMessage(Struct, frozen=True, tag_field="type", tag="withdraw"):
    """A question is taken back; whoever waits for its answer goes on without."""

    id: str
    interrupt_id: str
    resolved_by: str = "agent_cancel"
    at_ns: int = 0


class ChildMessage(Struct, frozen=True, tag_field="type", tag="child"):
    """A child has ended. ``n`` and ``index`` name the Agent call's entry it belongs to."""

    id: str
    run: str
    n: int
    index: int
    ok: bool
    text: str = ""
    error: str = ""


class CompactMessage(Struct, frozen=True, tag_field="type", tag="compact"):
    """Compact the conversation of a parked run."""

    id: str


InboxMessage = (
    CancelMessage | InputMessage | AnswerMessage | WithdrawMessage | ChildMessage | CompactMessage
)

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InboxMessage).decode


def decode(data: bytes) -> InboxMessage:
    """Raises ``msgspec.DecodeError`` for what no version of this system wrote."""
    message: InboxMessage = _decode(data)
    return message
