"""Frames as people see them, and the event stream they come from."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loomcycle.cli.client import Frame, start_request
from loomcycle.cli.sse import SseDecoder, SseEvent
from loomcycle.cli.transcript import Plain, Transcript, one_line, printable, view_for


def frame(event: str, **body: Any) -> Frame:
    return Frame(event, "1", json.dumps(body), body)


AGENT = frame("agent", agent_id="a_1", run_id="r_1", session_id="s_1")
DONE = frame("done", stop_reason="end_turn", usage={"input_tokens": 1200, "output_tokens": 3})


def shown(*frames: Frame) -> tuple[str, list[str], Transcript]:
    out, err = io.StringIO(), io.StringIO()
    transcript = Transcript(Plain(out, err))
    for each in frames:
        transcript.show(each)
    return out.getvalue(), err.getvalue().splitlines(), transcript


# --- transcript ---------------------------------------------------------------------------


def test_the_answer_alone_goes_to_stdout() -> None:
    call = {"id": "t1", "name": "Read", "input": {"path": "a"}}
    out, err, transcript = shown(
        AGENT,
        frame("text", text="Let me "),
        frame("text", text="look."),
        frame("tool_call", tool_use=call),
        frame("tool_result", tool_use=call, text="one\ntwo"),
        frame("text", text="Done.\n"),
        frame("usage", usage={}),
        DONE,
    )
    assert out == "Let me look.\nDone.\n"
    assert err == [
        "run r_1 in session s_1",
        '→ Read {"path": "a"}',
        "← Read 7 bytes: one two",
        "end_turn: 1,200 tokens in, 3 out",
    ]
    assert transcript.completed
    assert (transcript.run_id, transcript.session_id, transcript.agent_id) == ("r_1", "s_1", "a_1")


def test_a_failed_call_and_a_retry_are_told() -> None:
    call = {"id": "t1", "name": "Grep", "input": {}}
    retry = {"provider": "p", "attempt": 2, "wait_ms": 300, "reason": "exponential backoff"}
    _, err, _ = shown(
        frame("tool_result", tool_use=call, text="no", is_error=True),
        frame("retry", retry=retry),
    )
    assert err == ["✗ Grep 2 bytes: no", "… p: attempt 2 after 300 ms (exponential backoff)"]


def test_an_answer_that_was_rejected_is_told_from_the_one_that_counts() -> None:
    out, err, _ = shown(
        frame("text", text="bad"),
        frame("answer_rejected", text="not JSON"),
        frame("text", text="{}"),
    )
    assert out == "bad\n{}"
    assert err == ["(no valid answer: not JSON; the model is asked again)"]


def test_an_error_is_the_verdict_unless_the_run_goes_on() -> None:
    _, err, failed = shown(AGENT, frame("error", error="provider error: gone"))
    assert err[-1] == "error: provider error: gone"
    assert not failed.completed
    assert failed.error == "provider error: gone"
    _, _, survived = shown(AGENT, frame("error", error="compaction failed"), DONE)
    assert survived.completed
    assert survived.error == ""


def test_unknown_events_are_skipped() -> None:
    assert shown(frame("weather", text="sunny"))[:2] == ("", [])


def test_text_of_models_and_tools_cannot_steer_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jred\u202e\u200b"
    call = {"id": "t", "name": evil, "input": {"x": evil}}
    out, err, _ = shown(
        frame("text", text=evil),
        frame("tool_call", tool_use=call),
        frame("tool_result", tool_use=call, text=evil),
        frame("error", error=evil),
    )
    everything = out + "".join(err)
    assert not set("\x1b\x07\u202e\u200b") & set(everything)
    assert "red" in out


@given(st.text())
def test_printable_keeps_what_can_be_printed(text: str) -> None:
    kept = printable(text)
    assert [c for c in text if c.isprintable()] == [c for c in kept if c.isprintable()]
    assert kept.count("\n") == text.count("\n")
    assert "\x1b" not in kept


@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_line_of_limited_width(text: str, width: int) -> None:
    line = one_line(text, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1


def test_without_a_terminal_the_view_is_plain() -> None:
    assert isinstance(view_for(io.StringIO(), io.StringIO()), Plain)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_text_flows_and_lines_are_kept_apart() -> None:
    out = Terminal()
    transcript = Transcript(view_for(out, out))
    for each in (AGENT, frame("text", text="a [b]"), frame("text", text=" c"), DONE):
        transcript.show(each)
    assert "a [b] c\n" in out.getvalue()
    assert "r_1" in out.getvalue()


# --- requests and the stream --------------------------------------------------------------


def test_a_request_starts_a_run_or_continues_a_session() -> None:
    assert start_request("a", "hi") == ("/v1/runs", {"agent": "a", "prompt": "hi"})
    assert start_request("a", "hi", user_id="u").body["user_id"] == "u"
    path, body = start_request("a", "hi", session="s_1")
    assert path == "/v1/sessions/s_1/messages"
    assert body["segments"][0]["content"][0]["text"] == "hi"
    assert "agent" not in body
    assert start_request("", "hi", session="../x").path == "/v1/sessions/..%2Fx/messages"


STREAM = (
    ": keepalive\n\n"
    'id: 7\nevent: text\ndata: {"type":"text"}\n\n'
    "event: session\r\ndata:x\r\ndata: y\r\n\r\n"
    "retry: 5\n\n"
    "id: 8.1.3\ndata: z\n\n"
    "event: cut\ndata: off\n"
)
EVENTS = [
    SseEvent("text", '{"type":"text"}', "7"),
    SseEvent("session", "x\ny", "7"),
    SseEvent("message", "z", "8.1.3"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_is_decoded_alike_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    decoder = SseDecoder()
    events = [event for start, end in pairwise(places) for event in decoder.feed(STREAM[start:end])]
    assert events == EVENTS
