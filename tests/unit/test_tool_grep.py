"""Behaviour of tools.md section 3.4, and the block search against a line-by-line definition."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from events.plan import RunPlan, VolumeBinding
from loomcycle.tools.base import CallContext, Tool, ToolOutput
from loomcycle.tools.grep import (
    MAX_LINE_BYTES,
    MAX_OUTPUT_BYTES,
    Grep,
    GrepInput,
    _blocks,
    _FileMatches,
    _query,
)


def context(root: Path) -> CallContext:
    plan = RunPlan(
        agent="a", provider="mock", model="m", volumes=(VolumeBinding("work", str(root)),)
    )
    return CallContext(
        run_id="r", session_id="s", agent_id="a", tenant="", user_id="", user_tier="",
        effect_id="r.1", plan=plan, started_ns=0, now_ns=0,
    )  # fmt: skip


async def grep(root: Path, pattern: str, **arguments: Any) -> ToolOutput:
    names = {"after": "-A", "before": "-B", "around": "-C"}
    arguments = {names.get(name, name): value for name, value in arguments.items()}
    return await Grep().call(json.dumps({"pattern": pattern, **arguments}).encode(), context(root))


async def text_of(root: Path, pattern: str, **arguments: Any) -> str:
    output = await grep(root, pattern, **arguments)
    assert not output.is_error, output.text
    return output.text


def make(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        file = root / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make(
        tmp_path,
        a_py="import os\nfoo = 1\n",
        src__b_py="foo\nbar\nfoo\n",
        src__c_txt="Foo\n",
        _git__config="foo\n",
    )
    return tmp_path


async def test_files_with_matches_is_the_default_and_goes_by_path(tree: Path) -> None:
    assert await text_of(tree, "foo") == ".git/config\na.py\nsrc/b.py\n"


async def test_count_counts_matching_lines(tree: Path) -> None:
    got = await text_of(tree, "fo|oo", output_mode="count")
    assert got == ".git/config:1\na.py:1\nsrc/b.py:2\nsrc/c.txt:1\n"


async def test_content_shows_path_line_and_text(tree: Path) -> None:
    got = await text_of(tree, "foo", output_mode="content", path="src")
    assert got == "b.py:1:foo\nb.py:3:foo\n"


async def test_case_can_be_ignored(tree: Path) -> None:
    assert await text_of(tree, "foo", path="src", case_insensitive=True) == "b.py\nc.txt\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("*.py", "b.py\n"),
        ("[a-b]*", "b.py\n"),
        ("?.txt", "no matches\n"),
        ("src/*", "no matches\n"),
    ],
)
async def test_a_glob_filters_by_base_name(tree: Path, name: str, expected: str) -> None:
    assert await text_of(tree, "foo", path="src", glob=name) == expected


async def test_a_file_can_be_searched_by_itself(tree: Path) -> None:
    assert (
        await text_of(tree, "foo", path="src/b.py", output_mode="content") == ".:1:foo\n.:3:foo\n"
    )
    assert await text_of(tree, "foo", path="src/b.py", glob="*.txt") == "no matches\n"


async def test_nothing_found_is_no_error(tree: Path) -> None:
    assert await grep(tree, "absent") == ToolOutput("no matches\n")


NUMBERS = "".join(f"n{number}\n" for number in range(1, 10))


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"after": 1}, ["f:4:n4", "f-5-n5", "f:6:n6", "f-7-n7"]),
        ({"before": 1}, ["f-3-n3", "f:4:n4", "f-5-n5", "f:6:n6"]),
        ({"around": 1}, ["f-3-n3", "f:4:n4", "f-5-n5", "f-5-n5", "f:6:n6", "f-7-n7"]),
        ({"around": 1, "after": 5}, ["f-3-n3", "f:4:n4", "f-5-n5", "f-5-n5", "f:6:n6", "f-7-n7"]),
        ({"around": 0, "after": 1}, ["f:4:n4", "f-5-n5", "f:6:n6", "f-7-n7"]),
        ({"after": 2}, ["f:4:n4", "f-5-n5", "f-6-n6", "f:6:n6", "f-7-n7", "f-8-n8"]),
        ({"after": -1}, ["f:4:n4", "f:6:n6"]),
        ({"before": 99}, [f"f-{n}-n{n}" for n in range(1, 4)] + ["f:4:n4"]
         + [f"f-{n}-n{n}" for n in range(1, 6)] + ["f:6:n6"]),
    ],
)  # fmt: skip
async def test_context_lines_repeat_where_they_overlap(
    tmp_path: Path, arguments: dict[str, int], lines: list[str]
) -> None:
    make(tmp_path, f=NUMBERS)
    got = await text_of(tmp_path, "n[46]", output_mode="content", **arguments)
    assert got == "".join(f"{line}\n" for line in lines)


def marker(limit: int) -> str:
    return f"\n[truncated at head_limit={limit} or max_bytes=262144]\n"


async def test_the_head_limit_counts_files(tmp_path: Path) -> None:
    make(tmp_path, a="x\nx\n", b="x\n", c="y\n", d="x\n")
    assert await text_of(tmp_path, "x", head_limit=2) == "a\nb\n" + marker(2)
    assert await text_of(tmp_path, "x", head_limit=2, output_mode="count") == (
        "a:2\nb:1\n" + marker(2)
    )
    assert await text_of(tmp_path, "x", head_limit=3) == "a\nb\nd\n"


async def test_the_head_limit_counts_matches_in_content_mode(tmp_path: Path) -> None:
    make(tmp_path, a="x\nx\n", b="x\n")
    mode = {"output_mode": "content"}
    assert await text_of(tmp_path, "x", head_limit=1, **mode) == "a:1:x\n" + marker(1)
    assert await text_of(tmp_path, "x", head_limit=2, **mode) == "a:1:x\na:2:x\n" + marker(2)
    assert await text_of(tmp_path, "x", head_limit=3, **mode) == "a:1:x\na:2:x\nb:1:x\n"


async def test_the_last_match_keeps_its_context(tmp_path: Path) -> None:
    make(tmp_path, a="x\nx\ny\n")
    got = await text_of(tmp_path, "x", head_limit=1, output_mode="content", after=2)
    assert got == "a:1:x\na-2-x\na-3-y\n" + marker(1)


@pytest.mark.parametrize("limit", [0, -1, None])
async def test_without_a_positive_limit_it_is_a_hundred(tmp_path: Path, limit: int | None) -> None:
    make(tmp_path, **{f"f{number:03}": "x\n" for number in range(101)})
    got = await text_of(tmp_path, "x", head_limit=limit)
    assert got.endswith("f099\n" + marker(100))


async def test_the_output_is_cut_at_its_limit(tmp_path: Path) -> None:
    make(tmp_path, a="é" * 200_000 + "\n", b="x\n")
    got = await text_of(tmp_path, ".", output_mode="content")
    body, cut, _ = got.partition(marker(100))
    assert cut
    assert body == "a:1:" + "é" * ((MAX_OUTPUT_BYTES - 4) // 2)


@pytest.mark.parametrize("arguments", [{"after": 400}, {"before": 400}, {"around": 10**9}])
async def test_large_contexts_are_cut_where_the_whole_would_be(
    tmp_path: Path, arguments: dict[str, int]
) -> None:
    lines = [f"{number} " + "x" * 97 for number in range(1, 3001)]
    make(tmp_path, a="\n".join(lines))
    got = await text_of(tmp_path, "7 ", output_mode="content", head_limit=10**9, **arguments)
    before = arguments.get("before", 0) or arguments.get("around", 0)
    after = arguments.get("after", 0) or arguments.get("around", 0)
    whole = ""
    for at, line in enumerate(lines):
        if "7 " in line and len(whole) <= MAX_OUTPUT_BYTES:
            for n in range(max(0, at - before), min(len(lines), at + after + 1)):
                sign = ":" if n == at else "-"
                whole += f"a{sign}{n + 1}{sign}{lines[n]}\n"
    assert got == whole[:MAX_OUTPUT_BYTES] + marker(10**9)


@pytest.mark.parametrize(
    ("content", "searched"),
    [
        (b"x\n\0", False),
        (b"x\n" + b"a" * 8190 + b"\0", True),
        (b"x\n" + b"a" * 8189 + b"\0", False),
        (b"x\n" + b"a" * MAX_LINE_BYTES, True),
        (b"x\n" + b"a" * (MAX_LINE_BYTES + 1), False),
        (b"x\n" + b"a" * (MAX_LINE_BYTES + 1) + b"\n", False),
        (b"a\n" * 600_000 + b"b" * (MAX_LINE_BYTES + 1) + b"\nx\n", False),
        (b"a\n" * 600_000 + b"b" * MAX_LINE_BYTES + b"\nx\n", True),
        (b"", False),
    ],
)
async def test_binary_files_and_files_with_long_lines_are_passed_over(
    tmp_path: Path, content: bytes, searched: bool
) -> None:
    make(tmp_path, f=content)
    assert await text_of(tmp_path, "x") == ("f\n" if searched else "no matches\n")


async def test_special_and_unreadable_files_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    make(tmp_path, f="x\n")
    assert await text_of(tmp_path, "x") == "f\n"


async def test_links_are_followed_inside_the_volume_only(tmp_path: Path) -> None:
    make(tmp_path, work__sub__f="x\n", secret="x outside\n", outside__f="x outside\n")
    work = tmp_path / "work"
    (work / "sub" / "in").symlink_to("f")
    (work / "sub" / "out").symlink_to(tmp_path / "secret")
    (work / "sub" / "dir").symlink_to(tmp_path / "outside")
    (work / "above").symlink_to("sub/f")
    (work / "sub" / "up").symlink_to("../above")
    assert await text_of(work, "x", path="sub") == "f\nin\nup\n"
    refused = await grep(work, "x", path="sub/out")
    assert refused.is_error
    assert "escapes sandbox" in refused.text


@pytest.mark.parametrize(
    ("content", "pattern", "lines"),
    [
        ("foo\r\nbar\r\n", "foo$", ["1:foo"]),
        ("foo\r", "foo$", ["1:foo"]),
        ("a\nb", "a\\nb", []),
        ("a\nb", "(?s)a.b", []),
        ("a\nb", "^b$", ["2:b"]),
        ("a\nb", "\\Ab", ["2:b"]),
        ("a\nb", "a\\z", ["1:a"]),
        ("a\nb", "(?-m)^b", ["2:b"]),
        ("a\n\nb\n", "^$", ["2:"]),
        ("a\n", "^$", []),
        (b"caf\xe9 x\n", "caf. x", ["1:caf\ufffd x"]),
        ("größe\n", "gr..e", ["1:größe"]),
        ("a|b\n", "[|]", ["1:a|b"]),
    ],
)
@pytest.mark.parametrize("multiline", [False, True])
async def test_a_pattern_sees_one_line_at_a_time(
    tmp_path: Path, content: str | bytes, pattern: str, lines: list[str], multiline: bool
) -> None:
    make(tmp_path, f=content)
    got = await text_of(tmp_path, pattern, output_mode="content", multiline=multiline)
    assert got == ("".join(f"f:{line}\n" for line in lines) or "no matches\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"pattern": ""}, "pattern is required"),
        ({}, "pattern is required"),
        ({"pattern": "("}, "invalid regex: missing )"),
        ({"pattern": "(?=x)"}, "invalid regex: "),
        ({"pattern": "x", "glob": "["}, "invalid glob pattern: "),
        ({"pattern": "x", "output_mode": "lines"}, 'unknown output_mode "lines"'),
        ({"pattern": "x", "path": "missing"}, "no such file or directory"),
        ({"pattern": "x", "path": "../.."}, 'path "../.." escapes sandbox'),
        ({"pattern": "x", "volume": "y"}, 'not bound to volume "y"; available: work'),
        ({"pattern": "x", "head_limit": "5"}, "invalid input: "),
        ({"pattern": "x", "-A": 1.5}, "invalid input: "),
    ],
)
async def test_a_refused_call_says_why(
    tmp_path: Path, arguments: dict[str, Any], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    output = await Grep().call(json.dumps(arguments).encode(), context(tmp_path))
    assert output.is_error
    assert output.text.startswith(text) or text in output.text
    assert capfd.readouterr().err == ""


_lines = st.lists(st.text("ab é\r", max_size=5), max_size=30)


@given(
    _lines,
    st.sampled_from(["a", "^a", "b$", "a.b", "^$", "[^a]", "\\bé?a", "^ab?$", "\\Aa", "(a|b)b"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 12),
    st.booleans(),
)
@example(["a", "\r"], "a", 0, 1, 4, False)
def test_block_search_equals_the_definition(
    lines: list[str], pattern: str, before: int, after: int, block: int, ended: bool
) -> None:
    """Blocks of a few bytes, so that lines, matches and contexts cross their borders."""
    content = "\n".join(lines) + ("\n" if ended and lines else "")
    shown = [line.removesuffix("\r") for line in content.split("\n")]
    if content.endswith("\n") or not content:
        shown.pop()
    expression = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    expected = ""
    for at, line in enumerate(shown):
        if expression.search(line):
            for n in range(max(0, at - before), min(len(shown), at + after + 1)):
                sign = ":" if n == at else "-"
                expected += f"f{sign}{n + 1}{sign}{shown[n]}\n"
    query = _query(GrepInput(pattern=pattern, output_mode="content", before=before, after=after))
    matches = _FileMatches(query, "f", left=1000)
    for whole in _blocks(io.BytesIO(content.encode()), lambda: None):
        for part in _cut(whole, block):
            matches.look_at(part)
    assert "".join(f"{line}\n" for line in matches.output()) == expected


def _cut(block: bytes, size: int) -> list[bytes]:
    """Pieces of whole lines, each of about ``size`` bytes."""
    pieces, piece = [], b""
    for line in re.findall(rb"[^\n]*\n|[^\n]+$", block):
        piece += line
        if len(piece) >= size:
            pieces.append(piece)
            piece = b""
    return [*pieces, piece] if piece else pieces


def test_the_schema_names_the_inputs() -> None:
    tool: Tool = Grep()
    assert set(json.loads(tool.input_schema)["properties"]) == {
        "pattern", "path", "volume", "glob", "output_mode", "case_insensitive", "multiline",
        "head_limit", "-A", "-B", "-C",
    }  # fmt: skip
