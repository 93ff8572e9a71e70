"""Behaviour of tools.md section 3.5, and glob matching against a second definition of it."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.plan import RunPlan, VolumeBinding
from loomcycle.tools.base import CallContext, Tool, ToolOutput
from loomcycle.tools.files import InvalidCall
from loomcycle.tools.glob import Glob, GlobPattern, compile_segment


def context(root: Path) -> CallContext:
    plan = RunPlan(
        agent="a", provider="mock", model="m", volumes=(VolumeBinding("work", str(root)),)
    )
    return CallContext(
        run_id="r", session_id="s", agent_id="a", tenant="", user_id="", user_tier="",
        effect_id="r.1", plan=plan, started_ns=0, now_ns=0,
    )  # fmt: skip


async def glob(root: Path, **arguments: Any) -> ToolOutput:
    return await Glob().call(json.dumps(arguments).encode(), context(root))


def make(root: Path, *paths: str) -> None:
    """Files with the same time, so that their order is that of their paths."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        os.utime(file, ns=(1, 1))


TREE = ("top.py", ".hidden", "src/a.py", "src/b.txt", "src/sub/c.py", "src/sub/deep/d.py", "x[1]")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["top.py"]),
        ("*", [".hidden", "top.py", "x[1]"]),
        ("src/*", ["src/a.py", "src/b.txt"]),
        ("src/*.py", ["src/a.py"]),
        ("./src//*.py", ["src/a.py"]),
        ("**/*.py", ["src/a.py", "src/sub/c.py", "src/sub/deep/d.py", "top.py"]),
        ("src/**/*.py", ["src/a.py", "src/sub/c.py", "src/sub/deep/d.py"]),
        ("src/**/d.py", ["src/sub/deep/d.py"]),
        ("src/**/**/c.py", ["src/sub/c.py"]),
        ("src/sub/**", ["src/sub/c.py", "src/sub/deep/d.py"]),
        ("**/sub/*", ["src/sub/c.py"]),
        ("src/**.py", ["src/a.py"]),
        ("src/?.py", ["src/a.py"]),
        ("src/[ab].*", ["src/a.py", "src/b.txt"]),
        ("src/[^a].*", ["src/b.txt"]),
        (r"x\[1\]", ["x[1]"]),
        ("{top,src}.py", []),
        ("src", []),
        ("src/", []),
        ("../*", []),
        ("TOP.py", []),
    ],
)
async def test_patterns(tmp_path: Path, pattern: str, found: list[str]) -> None:
    make(tmp_path, *TREE)
    expected = "".join(f"{path}\n" for path in found) or "no matches\n"
    assert await glob(tmp_path, pattern=pattern) == ToolOutput(expected)


async def test_the_newest_come_first_and_ties_go_by_path(tmp_path: Path) -> None:
    make(tmp_path, "b", "a", "new", "old")
    os.utime(tmp_path / "new", ns=(5, 5))
    os.utime(tmp_path / "old", ns=(0, 0))
    assert (await glob(tmp_path, pattern="*")).text == "new\na\nb\nold\n"


async def test_paths_are_relative_to_the_searched_directory(tmp_path: Path) -> None:
    make(tmp_path, *TREE)
    assert (await glob(tmp_path, pattern="**/*.py", path="src/sub")).text == "c.py\ndeep/d.py\n"


async def test_an_absolute_pattern_inside_is_made_relative(tmp_path: Path) -> None:
    root = tmp_path / "ro[ot"
    make(root, *TREE)
    (tmp_path / "alias").symlink_to(root)
    assert (await glob(root, pattern=f"{root}/src/*.py")).text == "src/a.py\n"
    escaped = str(root).replace("[", r"\[")
    assert (await glob(root, pattern=f"{escaped}/src/*.py")).text == "src/a.py\n"
    through_alias = await glob(tmp_path / "alias", pattern=f"{tmp_path}/alias/src/*.py")
    assert through_alias.text == "src/a.py\n"
    below = await glob(root, pattern=f"{escaped}/src/*.py", path="src")
    assert below.text == "a.py\n"


async def test_an_absolute_pattern_outside_matches_nothing(tmp_path: Path) -> None:
    make(tmp_path, "work/a", "other/b")
    for pattern in (f"{tmp_path}/other/*", "/etc/*", f"{tmp_path}/work2/*", "/"):
        assert await glob(tmp_path / "work", pattern=pattern) == ToolOutput("no matches\n")


async def test_at_most_a_hundred_are_listed(tmp_path: Path) -> None:
    make(tmp_path, *(f"f{number:03}" for number in range(100)))
    assert "truncated" not in (await glob(tmp_path, pattern="*")).text
    make(tmp_path, "f100")
    text = (await glob(tmp_path, pattern="*")).text
    assert text.endswith("f099\n\n[truncated at max_results=100; 101 total matches]\n")
    assert text.count("\n") == 102


async def test_links_are_listed_by_name_and_not_entered(tmp_path: Path) -> None:
    make(tmp_path, "work/real/a", "outside/b")
    (tmp_path / "work" / "dir").symlink_to("real")
    (tmp_path / "work" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "work" / "broken").symlink_to("nowhere")
    text = (await glob(tmp_path / "work", pattern="**")).text
    assert sorted(text.split()) == ["broken", "dir", "out", "real/a"]
    assert (await glob(tmp_path / "work", pattern="out/*")).text == "no matches\n"


