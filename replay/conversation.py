"""The conversation with a model, as data: messages, blocks and the request derived from them.

Nothing here knows a vendor's wire format (``loomcycle/providers``) or how state is folded
(``replay/fold.py``).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from events.plan import Sampling, SystemBlock, ToolSpec


class Text(Struct, frozen=True, omit_defaults=True, tag="text", gc=False):
    text: str
    cacheable: bool = False


class ToolUse(Struct, frozen=True, tag="tool_use", gc=False):
    """A call the model asked for. ``input`` is the JSON value, byte for byte."""

    id: str
    name: str
    input: Raw


class ToolResult(Struct, frozen=True, omit_defaults=True, tag="tool_result", gc=False):
    tool_use_id: str
    name: str
    text: str = ""
    is_error: bool = False


Block = Text | ToolUse | ToolResult


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One turn of one side. ``reasoning`` is opaque provider text of an assistant turn.

    A ``summary`` stands for messages before it: the pinned task if there is one, the summary.
    """

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]
    reasoning: str = ""
    summary: bool = False


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One provider call, derived from state only (specification: providers.md section 1).

    ``max_tokens`` 0 means the provider's default; ``effort`` is "", low, medium or high.
    ``messages`` may be long: drivers must not copy or mutate it.
    """

    provider: str
    model: str
    system: tuple[SystemBlock, ...] = ()
    messages: tuple[Message, ...] | list[Message] = ()
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 0
    effort: str = ""
    sampling: Sampling = Sampling()
