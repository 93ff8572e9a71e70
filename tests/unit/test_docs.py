"""The documents say what the code says, and name only what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import BLOCKS
from tests.docs.documents import (
    blocks_in,
    dead_links,
    documents,
    generated,
    missing_files,
)
from tests.docs.layers import ROOT, upward_imports

EVERY_DOCUMENT = pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)

ARCHITECTURE = ROOT / "docs" / "architecture.md"


@EVERY_DOCUMENT
def test_generated_blocks_are_up_to_date(path: Path) -> None:
    text = path.read_text()
    assert text == generated(text), "run `python -m tests.docs`"


@EVERY_DOCUMENT
def test_relative_links_lead_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_files_named_in_the_architecture_exist() -> None:
    assert missing_files(ARCHITECTURE.read_text()) == []


def test_every_block_has_its_place() -> None:
    assert set().union(*(blocks_in(path.read_text()) for path in documents())) == set(BLOCKS)


def test_a_stale_block_is_noticed() -> None:
    text = "before\n<!-- generated: effects -->\nold\n<!-- end -->\nafter\n"
    assert generated(text).splitlines()[2] != "old"
    assert generated(generated(text)) == generated(text)


def test_dead_links_and_missing_files_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](gone.md) [d](https://example.org)\n")
    assert dead_links(page) == ["#three", "gone.md"]
    assert missing_files("`events/commit.py` and `events/gone.py`") == ["events/gone.py"]


def test_packages_import_only_what_lies_below_them() -> None:
    assert upward_imports() == []
