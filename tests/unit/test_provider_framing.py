"""Frames of a streamed body never depend on how its bytes were split."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomcycle.providers.framing import Framing, LineTooLong, NdjsonFraming, SseFraming


def read(framing: Framing, chunks: list[bytes]) -> tuple[list[bytes], bool]:
    """The frames, and whether a line was too long."""
    frames: list[bytes] = []
    try:
        for chunk in chunks:
            frames.extend(_each(framing.feed(chunk), frames))
        frames.extend(_each(framing.finish(), frames))
    except LineTooLong:
        return frames, True
    return frames, False


def _each(source: Iterator[bytes], into: list[bytes]) -> list[bytes]:
    for frame in source:
        into.append(frame)
    return []


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


line = st.sampled_from(
    [b"data: {}", b"data:{}", b"data: ", b": note", b"event: x", b"", b"x", b"data: " + b"y" * 9]
)
ending = st.sampled_from([b"\n", b"\r\n"])
body = st.lists(st.tuples(line, ending), max_size=12).map(
    lambda pairs: b"".join(text + end for text, end in pairs)
)


@pytest.mark.parametrize("framing", [lambda: SseFraming(12), lambda: NdjsonFraming(12)])
@given(data=body, cuts=st.lists(st.integers(0, 400), max_size=20))
def test_chunking_changes_nothing(
    framing: Callable[[], Framing], data: bytes, cuts: list[int]
) -> None:
    assert read(framing(), split(data, cuts)) == read(framing(), [data])


def test_an_event_is_its_data_lines_joined() -> None:
    data = b": hello\nevent: x\nid: 1\ndata: a\ndata:b\r\n\r\ndata: c\n\n\n"
    assert read(SseFraming(), [data]) == ([b"a\nb", b"c"], False)


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    assert read(SseFraming(), [b"data: a\n\ndata: b"]) == ([b"a", b"b"], False)


def test_blank_ndjson_lines_are_no_frames() -> None:
    assert read(NdjsonFraming(), [b'{"a":1}\r\n\n  \n{"b":2}']) == ([b'{"a":1}', b'{"b":2}'], False)


@pytest.mark.parametrize(
    ("framing", "start", "limit"),
    [(SseFraming, b"data: ", 1 << 20), (NdjsonFraming, b"", 4 << 20)],
)
def test_a_line_at_the_limit_passes_and_one_byte_more_does_not(
    framing: Callable[[], Framing], start: bytes, limit: int
) -> None:
    fitting = start + b"x" * (limit - len(start))
    assert read(framing(), [fitting + b"\n\n"]) == ([fitting.removeprefix(start)], False)
    assert read(framing(), [fitting + b"x\n\n"]) == ([], True)
    assert read(framing(), [fitting + b"x"]) == ([], True)


def test_frames_before_a_line_that_is_too_long_are_still_delivered() -> None:
    assert read(SseFraming(16), [b"data: a\n\ndata: " + b"x" * 99]) == ([b"a"], True)


def test_an_event_of_many_lines_is_bounded_too() -> None:
    assert read(SseFraming(16), [b"data: 12345678\n" * 3]) == ([], True)
