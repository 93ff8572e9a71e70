"""Behaviour of tools.md section 3.1, and of the volume errors every file tool shares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from events.plan import RunPlan, VolumeBinding
from loomcycle.tools.base import CallContext, Repeat, Tool, ToolOutput
from loomcycle.tools.read import MAX_BYTES, Read


def context(volumes: tuple[VolumeBinding, ...] | None) -> CallContext:
    return CallContext(
        run_id="r", session_id="s", agent_id="a", tenant="", user_id="", user_tier="",
        effect_id="r.1", plan=RunPlan(agent="reader", provider="mock", model="m", volumes=volumes),
        started_ns=0, now_ns=0,
    )  # fmt: skip


async def read(root: Path, **arguments: Any) -> ToolOutput:
    bound = context((VolumeBinding("work", str(root)),))
    return await Read().call(json.dumps(arguments).encode(), bound)


async def test_the_text_of_a_file_is_returned_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("zwei\r\nZeilen ü\n".encode())
    assert await read(tmp_path, path="a.txt") == ToolOutput("zwei\r\nZeilen ü\n")


async def test_an_empty_file_is_empty_text(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert await read(tmp_path, path="empty") == ToolOutput("")


async def test_a_large_file_is_cut_without_a_marker(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    assert await read(tmp_path, path="large") == ToolOutput("x" * MAX_BYTES)


async def test_a_character_cut_by_the_limit_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES - 1) + "é".encode())
    assert await read(tmp_path, path="large") == ToolOutput("x" * (MAX_BYTES - 1))


async def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert await read(tmp_path, path="latin") == ToolOutput("caf\ufffd")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "path is required"),
        ({"path": ""}, "path is required"),
        ({"path": None}, "path is required"),
        ({"path": "missing"}, "no such file or directory"),
        ({"path": "."}, "is a directory"),
        ({"path": "pipe"}, "not a regular file"),
        ({"path": "../x"}, 'path "../x" escapes sandbox'),
        ({"path": "out"}, "escapes sandbox"),
        ({"path": "a\0b"}, "NUL"),
        ({"path": "x" * 300}, "file name too long"),
        ({"path": "a", "volume": "other"}, 'not bound to volume "other"; available: work'),
        ({"path": 1}, "invalid input: "),
        ({"path": "a", "volume": []}, "invalid input: "),
        ([], "invalid input: "),
    ],
)
async def test_a_refused_call_says_why(tmp_path: Path, arguments: Any, text: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "pipe")
    (tmp_path / "secret").write_text("outside")
    (root / "out").symlink_to(tmp_path / "secret")
    bound = context((VolumeBinding("work", str(root)),))
    output = await Read().call(json.dumps(arguments).encode(), bound)
    assert output.is_error
    assert text in output.text
    assert "outside" not in output.text


@pytest.mark.parametrize("raw", [b"", b"{", b'{"path":"\xff"}', b"null"])
async def test_undecodable_input_is_an_error_result(raw: bytes) -> None:
    output = await Read().call(raw, context(()))
    assert output.is_error
    assert output.text.startswith("invalid input: ")


async def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert await read(tmp_path, path="a", offset=3) == ToolOutput("x")


@pytest.mark.parametrize(
    ("volumes", "text"),
    [
        (None, "no filesystem volume available"),
        ((), "no filesystem volume is available to this agent"),
        ((VolumeBinding("gone", "/nonexistent/volume"),), "no such file or directory"),
    ],
)
async def test_without_a_usable_volume_every_call_is_refused(
    volumes: tuple[VolumeBinding, ...] | None, text: str
) -> None:
    output = await Read().call(b'{"path":"a"}', context(volumes))
    assert output.is_error
    assert text in output.text


async def test_a_read_only_volume_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    bound = context((VolumeBinding("work", str(tmp_path), "ro"),))
    assert await Read().call(b'{"path":"a"}', bound) == ToolOutput("x")


def test_reading_may_be_repeated() -> None:
    tool: Tool = Read()
    assert tool.repeat is Repeat.SAFE
    assert json.loads(tool.input_schema)["required"] == ["path"]
