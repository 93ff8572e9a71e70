"""YAML text as a tree of nodes that remember their file and line, and the layer merge.

Knows nothing of the schema. Scalars keep their text, so that a field of type string gets
`8080`, `1.10` or `no` exactly as written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from loomcycle.config.problems import FieldPath, Place

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TYPED_TAGS = frozenset(_TAG + name for name in ("int", "float", "bool", "null"))
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value", "binary"))


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
            node = _Converter(loader, file, first_line).convert(root) if root else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + first_line if mark else 0
        raise TreeError(error.problem or error.context or "malformed YAML", line) from None
    except yaml.YAMLError:
        raise TreeError("malformed YAML", 0) from None
    except RecursionError:
        raise TreeError("nested too deeply", 0) from None
    return None if node is None or node.is_null else node


class _Converter:
    """Turns composed YAML nodes into Nodes, each shared (aliased) one once."""

    def __init__(self, loader: Any, file: Path, first_line: int) -> None:
        self._loader = loader
        self._file = file
        self._first_line = first_line
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def convert(self, node: yaml.Node) -> Node:
        if (known := self._done.get(id(node))) is not None:
            return known
        place = Place(self._file, self._line(node))
        if id(node) in self._open:
            raise TreeError("an alias refers to a node that contains it", place.line)
        self._open.add(id(node))
        match node:
            case yaml.MappingNode():
                converted = Node(self._mapping(node), place)
            case yaml.SequenceNode():
                converted = Node([self.convert(item) for item in node.value], place)
            case _:
                converted = Node(self._scalar(node), place)
        self._open.discard(id(node))
        self._done[id(node)] = converted
        return converted

    def _line(self, node: yaml.Node) -> int:
        return int(node.start_mark.line) + self._first_line

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        written: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise TreeError("a key must be a plain word", self._line(key))
            if key.value in written and key.tag != _TAG + "merge":
                raise TreeError(f'key "{key.value}" appears twice', self._line(key))
            written.add(key.value)
        self._loader.flatten_mapping(node)
        return {str(key.value): self.convert(value) for key, value in node.value}

    def _scalar(self, node: yaml.Node) -> Scalar:
        text = str(node.value)
        if node.tag in _TEXT_TAGS:
            return Scalar(text, text)
        if node.tag not in _TYPED_TAGS:
            raise TreeError(f"unknown tag {node.tag}", self._line(node))
        try:
            return Scalar(self._loader.construct_object(node), text)
        except ValueError:
            raise TreeError("malformed number", self._line(node)) from None


def merge(
    base: Node,
    over: Node,
    on_override: Callable[[FieldPath, Place], None] = lambda _path, _place: None,
) -> Node:
    """Lay `over` on `base`: mappings merge by key, anything else is replaced whole.

    `on_override` hears of each existing key that gets a different value, and who set it.
    """
    return _merge(base, over, (), on_override)


def _merge(
    base: Node, over: Node, path: FieldPath, on_override: Callable[[FieldPath, Place], None]
) -> Node:
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        if path and not same_value(base, over):
            on_override(path, over.place)
        return over
    fields = dict(base.value)
    for key, node in over.value.items():
        present = fields.get(key)
        fields[key] = _merge(present, node, (*path, key), on_override) if present else node
    return Node(fields, over.place)


def same_value(left: Node, right: Node) -> bool:
    """Whether two nodes hold the same data, wherever each was written; 1 is not true."""
    match left.value, right.value:
        case dict(ours), dict(theirs):
            return ours.keys() == theirs.keys() and all(
                same_value(node, theirs[key]) for key, node in ours.items()
            )
        case list(ours), list(theirs):
            return len(ours) == len(theirs) and all(
                same_value(a, b) for a, b in zip(ours, theirs, strict=True)
            )
        case Scalar() as ours, Scalar() as theirs:
            return type(ours.value) is type(theirs.value) and ours.value == theirs.value
        case _:
            return False


def find_place(root: Node, path: FieldPath) -> Place | None:
    """The place of the deepest node that exists along a path; None when nothing along it exists."""
    node = root
    for part in path:
        match node.value, part:
            case dict(fields), str(key) if key in fields:
                node = fields[key]
            case list(items), int(index) if index < len(items):
                node = items[index]
            case _:
                break
    return None if node is root else node.place
