"""Prompt input as callers send it (specification: http-runs.md section 3.2)."""

from __future__ import annotations

from msgspec import Struct

UNTRUSTED_KINDS = frozenset(
    {
        "untrusted",
        "web_content",
        "uploaded_cv",
        "qa_question",
        "user_input",
        "tool_output",
        "search_result",
        "run_metadata",
    }
)


class ContentBlock(Struct, frozen=True, omit_defaults=True, gc=False):
    """``type`` is ``trusted-text`` or ``untrusted-block``; anything else counts as trusted."""

    type: str = ""
    text: str = ""
    cacheable: bool = False
    kind: str = ""


class Segment(Struct, frozen=True, gc=False):
    """``role`` is ``system`` or ``user``; segments of other roles are dropped by the fold."""

    role: str = ""
    content: tuple[ContentBlock, ...] = ()


def flatten(block: ContentBlock) -> str:
    """The text a model sees for ``block``: untrusted text is escaped and fenced by its kind."""
    if block.type != "untrusted-block":
        return block.text
    kind = block.kind if block.kind in UNTRUSTED_KINDS else "untrusted"
    return f"<{kind}>\n{block.text.replace('<', '&lt;')}\n</{kind}>"
