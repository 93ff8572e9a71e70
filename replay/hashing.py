"""The canonical hash of a model request, rolling over the conversation (kernel.md section 1).

``h_k = H(h_{k-1} || message_k)`` and the request's hash is ``H(parameters || h_k)``, so a turn
costs the same however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from replay.conversation import Message, ModelRequest

_canonical = msgspec.json.Encoder(order="deterministic").encode


class RollingHash:
    """Hash of the first ``count`` messages of a conversation that only grows."""

    __slots__ = ("count", "digest")

    def __init__(self) -> None:
        self.count = 0
        self.digest = b""

    def over(self, messages: Sequence[Message]) -> bytes:
        """Advance to the end of ``messages`` and return the digest (32 bytes)."""
        for index in range(self.count, len(messages)):
            self.digest = sha256(self.digest + _canonical(messages[index])).digest()
        self.count = len(messages)
        return self.digest


def request_hash(request: ModelRequest, conversation: bytes) -> str:
    """Hex SHA-256 over the request's parameters, tools, system and conversation digest."""
    parameters = (
        request.provider,
        request.model,
        request.max_tokens,
        request.effort,
        request.sampling,
        request.system,
        request.tools,
    )
    return sha256(_canonical(parameters) + conversation).hexdigest()