async def test_a_name_that_is_not_utf8_is_listed_with_a_replacement(tmp_path: Path) -> None:
    make(tmp_path, os.fsdecode(b"caf\xe9"))
    assert (await glob(tmp_path, pattern="*")).text == "caf\ufffd\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "pattern is required"),
        ({"pattern": ""}, "pattern is required"),
        ({"pattern": "[a"}, "invalid glob pattern: "),
        ({"pattern": "a/[]"}, "invalid glob pattern: "),
        ({"pattern": "a\\"}, "invalid glob pattern: "),
        ({"pattern": "/etc/[a"}, "invalid glob pattern: "),
        ({"pattern": "*", "path": "missing"}, "no such file or directory"),
        ({"pattern": "*", "path": "file"}, "not a directory"),
        ({"pattern": "*", "path": ".."}, 'path ".." escapes sandbox'),
        ({"pattern": "*", "volume": "x"}, 'not bound to volume "x"; available: work'),
        ({"pattern": 1}, "invalid input: "),
    ],
)
async def test_a_refused_call_says_why(
    tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    make(tmp_path, "file")
    output = await glob(tmp_path, **arguments)
    assert output.is_error
    assert text in output.text


async def test_directories_that_cannot_match_are_never_opened(tmp_path: Path) -> None:
    make(tmp_path, "src/a.py", "other/deep/b.py")
    pattern = GlobPattern(["src", "*.py"])
    assert pattern.leads_on(pattern.step(pattern.start, "src"))
    assert not pattern.leads_on(pattern.step(pattern.start, "other"))


# Segments


@pytest.mark.parametrize(
    ("segment", "name", "matches"),
    [
        ("*", "", True),
        ("*", ".x", True),
        ("a*b*c", "aXbXbXc", True),
        ("a*b*c", "aXcXb", False),
        ("*.tar.gz", "x.tar.tar.gz", True),
        ("?", "é", True),
        ("?", "", False),
        ("[a-c]", "b", True),
        ("[c-a]", "b", False),
        ("[^c-a]", "b", True),
        ("[a-]", "a", None),
        ("[-a]", "a", None),
        ("[]a]", "]", None),
        (r"[\]a]", "]", True),
        (r"[\-]", "-", True),
        ("[!a]", "!", True),
        ("[!a]", "b", False),
        ("[^^]", "^", False),
        ("[", "[", None),
        ("a]", "a]", True),
        ("{a,b}", "{a,b}", True),
        (r"\*", "*", True),
        (r"\*", "x", False),
        ("a.c", "abc", False),
        ("*\n*", "a\nb", True),
    ],
)
def test_segments(segment: str, name: str, matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(InvalidCall, match=r"^invalid glob pattern: "):
            compile_segment(segment)
    else:
        assert bool(compile_segment(segment).fullmatch(name)) is matches


def test_many_stars_take_little_time() -> None:
    pattern = compile_segment("*a" * 60 + "b")
    started = time.perf_counter()
    assert not pattern.fullmatch("a" * 255)
    assert time.perf_counter() - started < 1


def matches_segment(pattern: str, name: str) -> bool:
    """The definition, by trying everything; for patterns of ``* ? [ab] [^ab]`` and letters."""

    @cache
    def rest(p: int, n: int) -> bool:
        if p == len(pattern):
            return n == len(name)
        if pattern[p] == "*":
            return rest(p + 1, n) or (n < len(name) and rest(p, n + 1))
        if n == len(name):
            return False
        if pattern[p] == "[":
            close = pattern.index("]", p)
            negated = pattern[p + 1] == "^"
            wanted = (name[n] in pattern[p + 1 + negated : close]) is not negated
            return wanted and rest(close + 1, n + 1)
        return pattern[p] in ("?", name[n]) and rest(p + 1, n + 1)

    return rest(0, 0)


def matches_path(segments: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        return matches_path(segments[1:], names) or (
            bool(names) and matches_path(segments, names[1:])
        )
    return (
        bool(names)
        and matches_segment(segments[0], names[0])
        and matches_path(segments[1:], names[1:])
    )


_segment = st.lists(
    st.sampled_from(["*", "?", "a", "b", "ab", "[ab]", "[^a]", ".", "[^ab]"]),
    min_size=1, max_size=6,
).map("".join)  # fmt: skip
_name = st.text("ab.c", min_size=1, max_size=7)


@given(_segment, _name)
def test_segments_match_as_defined(segment: str, name: str) -> None:
    assert bool(compile_segment(segment).fullmatch(name)) == matches_segment(segment, name)


@given(
    st.lists(st.one_of(st.just("**"), _segment), min_size=1, max_size=5),
    st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_paths_match_as_defined(segments: list[str], names: list[str]) -> None:
    pattern = GlobPattern(segments)
    states = pattern.start
    for position, name in enumerate(names):
        assert pattern.leads_on(states) or not matches_path(tuple(segments), tuple(names))
        assert pattern.accepts(states) == matches_path(tuple(segments), tuple(names[:position]))
        states = pattern.step(states, name)
    assert pattern.accepts(states) == matches_path(tuple(segments), tuple(names))


def test_the_schema_names_the_inputs() -> None:
    tool: Tool = Glob()
    assert set(json.loads(tool.input_schema)["properties"]) == {"pattern", "path", "volume"}
