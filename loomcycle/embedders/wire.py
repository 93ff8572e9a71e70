"""One JSON question to an embeddings endpoint: timeouts, 429 pauses, error texts.

It knows nothing of any vendor's JSON. Every failure leaves as an :class:`EmbedderError`.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from loomcycle.embedders.base import EmbedderError
from loomcycle.providers.base import ProviderError
from loomcycle.providers.ratelimit import Backoff
from loomcycle.providers.transport import Transport

ERROR_BODY_LIMIT = 1024
ANSWER_LIMIT = 64 << 20


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds for a whole question, pauses included, and for each attempt; None = no limit.

    ``repeats`` says whether HTTP 429 is answered by a pause (providers.md section 3).
    """

    total_s: float | None = None
    attempt_s: float | None = None
    repeats: bool = True


async def ask(transport: Transport, path: str, body: bytes, patience: Patience) -> bytes:
    """The body of the answer. Raises :class:`EmbedderError`."""
    name = transport.endpoint.name
    backoff = Backoff(transport.endpoint.header_wait)
    try:
        async with asyncio.timeout(patience.total_s):
            while True:
                async with asyncio.timeout(patience.attempt_s):
                    status, answer, headers = await _once(transport, path, body)
                if status == 200:
                    return answer
                pause = backoff.next(headers) if patience.repeats and status == 429 else None
                if pause is None:
                    text = transport.mask(answer.decode("utf-8", "replace")).strip()
                    raise EmbedderError(f"{name} embeddings: status {status}: {text}")
                await transport.sleep(pause.seconds)
    except TimeoutError:
        raise EmbedderError(f"{name} embeddings: no answer in time") from None
    except ProviderError as cause:
        raise EmbedderError(f"{name} embeddings: {cause}") from None


async def _once(transport: Transport, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
    response = await transport.open("POST", path, body)
    try:
        good = response.status_code == 200
        limit = ANSWER_LIMIT if good else ERROR_BODY_LIMIT
        answer = await transport.read(response, limit, lenient=not good)
        return response.status_code, answer, dict(response.headers)
    finally:
        await response.aclose()
