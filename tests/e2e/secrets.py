"""Where a plaintext must never be found: frames, files, messages of streams, log lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from events.log import EventStore
from events.streams import STREAMS

LONGEST_FRAGMENT = 6
"""So many first characters of a secret are a leak, too."""


def spellings(secret: str) -> set[str]:
    """A secret as it may stand in text and inside JSON strings."""
    return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}


def fragments(secrets: Iterable[str]) -> list[bytes]:
    """Beginnings of all spellings: a search for these finds prefixes and whole values."""
    return [
        spelling[:LONGEST_FRAGMENT].encode() for secret in secrets for spelling in spellings(secret)
    ]


def assert_absent(secrets: Iterable[str], text: str | bytes, where: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    for fragment in fragments(secrets):
        at = data.find(fragment)
        assert at < 0, f"{where}: {data[max(0, at - 80) : at + 80]!r}"


def assert_not_on_disk(secrets: Iterable[str], directory: Path) -> int:
    """Search every file below ``directory``; returns how many there are."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    for file in files:
        assert_absent(secrets, file.read_bytes(), str(file))
    return len(files)


async def assert_not_in_streams(secrets: Iterable[str], store: EventStore) -> int:
    """Search every message of every stream as a reader gets it (blobs are stored compressed)."""
    names = [spec.name for spec in STREAMS if spec.storage == "file" and spec.direct]
    ends = await store.log.ends(names)
    searched = 0
    for spec in STREAMS:
        if spec.name not in names or ends[spec.name] < max(1, spec.first_seq):
            continue
        async for batch in store.log.tail(spec.name):
            for message in batch:
                assert_absent(secrets, message.data, f"{spec.name} {message.subject}")
                searched += 1
            if batch[-1].seq >= ends[spec.name]:
                break
    return searched


async def assert_no_seals(store: EventStore, run: str) -> None:
    assert await store.log.last(store.subjects.seals(run)) is None
