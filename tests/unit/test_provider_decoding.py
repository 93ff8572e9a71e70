"""What vendors send is read, or it is one error; of a stream's frame nothing at all."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw, Struct

from loomcycle.providers import decoding

DEEP = b"[" * 5000 + b"]" * 5000


class _Frame(Struct):
    text: str = ""
    args: Raw = Raw()


_decode = msgspec.json.Decoder(_Frame).decode

UNREADABLE = [
    b"{torn",
    b"[1]",
    b'{"text":1}',
    b'{"text":"\\ud800"}',
    b'{"text":"caf\xff"}',
    b'{"more":"caf\xff"}',
    b'{"caf\xff":1}',
    b'{"args":{"a":"caf\xff"}}',
    b'{"args":{"a":"\\ud800"}}',
    b'{"more":' + DEEP + b"}",
    b'{"args":' + DEEP + b"}",
]


@pytest.mark.parametrize("data", UNREADABLE, ids=[repr(data[:24]) for data in UNREADABLE])
def test_what_cannot_be_read_is_one_error_and_no_frame(data: bytes) -> None:
    assert decoding.frame(_decode, data) is None
    with pytest.raises(decoding.Unreadable) as caught:
        decoding.read(_decode, data)
    assert str(caught.value)


def test_what_can_be_read_is() -> None:
    frame = decoding.frame(_decode, '{"text":"grüße","args":{"a":1}}'.encode())
    assert frame is not None
    assert (frame.text, bytes(frame.args)) == ("grüße", b'{"a":1}')
