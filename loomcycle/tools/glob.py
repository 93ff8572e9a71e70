"""Glob: files of a volume whose path matches a pattern. Specification: tools.md section 3.5.

:class:`GlobPattern` matches component by component, so that directories which cannot lead to a
match are never opened. :func:`compile_segment` also serves Grep's file filter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from events.plan import VolumeBinding
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.files import InvalidCall, run_file_tool
from loomcycle.tools.policy import side_effect_class
from loomcycle.volumes import Located, choose, locate, walk

MAX_RESULTS = 100
NO_MATCHES = "no matches\n"

States = frozenset[int]


def compile_segment(segment: str) -> re.Pattern[str]:
    """Compile one path component: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, ``\\`` escapes the next.

    Raises :class:`InvalidCall` when it is malformed. Matching takes linear time per ``*``: each
    literal stretch is taken at its first occurrence and never tried again.
    """
    stretches = [""]
    at = 0
    while at < len(segment):
        match segment[at]:
            case "*":
                stretches.append("")
                at += 1
            case "?":
                stretches[-1] += "."
                at += 1
            case "[":
                charset, at = _charset(segment, at + 1)
                stretches[-1] += charset
            case _:
                character, at = _character(segment, at)
                stretches[-1] += re.escape(character)
    first, *rest = stretches
    if not rest:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{stretch})" for stretch in rest[:-1] if stretch)
    return re.compile(f"{first}{middle}.*{rest[-1]}", re.DOTALL)


def _character(segment: str, at: int) -> tuple[str, int]:
    if segment[at] != "\\":
        return segment[at], at + 1
    if at + 1 == len(segment):
        raise _malformed(segment, "it ends in a backslash")
    return segment[at + 1], at + 2


def _charset(segment: str, at: int) -> tuple[str, int]:
    """Translate what follows ``[``; return it and the position behind ``]``."""
    negated = segment.startswith("^", at)
    at += negated
    ranges = ""
    empty = True
    while True:
        if at >= len(segment):
            raise _malformed(segment, "a [ is never closed")
        if segment[at] == "]" and not empty:
            break
        if segment[at] in "]-":
            raise _malformed(segment, f"a {segment[at]} inside [ ] needs a backslash")
        low, at = _character(segment, at)
        high = low
        if segment.startswith("-", at):
            if at + 1 >= len(segment) or segment[at + 1] in "]-":
                raise _malformed(segment, "a range inside [ ] has no end")
            high, at = _character(segment, at + 1)
        empty = False
        if low <= high:
            ranges += f"{re.escape(low)}-{re.escape(high)}"
    if not ranges:
        return ("." if negated else "(?!)"), at + 1
    return f"[{'^' if negated else ''}{ranges}]", at + 1


def _malformed(segment: str, why: str) -> InvalidCall:
    return InvalidCall(f'invalid glob pattern: in "{segment}" {why}')


class GlobPattern:
    """A pattern over whole paths, as states: the numbers of segments matched so far.

    A segment that is exactly ``**`` matches zero or more components.
    """

    def __init__(self, segments: Iterable[str]) -> None:
        self._segments = [
            None if segment == "**" else compile_segment(segment) for segment in segments
        ]
        self.start = self._closed({0})

    def step(self, states: States, name: str) -> States:
        """The states behind one more path component."""
        reached: set[int] = set()
        for state in states:
            if state == len(self._segments):
                continue
            segment = self._segments[state]
            if segment is None:
                reached.add(state)
            elif segment.fullmatch(name):
                reached.add(state + 1)
        return self._closed(reached)

    def accepts(self, states: States) -> bool:
        return len(self._segments) in states

    def leads_on(self, states: States) -> bool:
        """Whether anything below a directory in these states can match."""
        return any(state < len(self._segments) for state in states)

    def _closed(self, states: set[int]) -> States:
        closed: set[int] = set()
        for state in states:
            closed.add(state)
            while state < len(self._segments) and self._segments[state] is None:
                state += 1
                closed.add(state)
        return frozenset(closed)


class _Selection:
    """The pattern's answers during one walk, with the states of each directory entered."""

    def __init__(self, pattern: GlobPattern) -> None:
        self._pattern = pattern
        self._entered = {"": pattern.start}

    def enter(self, directory: str) -> bool:
        states = self._states(directory)
        leads_on = self._pattern.leads_on(states)
        if leads_on:
            self._entered[directory] = states
        return leads_on

    def accept(self, file: str) -> bool:
        return self._pattern.accepts(self._states(file))

    def _states(self, path: str) -> States:
        parent, _, name = path.rpartition("/")
        return self._pattern.step(self._entered[parent], name)


