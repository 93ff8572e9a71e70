"""What another process says about a program is believed only if any program could have said it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.codejs import Failed, Finished, ToolCall
from replay.codejs.resident import believed

TOOLS = frozenset({"Read", "Memory"})


def test_a_call_an_end_and_an_exception_are_believed() -> None:
    assert believed(b'["suspended",3,"Read","{\\"a\\":1}"]', TOOLS, 3) == ToolCall(
        3, "Read", b'{"a":1}'
    )
    assert believed(b'["finished","text"]', TOOLS, 3) == Finished("text")
    assert believed(b'["finished",null]', TOOLS, 3) == Finished(None)
    assert believed(b'["running",false,"Error: x"]', TOOLS, 3) == Failed(
        "code_agent_threw", "code_agent_threw: run: Error: x"
    )


@pytest.mark.parametrize(
    "report",
    [
        ["suspended", 2, "Read", "{}"],
        ["suspended", "3", "Read", "{}"],
        ["suspended", 3, "Write", "{}"],
        ["suspended", 3, "Read", "[]"],
        ["suspended", 3, "Read", "{"],
        ["suspended", 3, "Read", '{"a":1} {}'],
        ["suspended", 3, "Read", "{}", 1],
        ["finished", ""],
        ["finished", 1],
        ["finished"],
        ["diverged", 0, "Read", "{}", "Read", "{}"],
        ["short", 0, "Read", "{}"],
        ["evaluating", True, "SyntaxError"],
        ["undefined"],
        ["asynchronous"],
        ["undecided"],
        [],
        {"suspended": 3},
        None,
    ],
)
def test_anything_else_has_to_be_decided_by_running_the_program(report: object) -> None:
    assert believed(msgspec.json.encode(report), TOOLS, 3) is None


@given(st.binary())
def test_bytes_that_are_no_answer_are_not_believed(data: bytes) -> None:
    assert believed(data, TOOLS, 0) is None


def test_a_broken_text_is_not_believed() -> None:
    assert believed(b'["suspended",3,"Read","{\\"a\\":\\"\\ud800\\"}"]', TOOLS, 3) is None
    assert believed(b'["finished","\xff"]', TOOLS, 3) is None
    assert believed(b"[" * 100_000, TOOLS, 3) is None
