"""Help topics: bundled Markdown files, overlaid by those of ``LOOMCYCLE_HELP_ROOT``.

A topic is a file ``<name>.md`` with frontmatter ``name`` and ``description`` and a body. What is
not one is skipped: the operator's directory may hold other things.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from msgspec import Struct

from loomcycle.config import frontmatter
from loomcycle.config.tree import Node, Scalar, TreeError

_SUFFIX = ".md"


class Topic(Struct, frozen=True):
    name: str
    description: str
    content: str
    source: Literal["bundled", "filesystem"]


def read_topics(root: Path | None = None) -> dict[str, Topic]:
    """All topics by name; those of ``root`` win. Raises OSError when ``root`` is not readable."""
    topics: dict[str, Topic] = {}
    for file in (files("loomcycle.help") / "topics").iterdir():
        topic = _topic(file.name, file.read_bytes(), "bundled")
        if topic is not None:
            topics[topic.name] = topic
    if root is not None:
        for path in root.iterdir():
            if path.is_symlink() or not path.is_file():
                continue
            topic = _topic(path.name, path.read_bytes(), "filesystem")
            if topic is not None:
                topics[topic.name] = topic
    return topics


def _topic(file: str, data: bytes, source: Literal["bundled", "filesystem"]) -> Topic | None:
    """The topic that ``file`` holds; None when it holds none."""
    stem = file.removesuffix(_SUFFIX)
    if stem == file:
        return None
    try:
        document = frontmatter.split(data.decode(), Path(file))
    except (TreeError, UnicodeDecodeError):
        return None
    fields = document.metadata.fields()
    name, description = _text(fields.get("name")), _text(fields.get("description"))
    content = document.body.strip("\n")
    if not stem or name != stem or not description or not content.strip():
        return None
    return Topic(name, description, content, source)


def _text(node: Node | None) -> str:
    return node.value.text.strip() if node is not None and isinstance(node.value, Scalar) else ""
