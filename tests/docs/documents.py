"""Puts generated blocks between the markers of the documents, and finds what documents name.

A block stands between ``<!-- generated: name -->`` and ``<!-- end -->``; all else is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import BLOCKS
from tests.docs.layers import ROOT

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"```.*?```", re.S)
_PATH = re.compile(r"`(?P<path>(?:[\w.-]+/)+[\w.-]*)`")


def documents() -> list[Path]:
    """Every Markdown file of the documentation, the front page included."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    front = ROOT / "README.md"
    return [*pages, front] if front.exists() else pages


def generated(text: str) -> str:
    """``text`` with the blocks that the code gives today. Raises KeyError for unknown names."""
    return _BLOCK.sub(lambda m: m.group(1) + BLOCKS[m["name"]]() + "\n" + m.group(3), text)


def rewrite() -> list[str]:
    """Bring all documents up to date; the names of those that changed."""
    changed = []
    for path in documents():
        old = path.read_text()
        new = generated(old)
        if new != old:
            path.write_text(new)
            changed.append(str(path.relative_to(ROOT)))
    return changed


def blocks_in(text: str) -> set[str]:
    """Names of the blocks that ``text`` has a place for."""
    return {match["name"] for match in _BLOCK.finditer(text)}


def dead_links(path: Path) -> list[str]:
    """Relative links of a document that lead nowhere, headings included."""
    return [link for link in _links(path) if not _resolves(path, link)]


def _links(path: Path) -> Iterator[str]:
    text = _FENCE.sub("", path.read_text())
    for match in _LINK.finditer(text):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["target"]


def _resolves(path: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return False
    return not heading or heading in _headings(target)


def _headings(path: Path) -> set[str]:
    """Anchors as GitHub makes them: lower case, words joined by dashes."""
    text = _FENCE.sub("", path.read_text())
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def missing_files(text: str) -> list[str]:
    """Paths in backquotes (they contain a slash) that the repository does not have."""
    paths = {match["path"] for match in _PATH.finditer(_FENCE.sub("", text))}
    return sorted(path for path in paths if not (ROOT / path).exists())
