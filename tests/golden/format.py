"""The file of a golden journal: JSON lines, written once by a release and never changed again.

Commits stand in it byte for byte (a stored commit is text). Plans and blobs go with the journals
that name them, so that a file alone is enough to fold, prove and show its runs.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.golden.facts import Facts

DIRECTORY = Path(__file__).parent


class Shape(Struct, frozen=True, tag="shape"):
    """First line: what the file shows, and the release that wrote it."""

    name: str
    why: str
    release: str


class Blob(Struct, frozen=True, tag="blob"):
    """A plan or a body kept out of its commit. ``packed``: zlib, then base64."""

    name: str
    packed: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Blob:
        return cls(name, base64.b64encode(zlib.compress(content, 9)).decode())

    @property
    def content(self) -> bytes:
        return zlib.decompress(base64.b64decode(self.packed))


class StoredCommit(Struct, frozen=True, tag="commit"):
    """``seq``: the stream sequence at which it was stored."""

    run: str
    tenant: str
    seq: int
    data: str


class Expected(Struct, frozen=True, tag="expected"):
    """What the release that wrote the journal made of it."""

    run: str
    facts: Facts


Line = Shape | Blob | StoredCommit | Expected


class Golden(Struct, frozen=True, kw_only=True):
    """A file's content; the run that it is named after comes last in ``commits``."""

    shape: Shape
    blobs: dict[str, bytes]
    commits: list[StoredCommit]
    expected: Expected

    def journal(self, run: str) -> list[StoredCommit]:
        return [commit for commit in self.commits if commit.run == run]


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Line).decode


def write(path: Path, golden: Golden) -> None:
    lines: list[Line] = [golden.shape]
    lines += [Blob.of(name, content) for name, content in golden.blobs.items()]
    lines += golden.commits
    lines.append(golden.expected)
    path.write_bytes(b"".join(_encode(line) + b"\n" for line in lines))


def read(path: Path) -> Golden:
    """Raises ValueError for a file without its first or last line."""
    shape: Shape | None = None
    expected: Expected | None = None
    blobs: dict[str, bytes] = {}
    commits: list[StoredCommit] = []
    for line in path.read_bytes().splitlines():
        match _decode(line):
            case Shape() as shape:
                pass
            case Blob() as blob:
                blobs[blob.name] = blob.content
            case StoredCommit() as commit:
                commits.append(commit)
            case Expected() as expected:
                pass
    if shape is None or expected is None:
        raise ValueError(f"{path} is not a golden journal")
    return Golden(shape=shape, blobs=blobs, commits=commits, expected=expected)


def files() -> Iterator[Path]:
    """Golden journals of every release."""
    yield from sorted(DIRECTORY.glob("*/*.jsonl"))
