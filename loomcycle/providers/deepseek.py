"""DeepSeek: OpenAI's wire format with its own endpoint and rules (providers.md section 6.3)."""

from __future__ import annotations

from loomcycle.providers.base import Capabilities
from loomcycle.providers.openai import Dialect

DEEPSEEK = Dialect(
    id="deepseek",
    capabilities=Capabilities(
        context_window=128_000, thinking=True, effort=True, parallel_tools=True
    ),
    max_tokens_key=lambda _model: "max_tokens",
)

CHAT_MODEL = "deepseek-chat"
_THINKING = ("-pro", "reasoner", "-r1", "-v4")


def is_thinking_class(model: str) -> bool:
    """Whether the model refuses a history whose assistant turns lack their reasoning."""
    name = model.lower()
    return any(mark in name for mark in _THINKING)


def downgrade(model: str) -> str | None:
    """The sibling that takes a history without reasoning; None when ``model`` itself does.

    The caller drops ``effort`` with the model.
    """
    return CHAT_MODEL if is_thinking_class(model) else None
