"""Complete answers: JSON, plain text, and the two shapes of errors (http-runs.md section 1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

encode_json = msgspec.json.Encoder().encode


class JsonReply(Response):
    """``content`` is anything msgspec encodes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


def text_error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """``message`` and a newline as plain text that browsers do not sniff."""
    return Response(
        f"{message}\n",
        status_code=status,
        media_type="text/plain",
        headers={"X-Content-Type-Options": "nosniff", **(headers or {})},
    )


def json_error(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    **extra: str | int,
) -> Response:
    """The envelope ``{"code", "error"}`` with ``extra`` keys."""
    return JsonReply({"code": code, "error": message, **extra}, status, headers)
