"""The contract of one provider call (specification: providers.md sections 1 to 3)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Raw, Struct

from replay.conversation import ModelRequest


class Usage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Token counts of one call; ``model`` is what the vendor says it served."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    model: str = ""
    max_context_tokens: int = 0


class TextDelta(Struct, frozen=True):
    text: str


class ThinkingDelta(Struct, frozen=True):
    text: str


class ToolCallDelta(Struct, frozen=True):
    """A complete tool call. ``id`` is "" when the vendor gives none."""

    id: str
    name: str
    input: Raw


class RetryDelta(Struct, frozen=True):
    """A wait that the driver is about to make inside the call (HTTP 429)."""

    provider: str
    attempt: int
    wait_ms: int
    reason: str


class Done(Struct, frozen=True, kw_only=True):
    """The call's regular end. ``usage`` is None when the vendor reported none."""

    stop_reason: str = ""
    usage: Usage | None = None
    reasoning: str = ""


Delta = TextDelta | ThinkingDelta | ToolCallDelta | RetryDelta | Done


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a provider can do (specification: providers.md section 2)."""

    context_window: int = 0
    native_cache: bool = False
    thinking: bool = False
    effort: bool = False
    parallel_tools: bool = False
    streaming: bool = True


class ProviderError(Exception):
    """A call that failed. ``str(error)`` is the text users see (providers.md section 3).

    ``partial`` tells whether the failure came inside an open stream (the run's row then gets
    the prefix ``provider error: ``).
    """

    def __init__(self, text: str, *, partial: bool = False) -> None:
        super().__init__(text)
        self.partial = partial


class ProviderNotConfigured(Exception):
    """The provider id is known but its key or switch is missing; the text names the variable."""


class Provider(Protocol):
    """A model vendor.

    ``stream`` yields deltas and ends with exactly one :class:`Done`, or raises
    :class:`ProviderError`. Closing the generator aborts the HTTP exchange at once.
    ``models`` lists model names live, or raises :class:`ProviderError`.
    """

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]: ...

    async def models(self) -> list[str]: ...

    async def close(self) -> None: ...
