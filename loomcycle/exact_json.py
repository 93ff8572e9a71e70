"""JSON trees whose numbers keep their spelling: 1.0, 1e400 and 12345678901234567890 survive.

For code that changes the strings of somebody else's document. It must not interpret numbers.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw


def parse_exactly(text: str, overwritten: list[Any]) -> Any:
    """Parse JSON text; numbers become ``Raw``. Raises ``ValueError`` and ``RecursionError``.

    The values of an object that repeats a key are added to ``overwritten``.
    """

    def keep_spelling(number: str) -> Raw:
        return Raw(number.encode())

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def join(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        joined = dict(pairs)
        if len(joined) < len(pairs):
            overwritten.extend(value for _, value in pairs)
        return joined

    return json.loads(
        text,
        parse_int=keep_spelling,
        parse_float=keep_spelling,
        parse_constant=refuse,
        object_pairs_hook=join,
    )


_encoder = msgspec.json.Encoder(order="deterministic")


def encode_tree(tree: Any) -> bytes:
    """Write sorted keys and no white space; a lone surrogate becomes ``?``."""
    try:
        return _encoder.encode(tree)
    except UnicodeEncodeError:
        return _encoder.encode(_without_lone_surrogates(tree))


def _without_lone_surrogates(node: Any) -> Any:
    if isinstance(node, str):
        return node.encode("utf-8", "replace").decode()
    if isinstance(node, dict):
        return {
            _without_lone_surrogates(key): _without_lone_surrogates(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_without_lone_surrogates(item) for item in node]
    return node
