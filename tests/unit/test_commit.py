"""Commits and their chain: what is stored is what is read, and every alteration is noticed."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.commit import (
    INLINE_LIMIT,
    BrokenChain,
    Chain,
    Commit,
    FutureEvent,
    NewEvent,
    decode,
    encode_commit,
    new_event,
)
from events.upcast import upcast
from events.vocabulary import Event, Started, Text, ToolCall, ToolUse, Unrecognised, UserInput
from tests.chains import check_chain


def stored(c: int, prev: str, first_n: int, *events: Event, run: str = "r_1", epoch: int = 1):
    data, hash_, _, _ = encode_commit(
        run=run,
        c=c,
        prev=prev,
        epoch=epoch,
        writer="w",
        first_n=first_n,
        ts=c,
        events=[new_event(event) for event in events],
    )
    return data, hash_


def three() -> list[bytes]:
    first, hash_1 = stored(1, "", 1, UserInput(), Started())
    second, hash_2 = stored(2, hash_1, 3, Text(text="a"))
    third, _ = stored(3, hash_2, 4, Text(text="b"))
    return [first, second, third]


def commits(*messages: bytes) -> list[Commit]:
    return [decode(data, 10 + i) for i, data in enumerate(messages)]


@given(st.lists(st.text(), min_size=1, max_size=20))
def test_what_was_committed_is_read_back(texts: list[str]) -> None:
    data, hash_ = stored(1, "", 1, *(Text(text=t) for t in texts))
    commit = decode(data, 7)
    assert commit.hash == hash_
    assert [r.event for r in commit.records()] == [Text(text=t) for t in texts]
    assert [r.n for r in commit.records()] == list(range(1, len(texts) + 1))
    assert [r.seq for r in commit.records()] == [7 * 1024 + i for i in range(len(texts))]


def test_a_public_body_is_the_frame_that_clients_see() -> None:
    data, _ = stored(1, "", 1, Text(text="hi"))
    assert decode(data).records()[0].body == b'{"type":"text","text":"hi"}'


def test_hash_and_digest_are_those_of_sha256sum() -> None:
    data, hash_ = stored(1, "", 1, Text(text="hi"))
    header, body = data.split(b"\n")
    assert hashlib.sha256(header).hexdigest() == hash_
    assert decode(data).header.events[0].digest == hashlib.sha256(body).hexdigest()


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    messages = three()
    which = data.draw(st.integers(0, 2))
    at = data.draw(st.integers(0, len(messages[which]) - 1))
    flipped = bytearray(messages[which])
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    last_hash = decode(three()[2]).hash
    messages[which] = bytes(flipped)
    try:
        chain = check_chain("r_1", commits(*messages))
    except (BrokenChain, FutureEvent):
        return
    assert which == 2, "only the last header has no successor that names it"
    assert chain.hash != last_hash


@pytest.mark.parametrize(
    "order", [(0, 2), (1, 2), (0, 2, 1), (1, 0, 2), (0, 0, 1), (0, 1, 1, 2), (2,)]
)
def test_dropped_swapped_and_doubled_commits_are_noticed(order: tuple[int, ...]) -> None:
    messages = three()
    with pytest.raises(BrokenChain, match="sequence"):
        check_chain("r_1", commits(*(messages[i] for i in order)))


def test_a_commit_of_another_run_does_not_belong() -> None:
    data, _ = stored(1, "", 1, Started(), run="r_2")
    with pytest.raises(BrokenChain, match="belongs to r_2"):
        Chain("r_1").check(decode(data))


def test_an_epoch_never_goes_back() -> None:
    first, hash_ = stored(1, "", 1, Started(), epoch=5)
    second, _ = stored(2, hash_, 2, Text(text="x"), epoch=4)
    with pytest.raises(BrokenChain, match="epoch 4 after epoch 5"):
        check_chain("r_1", commits(first, second))


def test_a_large_body_is_kept_beside_the_log_and_checked_when_it_comes_back() -> None:
    event = Text(text="x" * (INLINE_LIMIT + 1))
    data, _, _, blobs = encode_commit(
        run="r_1", c=1, prev="", epoch=1, writer="w", first_n=1, ts=1, events=[new_event(event)]
    )
    assert len(data) < 1000
    commit = decode(data)
    (name,) = commit.blobs()
    assert blobs.keys() == {name}
    with pytest.raises(BrokenChain, match="altered"):
        decode(data).fill({name: b"other"})
    commit.fill(blobs)
    assert commit.records()[0].event == event


@pytest.mark.parametrize("count", [0, 1024])
def test_a_commit_has_one_to_1023_events(count: int) -> None:
    with pytest.raises(ValueError, match="1023"):
        stored(1, "", 1, *(Started() for _ in range(count)))


def unknown(must_understand: bool) -> bytes:
    event = NewEvent(type="run.teleported", body=b'{"to":1}', must_understand=must_understand)
    return encode_commit(
        run="r_1", c=1, prev="", epoch=1, writer="w", first_n=1, ts=1, events=[event]
    )[0]


def test_an_unknown_event_that_must_be_understood_stops_the_reader() -> None:
    with pytest.raises(FutureEvent, match=r"run\.teleported"):
        decode(unknown(True)).records()[0].event  # noqa: B018


def test_an_unknown_event_that_need_not_be_understood_is_passed_on_undecoded() -> None:
    assert decode(unknown(False)).records()[0].event == Unrecognised("run.teleported", {"to": 1})


def test_numbers_in_tool_inputs_keep_their_spelling() -> None:
    import msgspec

    raw = msgspec.Raw(b'{"big":12345678901234567890,"one":1.0}')
    data, _ = stored(1, "", 1, ToolCall(tool_use=ToolUse("t", "Memory", raw)))
    event = decode(data).records()[0].event
    assert isinstance(event, ToolCall)
    assert bytes(event.tool_use.input) == bytes(raw)


def test_upcasting_goes_one_version_at_a_time() -> None:
    steps = {
        ("text", 1): lambda fields: {**fields, "b": 1},
        ("text", 2): lambda fields: {**fields, "b": fields["b"] + 1},
    }
    assert upcast("text", 1, 3, {"a": 0}, steps) == {"a": 0, "b": 2}
    with pytest.raises(KeyError):
        upcast("text", 1, 4, {"a": 0}, steps)
