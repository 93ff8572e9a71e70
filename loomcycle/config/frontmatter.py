"""Markdown files with YAML frontmatter: where the metadata ends and the body begins."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from loomcycle.config.problems import Place
from loomcycle.config.tree import Node, TreeError, parse

_FENCE = "---\n"


class Document(Struct, frozen=True):
    """Metadata (an empty mapping when there is none) and the body, verbatim."""

    metadata: Node
    body: str


def split(text: str, file: Path) -> Document:
    """Split a document; raises TreeError when frontmatter is open, malformed or not a mapping.

    Line breaks become `\\n`. Text that does not start with a `---` line is all body.
    """
    text = text.replace("\r\n", "\n")
    empty = Node({}, Place(file, 1))
    if not text.startswith(_FENCE):
        return Document(empty, text)
    content = text[len(_FENCE) :]
    if content.startswith(_FENCE) or content == "---":
        return Document(empty, content[len(_FENCE) :])
    head, fence, body = content.partition("\n---\n")
    if not fence:
        if not content.endswith("\n---"):
            raise TreeError("frontmatter has no closing --- line", 1)
        head, body = content[: -len("\n---")], ""
    node = parse(head, file, first_line=2)
    if node is None:
        return Document(empty, body)
    if not isinstance(node.value, dict):
        raise TreeError("frontmatter must be a mapping", 2)
    return Document(node, body)