class GlobInput(Struct):
    pattern: str | None = None
    path: str | None = None
    volume: str | None = None


_decoder = msgspec.json.Decoder(GlobInput)


class Glob:
    """Lists files only; a symbolic link is listed by its name and never followed."""

    name = "Glob"
    description = (
        "List files whose path matches a pattern, newest first, at most 100. In one path "
        "component * matches anything, ? one character, [a-z] a set, [^a-z] its complement; "
        "a component ** matches any number of directories. Braces are not supported."
    )
    input_schema = (
        b'{"type":"object","properties":{'
        b'"pattern":{"type":"string","description":"For example src/**/*.py"},'
        b'"path":{"type":"string","description":"Directory to search; the volume\'s root when '
        b'omitted. Printed paths are relative to it."},'
        b'"volume":{"type":"string","description":"Volume to search; may be omitted when there '
        b'is a default or only one."}},'
        b'"required":["pattern"],"additionalProperties":false}'
    )
    repeat = Repeat.SAFE
    side_effect_class = side_effect_class("Glob")

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        def work(request: GlobInput, checkpoint: Callable[[], None]) -> str:
            if not request.pattern:
                raise InvalidCall("pattern is required")
            binding = choose(context.plan.volumes, request.volume or "")
            top = locate(binding, request.path or ".")
            if not os.path.isdir(top.path):
                raise InvalidCall(f"open {top.path}: not a directory")
            segments = _relative_segments(request, binding, top)
            if segments is None:
                GlobPattern(_segments(request.pattern))
                return NO_MATCHES
            return _listing(top, GlobPattern(segments), checkpoint)

        return await run_file_tool(_decoder, input_json, work)


def _segments(pattern: str) -> list[str]:
    *inner, last = pattern.split("/")
    return [segment for segment in inner if segment not in ("", ".")] + [last]


def _relative_segments(
    request: GlobInput, binding: VolumeBinding, top: Located
) -> list[str] | None:
    """The pattern's segments below ``top``, or None when an absolute one leads elsewhere."""
    pattern = request.pattern or ""
    segments = _segments(pattern)
    if not pattern.startswith("/"):
        return segments
    declared = os.path.abspath(os.path.join(binding.path, request.path or "."))
    for spelling in (top.path, declared):
        base = [part for part in spelling.split("/") if part]
        literal = [re.sub(r"\\(.)", r"\1", segment) for segment in segments[: len(base)]]
        if len(segments) > len(base) and base in (literal, segments[: len(base)]):
            return segments[len(base) :]
    return None


def _listing(top: Located, pattern: GlobPattern, checkpoint: Callable[[], None]) -> str:
    selection = _Selection(pattern)
    found = list(walk(top, enter=selection.enter, accept=selection.accept, checkpoint=checkpoint))
    if not found:
        return NO_MATCHES
    found.sort(key=lambda file: (-file.mtime_ns, file.path))
    listing = "".join(f"{file.path}\n" for file in found[:MAX_RESULTS])
    if len(found) > MAX_RESULTS:
        listing += f"\n[truncated at max_results={MAX_RESULTS}; {len(found)} total matches]\n"
    return listing
