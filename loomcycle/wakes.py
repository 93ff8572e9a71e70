"""The payload of wake items: what a worker needs besides the run's id in the subject."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Wake(Struct, frozen=True):
    tenant: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Wake).decode


def wake_data(tenant: str) -> bytes:
    return _encode(Wake(tenant))


def wake_tenant(data: bytes) -> str:
    return _decode(data).tenant
