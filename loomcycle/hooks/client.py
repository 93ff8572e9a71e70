"""One callback: a POST with a deadline, its redirects followed, at most 1 MiB of answer read.

Specification: hooks.md sections 5 and 8. Nothing is signed, retried or remembered between calls;
what an answer means is ``loomcycle/hooks/chain.py``. Failures never hold an address or a body.
"""

from __future__ import annotations

import asyncio
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

DEFAULT_TIMEOUT_MS = 5_000
MAX_TIMEOUT_MS = 60_000
MAX_REDIRECTS = 10
MAX_ANSWER = 1 << 20
KEEPALIVE_S = 2.0
"""Shorter than common servers keep idle connections, so that none is lost under a request."""

_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class HookFailed(Exception):
    """No usable answer; the text says why, without address or body."""


class HookClient:
    """Calls back. The HTTP client is made at the first call."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def post(self, url: str, body: bytes, timeout_ms: int) -> bytes:
        """The body of a 2xx answer, cut at 1 MiB; 0 ms means the default. Raises HookFailed."""
        seconds = min(timeout_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS) / 1000
        client = await self._http()
        try:
            async with asyncio.timeout(seconds):
                return await _exchange(client, url, body)
        except TimeoutError:
            raise HookFailed(f"no answer within {seconds:g} s") from None
        except HookFailed:
            raise
        except Exception as cause:  # whatever a URL that nobody checked makes of the HTTP client
            raise HookFailed(type(cause).__name__) from cause

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _http(self) -> httpx.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(_new_client)
            return self._client


async def _exchange(client: httpx.AsyncClient, url: str, body: bytes) -> bytes:
    answer = bytearray()
    async with client.stream("POST", url, content=body, headers=_HEADERS) as response:
        if not response.is_success:
            raise HookFailed(f"status {response.status_code}")
        async for part in response.aiter_bytes():
            answer += part
            if len(answer) > MAX_ANSWER:
                raise HookFailed("an answer over 1 MiB")
    return bytes(answer)


def _new_client() -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        timeout=None,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )
