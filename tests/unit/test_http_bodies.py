"""Request bodies: limits, content types, and JSON as clients really send it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from gateways.http import bodies
from gateways.http.bodies import MIB, JsonBody, first_value, read_body
from gateways.http.errors import ClientGone, Refusal
from loomcycle.commands.requests import RunRequest
from tests.wire.asgi import AsgiClient


class Block(Struct):
    text: str = ""
    kind: str = "plain"


class Note(Struct):
    title: str = "untitled"
    size: int = 0
    blocks: tuple[Block, ...] | None = None
    free: dict[str, Raw] | None = None
    limit: int | None = 7


BODY = JsonBody(Note)
JSON = {"Content-Type": "application/json"}


def refused(data: bytes) -> str:
    with pytest.raises(Refusal) as caught:
        BODY.decode(data)
    assert caught.value.status == 400
    return str(caught.value)


async def test_a_body_that_comes_byte_by_byte_is_one_body() -> None:
    data = b'{"title":"slowly"}'
    client = AsgiClient("POST", headers=JSON, body=[data[n : n + 1] for n in range(len(data))])
    assert (await BODY.read(client.scope, client.receive)).title == "slowly"


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    client = AsgiClient("POST", body=[b"x" * (MIB - 1), b"y"])
    assert len(await read_body(client.scope, client.receive, MIB)) == MIB


async def test_a_longer_body_is_refused_in_the_words_clients_know() -> None:
    client = AsgiClient("POST", headers=JSON, body=[b"x" * MIB, b"y"])
    with pytest.raises(Refusal, match=r"^bad json: http: request body too large$") as caught:
        await BODY.read(client.scope, client.receive)
    assert caught.value.status == 400


@pytest.mark.parametrize("headers", [{}, {"Content-Length": str(3 * MIB)}])
async def test_the_rest_of_a_body_that_is_too_long_is_taken(headers: dict[str, str]) -> None:
    """Or closing would reset the connection of a client that has not read its answer yet."""
    client = AsgiClient("POST", headers=headers, body=[b"x" * MIB] * 3)
    with pytest.raises(Refusal, match="too large"):
        await read_body(client.scope, client.receive, MIB)
    client.leave()
    assert (await client.receive())["type"] == "http.disconnect"


async def test_a_client_that_asks_first_is_refused_before_anything_is_read() -> None:
    headers = {"Content-Length": str(MIB + 1), "Expect": "100-continue"}
    client = AsgiClient("POST", headers=headers, body=[b"x", b"y"])
    with pytest.raises(Refusal, match="too large"):
        await read_body(client.scope, client.receive, MIB)
    assert (await client.receive())["body"] == b"x"


async def test_of_an_endless_body_only_so_much_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "UNREAD_BYTES", 4)
    client = AsgiClient("POST", body=[b"too long", b"12", b"34", b"left", b""])
    with pytest.raises(Refusal, match="too large"):
        await read_body(client.scope, client.receive, 1)
    assert (await client.receive())["body"] == b"left"


async def test_for_the_rest_of_a_stalled_body_nobody_waits_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "UNREAD_S", 0.001)
    client = AsgiClient("POST", headers={"Content-Length": "9"}, body=[])
    with pytest.raises(Refusal, match="too large"):
        await read_body(client.scope, client.receive, 1)


async def test_a_client_that_leaves_while_sending_is_noticed() -> None:
    client = AsgiClient("POST", body=[])
    client.leave()
    with pytest.raises(ClientGone):
        await read_body(client.scope, client.receive, MIB)


@pytest.mark.parametrize(
    "given",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", None],
)
async def test_json_and_no_content_type_are_welcome(given: str | None) -> None:
    client = AsgiClient("POST", headers={"Content-Type": given} if given else {}, body=[b"{}"])
    assert await BODY.read(client.scope, client.receive) == Note()


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", "json"])
async def test_other_content_types_are_refused_before_the_body_is_read(given: str) -> None:
    client = AsgiClient("POST", headers={"Content-Type": given}, body=[b"nonsense"])
    with pytest.raises(Refusal, match=r"^Content-Type must be application/json$") as caught:
        await BODY.read(client.scope, client.receive)
    assert caught.value.status == 415


def test_unknown_fields_are_ignored() -> None:
    assert BODY.decode(b'{"title":"a","later":[1,{"x":null}]}') == Note("a")


@pytest.mark.parametrize("rest", [b" trailing {", b"}", b"\x00", b'\n\n{"title":"b"}', b"  "])
def test_what_follows_the_first_value_is_ignored(rest: bytes) -> None:
    assert BODY.decode(b'{"title":"a"}' + rest) == Note("a")


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).filter(lambda value: isinstance(value, dict | list | str)),
    st.sampled_from(["", " ", "\n\t"]),
    st.sampled_from(["x", "{", "]", '"', "0", "\\", ","]),
)
def test_the_first_value_ends_where_it_ends(value: Any, space: str, rest: str) -> None:
    text = json.dumps(value) + space + rest
    assert json.loads(first_value(text.encode())) == value


def test_null_means_not_given_for_fields_that_cannot_be_null() -> None:
    data = b'{"title":null,"size":null,"blocks":[{"text":"x","kind":null}],"limit":null} rest'
    assert BODY.decode(data) == Note(blocks=(Block("x"),), limit=None)


def test_nulls_inside_free_form_values_stay() -> None:
    note = BODY.decode(b'{"title":null,"free":{"kept":null,"deep":{"kept":null}}}')
    assert note.free is not None
    assert {name: bytes(value) for name, value in note.free.items()} == {
        "kept": b"null",
        "deep": b'{"kept":null}',
    }


def test_a_wrong_type_is_named_with_its_path() -> None:
    assert refused(b'{"blocks":[{"text":"x"},{"text":5}]}') == (
        "bad json: Expected `str`, got `int` - at `$.blocks[1].text`"
    )


def test_a_wrong_type_beside_a_null_is_still_refused() -> None:
    assert "$.size" in refused(b'{"title":null,"size":"big"}')


def test_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    cut = json.dumps({"title": "cut \ud83d", "free": {"a": "\udc00\\ud800"}}).encode()
    note = BODY.decode(cut)
    assert note.title == "cut �"
    assert note.free is not None
    assert json.loads(bytes(note.free["a"])) == "�\\ud800"


def test_whole_surrogate_pairs_survive_the_repair() -> None:
    assert BODY.decode(b'{"title":"\\ud83d\\ude00 \\ud83d"}').title == "😀 �"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nope",
        b"[]",
        b"null",
        b'"text"',
        b'{"title":"\xff"}',
        b'{"free":{"a":"\xff"}}',
        b'{"title":null,}',
        b'{"size":1e999}',
        b'{"size":' + b"9" * 5000 + b"}",
        b'{"x":' + b"[" * 100_000,
        b'{"free":{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
        b"\xef\xbb\xbf{}",
    ],
    ids=range(14),
)
def test_malformed_json_is_a_400_that_says_so(data: bytes) -> None:
    assert refused(data).startswith("bad json: ")


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b'{"title":"\xff"}', 10),
        (b'{"title":"caf\xe9"}', 13),
        ('{"title":"ü"}'.encode("latin-1"), 10),
        (b'{"title":"cut \xe2\x82', 14),
        (b"\xff\xfe{\x00}\x00", 0),
        (b'{"free":{"unread":"\xed\xa0\x80"}}', 19),
    ],
)
def test_a_body_that_is_not_utf_8_is_refused_like_other_malformed_json(
    data: bytes, at: int
) -> None:
    assert refused(data) == f"bad json: JSON is malformed: invalid UTF-8 (byte {at})"


def decoded(data: bytes) -> RunRequest | Refusal:
    try:
        return JsonBody(RunRequest).decode(data)
    except Refusal as refusal:
        return refusal


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_refusal(data: bytes) -> None:
    for text in (data, b'{"agent":"' + data, b'{"metadata":{"a":' + data + b"}}"):
        outcome = decoded(text)
        if isinstance(outcome, Refusal):
            assert (outcome.status, str(outcome)[:10]) == (400, "bad json: ")
        else:
            assert isinstance(json.loads(first_value(text)), dict)
