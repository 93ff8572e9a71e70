"""Grep: lines of a volume's files that match an RE2 pattern. Specification: tools.md section 3.4.

A file is read in blocks of whole lines and one search over the block decides whether its lines
are looked at one by one. Reading and searching run outside the event loop.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, NamedTuple, cast

import msgspec
import re2
from msgspec import Struct, field

from events.plan import VolumeBinding
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.files import InvalidCall, open_regular, printable, run_file_tool
from loomcycle.tools.glob import NO_MATCHES, compile_segment
from loomcycle.tools.policy import side_effect_class
from loomcycle.volumes import Found, Located, VolumeError, choose, locate, walk

MAX_OUTPUT_BYTES = 262144
MAX_LINE_BYTES = 1048576
MAX_BEFORE_BYTES = 4194304
BINARY_PROBE_BYTES = 8192
DEFAULT_HEAD_LIMIT = 100

OutputMode = Literal["files_with_matches", "count", "content"]
OUTPUT_MODES = ("files_with_matches", "count", "content")

Checkpoint = Callable[[], None]


class GrepInput(Struct):
    pattern: str | None = None
    path: str | None = None
    volume: str | None = None
    glob: str | None = None
    output_mode: str | None = None
    case_insensitive: bool | None = None
    multiline: bool | None = None
    head_limit: int | None = None
    after: int | None = field(default=None, name="-A")
    before: int | None = field(default=None, name="-B")
    context: int | None = field(default=None, name="-C")


class Query(NamedTuple):
    """A checked request. ``block`` finds a superset of ``line`` in many lines, or is None."""

    line: Callable[[bytes], object]
    block: Callable[[bytes], object] | None
    mode: OutputMode
    file_filter: re.Pattern[str] | None
    head_limit: int
    before: int
    after: int


class _Unsuitable(Exception):
    """The file is binary or has a line that is too long; it is passed over."""


_decoder = msgspec.json.Decoder(GrepInput)


class Grep:
    """Matches line by line; a link is followed only to a file inside the same volume."""

    name = "Grep"
    description = (
        "Search files for lines that match an RE2 regular expression. output_mode: "
        "files_with_matches (default), count, or content (path:line:text). Binary files are "
        "passed over; hidden files are searched. A pattern cannot span lines."
    )
    input_schema = (
        b'{"type":"object","properties":{'
        b'"pattern":{"type":"string","description":"RE2 regular expression."},'
        b'"path":{"type":"string","description":"File or directory to search; the volume\'s root '
        b'when omitted. Printed paths are relative to it."},'
        b'"volume":{"type":"string","description":"Volume to search; may be omitted when there '
        b'is a default or only one."},'
        b'"glob":{"type":"string","description":"Only files whose name matches, e.g. *.py"},'
        b'"output_mode":{"type":"string","enum":["files_with_matches","count","content"]},'
        b'"case_insensitive":{"type":"boolean"},'
        b'"multiline":{"type":"boolean"},'
        b'"head_limit":{"type":"integer","description":"Most files, or matches in content mode; '
        b'100 when omitted."},'
        b'"-A":{"type":"integer","description":"Lines shown after a match."},'
        b'"-B":{"type":"integer","description":"Lines shown before a match."},'
        b'"-C":{"type":"integer","description":"Lines shown before and after a match."}},'
        b'"required":["pattern"],"additionalProperties":false}'
    )
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Grep")

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        def work(request: GrepInput, checkpoint: Checkpoint) -> str:
            query = _query(request)
            binding = choose(context.plan.volumes, request.volume or "")
            top = locate(binding, request.path or ".")
            return _search(query, binding, top, checkpoint)

        return await run_file_tool(_decoder, input_json, work)


def _query(request: GrepInput) -> Query:
    if not request.pattern:
        raise InvalidCall("pattern is required")
    mode = request.output_mode or "files_with_matches"
    if mode not in OUTPUT_MODES:
        raise InvalidCall(f'unknown output_mode "{mode}" (must be one of: {_listed()})')
    flags = ("i" if request.case_insensitive else "") + ("sm" if request.multiline else "")
    pattern = f"(?{flags}){request.pattern}" if flags else request.pattern
    around = max(request.context or 0, 0)
    limit = request.head_limit or 0
    # \A, \z and a switched-off m mean the whole text: in a block that is not the line.
    lines_only = re.search(r"\\[Az]|\(\?[a-zA-Z]*-", request.pattern) is not None
    return Query(
        line=_compile(pattern),
        block=None if lines_only else _compile(f"(?m){pattern}"),
        mode=cast(OutputMode, mode),
        file_filter=compile_segment(request.glob) if request.glob else None,
        head_limit=limit if limit > 0 else DEFAULT_HEAD_LIMIT,
        before=around or max(request.before or 0, 0),
        after=around or max(request.after or 0, 0),
    )


def _listed() -> str:
    return ", ".join(OUTPUT_MODES)


def _compile(pattern: str) -> Callable[[bytes], object]:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern.encode(), options)
        return cast(Callable[[bytes], object], compiled.search)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidCall(f"invalid regex: {text}") from None


def _search(query: Query, binding: VolumeBinding, top: Located, checkpoint: Checkpoint) -> str:
    output = _Output()
    left = query.head_limit
    for path, place in _files(query, binding, top, checkpoint):
        checkpoint()
        try:
            with open_regular(place) as file:
                matches = _FileMatches(query, printable(path), left)
                for block in _blocks(file, checkpoint):
                    matches.look_at(block)
        except (OSError, _Unsuitable):
            continue
        if matches.count == 0:
            continue
        for line in matches.output():
            output.add(line)
        output.truncated |= matches.more_than(left)
        if output.truncated:
            break
        left -= matches.count if query.mode == "content" else 1
    return output.text(query.head_limit)


def _files(
    query: Query, binding: VolumeBinding, top: Located, checkpoint: Checkpoint
) -> Iterator[tuple[str, Located]]:
    """(printed path, place) of every candidate, in ascending order of the paths."""

    def wanted(path: str) -> bool:
        name = path.rpartition("/")[2]
        return query.file_filter is None or bool(query.file_filter.fullmatch(name))

    if not os.path.isdir(top.path):
        if wanted(top.path):
            yield ".", top
        return
    for found in walk(top, enter=lambda _: True, accept=wanted, checkpoint=checkpoint):
        place = _place(binding, top, found)
        if place is not None:
            yield found.path, place


def _place(binding: VolumeBinding, top: Located, found: Found) -> Located | None:
    place = Located(top.root, top.parts + tuple(found.path.split("/")))
    if not found.is_link:
        return place
    try:
        return locate(binding, place.path)
    except (OSError, VolumeError):
        return None


def _blocks(file: BinaryIO, checkpoint: Checkpoint) -> Iterator[bytes]:
    """Whole lines as valid UTF-8 with ``\\n`` ends; raises :class:`_Unsuitable`."""
    chunk = file.read(MAX_LINE_BYTES)
    if b"\0" in chunk[:BINARY_PROBE_BYTES]:
        raise _Unsuitable
    rest = b""
    while chunk:
        checkpoint()
        data = rest + chunk
        if data.find(b"\n") > MAX_LINE_BYTES:
            raise _Unsuitable
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        if len(rest) > MAX_LINE_BYTES:
            raise _Unsuitable
        if cut:
            yield _normalised(data[:cut])
        chunk = file.read(MAX_LINE_BYTES)
    if rest:
        yield _normalised(rest.removesuffix(b"\r") or b"\n")


def _normalised(block: bytes) -> bytes:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if block.isascii():
        return block
    return block.decode("utf-8", "replace").encode()


class _FileMatches:
    """What one file contributes: its number of matching lines and, in content mode, its text.

    There is one group of printed lines per match. Groups that cannot be shown any more, because
    those before them fill the output, are dropped.
    """

    def __init__(self, query: Query, path: str, left: int) -> None:
        self.count = 0
        self._query = query
        self._path = path
        self._left = left
        self._number = 0
        self._before = _Before(query.before)
        self._groups: list[list[str]] = []
        self._sizes: list[int] = []
        self._size = 0
        self._full = False
        self._open: deque[tuple[int, int]] = deque()

    def look_at(self, block: bytes) -> None:
        """Take the next lines of the file."""
        query = self._query
        if query.block is not None and not self._open and query.block(block) is None:
            self._pass_over(block)
            return
        for line in _lines(block):
            self._number += 1
            matches = query.line(line) is not None
            self.count += matches
            if query.mode == "content":
                self._collect(line, matches)

    def output(self) -> list[str]:
        """The lines to print, as far as the head limit allows."""
        match self._query.mode:
            case "content":
                return [line for group in self._groups for line in group]
            case _ if self._left == 0:
                return []
            case "count":
                return [f"{self._path}:{self.count}"]
            case "files_with_matches":
                return [self._path]

    def more_than(self, left: int) -> bool:
        """Whether something had to be left out: by the head limit, or because it cannot fit."""
        found = self.count if self._query.mode == "content" else 1
        return found > left or self._full

    def _pass_over(self, block: bytes) -> None:
        number = block.count(b"\n") + (not block.endswith(b"\n"))
        if self._query.before:
            kept = _lines(block)[-self._query.before :]
            for n, line in enumerate(kept, self._number + number - len(kept) + 1):
                self._before.append(n, line)
        self._number += number

    def _collect(self, line: bytes, matches: bool) -> None:
        number = self._number
        while self._open and self._open[0][1] < number:
            self._open.popleft()
        if self._open:
            context = self._printed(number, "-", line)
            for group, _ in self._open:
                self._groups[group].append(context)
                self._grow(group, len(context) + 1)
        if matches and not self._full and len(self._groups) < self._left:
            lines = [self._printed(n, "-", text) for n, text in self._before.lines]
            lines.append(self._printed(number, ":", line))
            self._groups.append(lines)
            self._sizes.append(0)
            self._grow(len(self._groups) - 1, sum(len(text) + 1 for text in lines))
            if self._query.after:
                self._open.append((len(self._groups) - 1, number + self._query.after))
        self._before.append(number, line)
        while self._sizes and self._size - self._sizes[-1] > MAX_OUTPUT_BYTES:
            self._drop_last_group()

    def _grow(self, group: int, size: int) -> None:
        self._sizes[group] += size
        self._size += size

    def _drop_last_group(self) -> None:
        self._full = True
        self._size -= self._sizes.pop()
        self._groups.pop()
        if self._open and self._open[-1][0] == len(self._groups):
            self._open.pop()

    def _printed(self, number: int, separator: str, line: bytes) -> str:
        return f"{self._path}{separator}{number}{separator}{line.decode()}"


class _Before:
    """The last lines seen, numbered; older ones go when they outgrow ``MAX_BEFORE_BYTES``."""

    def __init__(self, most: int) -> None:
        self.lines: deque[tuple[int, bytes]] = deque()
        self._most = most
        self._bytes = 0

    def append(self, number: int, line: bytes) -> None:
        if self._most == 0:
            return
        self.lines.append((number, line))
        self._bytes += len(line)
        while len(self.lines) > self._most or self._bytes > MAX_BEFORE_BYTES:
            self._bytes -= len(self.lines.popleft()[1])


def _lines(block: bytes) -> list[bytes]:
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


class _Output:
    """Printed lines up to the byte limit."""

    def __init__(self) -> None:
        self.truncated = False
        self._lines: list[str] = []
        self._room = MAX_OUTPUT_BYTES

    def add(self, line: str) -> None:
        if self._room == 0:
            self.truncated = True
            return
        data = f"{line}\n".encode()
        if len(data) > self._room:
            self.truncated = True
            data = data[: self._room]
        self._room -= len(data)
        self._lines.append(data.decode("utf-8", "ignore"))

    def text(self, head_limit: int) -> str:
        if not self._lines:
            return NO_MATCHES
        body = "".join(self._lines)
        if not self.truncated:
            return body
        return f"{body}\n[truncated at head_limit={head_limit} or max_bytes={MAX_OUTPUT_BYTES}]\n"
