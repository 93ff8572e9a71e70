"""Tool calls that a local model wrote as text (providers.md 6.5)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.providers.ollama_recovery import recover_calls


def recovered(text: str) -> list[tuple[str, Any]]:
    return [(name, json.loads(bytes(value))) for name, value in recover_calls(text)]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name":"Read","arguments":{"a":1}}', [("Read", {"a": 1})]),
        ('  \n{"name":"Read"}\n', [("Read", {})]),
        ('{"name":"Read","arguments":null}', [("Read", {})]),
        ('```json\n{"name":"Read","arguments":{}}\n```', [("Read", {})]),
        ('```\n{"name":"Read"}```', [("Read", {})]),
        ('[{"name":"A"},{"name":"B","arguments":{"x":[1]}}]', [("A", {}), ("B", {"x": [1]})]),
        ("[tool_use: Read]", [("Read", {})]),
        ('[tool_use: Read] {"a":"]"}', [("Read", {"a": "]"})]),
        ('[tool_use: Read {"a":{"b":1}}]', [("Read", {"a": {"b": 1}})]),
        ('[tool_use:_x-1]\n\n{"a":1}', [("_x-1", {"a": 1})]),
        ("```\n[tool_use: Read]\n```", [("Read", {})]),
    ],
)
def test_a_text_that_is_nothing_but_calls_is_recovered(
    text: str, calls: list[tuple[str, Any]]
) -> None:
    assert recovered(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        'Sure: {"name":"Read"}',
        '{"name":"Read"} there you go',
        '```\n{"name":"Read"}\n```\nthere you go',
        '```\n{"name":"A"}\n```\n```\n{"name":"B"}\n```',
        '{"name":""}',
        '{"name":7}',
        '{"arguments":{}}',
        '{"name":"Read","arguments":"x"}',
        '{"name":"Read","arguments":[]}',
        '{"name":"Ann","age":7}',
        "[]",
        "{}",
        '[{"name":"A"},{"arguments":{}}]',
        '[{"name":"A"},1]',
        '[tool_use: Read {"a":1}] {"b":2}',
        "[tool_use: Read] prose",
        "[tool_use: Read] [1]",
        '[tool_use: Read] {"a":1} prose',
        '[tool_use: Read] {"a":1',
        "[tool_use: Read {bad}]",
        "[tool_use: 9x]",
        "[tool_use: a b]",
        "[tool_use: a.b]",
        "[tool_use: ]",
        "[tool_use: Read",
        "[" * 100_000,
        "[tool_use: Read " + "{" * 100_000,
    ],
)
def test_anything_else_is_prose(text: str) -> None:
    assert recovered(text) == []


@given(st.text())
def test_whatever_stands_in_a_text_its_calls_have_names_and_objects(text: str) -> None:
    for written in (text, f"[tool_use: x{text}", f'[{{"name":"x","arguments":{text}}}]'):
        for name, value in recovered(written):
            assert name
            assert isinstance(value, dict)


@given(st.text(), st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]*", fullmatch=True))
def test_prose_before_a_call_makes_all_of_it_prose(text: str, name: str) -> None:
    assert recovered(f"So: {text}[tool_use: {name}]") == []
