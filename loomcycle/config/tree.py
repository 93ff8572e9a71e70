"""YAML text as a tree of nodes that remember their file and line, and the layer merge.

Knows nothing of the schema. Scalars keep their text, so that a field of type string gets
`8080`, `1.10` or `no` exactly as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from loomcycle.config.problems import FieldPath, Place

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(Struct, frozen=True):
    """A leaf: its typed value, and the text it was written as."""

    value: str | int | float | bool | None
    text: str


class Node(Struct, frozen=True):
    """A value and where it was set."""

    value: Scalar | dict[str, Node] | list[Node]
    place: Place

    def plain(self) -> Any:
        """The value as ordinary Python data."""
        match self.value:
            case dict(fields):
                return {key: node.plain() for key, node in fields.items()}
            case list(items):
                return [node.plain() for node in items]
            case Scalar(value):
                return value

    def fields(self) -> dict[str, Node]:
        """The entries of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def is_null(self) -> bool:
        return isinstance(self.value, Scalar) and self.value.value is None


class TreeError(ValueError):
    """Text that is not one YAML document; the line is that of the fault, 0 if unknown."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def scalar_node(value: str | int | float | bool | None, place: Place) -> Node:
    """A leaf that was not written in YAML, such as a Markdown body."""
    return Node(Scalar(value, "" if value is None else str(value)), place)


def parse(text: str, file: Path, *, first_line: int = 1) -> Node | None:
    """Parse one document; None when it is empty. Raises TreeError without quoting content."""
    try:
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            node = _convert(loader, root, file, first_line, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + first_line if mark else 0
        raise TreeError(error.problem or error.context or "malformed YAML", line) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, TreeError):
            raise
        raise TreeError("malformed YAML", 0) from None
    return None if node.is_null else node


def _convert(
    loader: Any, node: yaml.Node, file: Path, first_line: int, above: tuple[yaml.Node, ...]
) -> Node:
    line = node.start_mark.line + first_line
    if any(node is ancestor for ancestor in above):
        raise TreeError("an alias refers to a node that contains it", line)
    below = (*above, node)
    place = Place(file, line)
    match node:
        case yaml.MappingNode():
            loader.flatten_mapping(node)
            merged = {id(value) for _, value in node.value}
            fields: dict[str, Node] = {}
            written = _written_keys(node)
            for key_node, value_node in node.value:
                key = _key_text(key_node, first_line)
                if key in fields and key in written:
                    if written[key] > 1:
                        raise TreeError(f'key "{key}" appears twice', line)
                    del merged
                    merged = set()
                fields[key] = _convert(loader, value_node, file, first_line, below)
            return Node(fields, place)
        case yaml.SequenceNode():
            items = [_convert(loader, item, file, first_line, below) for item in node.value]
            return Node(items, place)
        case _:
            value = loader.construct_object(node)
            if not isinstance(value, str | int | float | bool | None):
                value = str(node.value)
            return Node(Scalar(value, str(node.value)), place)
