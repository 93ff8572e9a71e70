"""One provider's HTTP connection pool: timeouts, error bodies, 429 pauses, abort.

Every failure leaves as a :class:`ProviderError` with the texts of providers.md section 3; a key
never appears in one. It knows nothing about any vendor's JSON.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from loomcycle.providers import decoding
from loomcycle.providers.base import ProviderError, RetryDelta
from loomcycle.providers.errors import STALL, TransportFailure
from loomcycle.providers.framing import Framing, LineTooLong, SseFraming
from loomcycle.providers.ratelimit import Backoff, HeaderWait, retry_after

if TYPE_CHECKING:
    import httpx

Sleep = Callable[[float], Awaitable[None]]
ByteStream = AsyncGenerator[bytes, None]

ERROR_BODY_LIMIT = 4096
LISTING_LIMIT = 16 << 20
TLS_TIMEOUT = 10.0
DRAIN_TIMEOUT = 0.05
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where and how a vendor is called.

    ``name`` starts error texts and names the provider of retry events. ``secret`` is masked in
    every text that leaves. Timeouts are seconds: until the response headers, and between bytes;
    None = no limit.
    """

    name: str
    base_url: str
    headers: dict[str, str] = {}
    secret: str = ""
    accept: str = "text/event-stream"
    framing: Callable[[], Framing] = SseFraming
    header_wait: HeaderWait = retry_after
    header_timeout: float | None = 60.0
    idle_timeout: float | None = 90.0


class Transport:
    """Opens exchanges with one vendor. The HTTP client is created at the first call."""

    def __init__(self, endpoint: Endpoint, *, sleep: Sleep = asyncio.sleep) -> None:
        self.endpoint = endpoint
        self.sleep = sleep
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    def post(self, path: str, body: bytes) -> Exchange:
        """A streaming call; nothing is sent before its frames are asked for."""
        return Exchange(self, path, body)

    async def get_json(self, path: str) -> Any:
        """The decoded body of a GET; raises :class:`ProviderError`."""
        name = self.endpoint.name
        if self._client is None:
            await self._knock()
        response = await self.open("GET", path)
        try:
            if response.status_code != 200:
                raise ProviderError(await self.failure_text(response))
            body = await self.read(response, LISTING_LIMIT)
        finally:
            await response.aclose()
        try:
            return decoding.read(msgspec.json.decode, body)
        except decoding.Unreadable as error:
            raise ProviderError(f"{name}: unreadable answer to GET {path}: {error}") from error

    async def open(self, method: str, path: str, body: bytes | None = None) -> httpx.Response:
        """Send a request and return the response once its headers are in (body unread)."""
        client = await self._http()
        import httpx

        url = self.endpoint.base_url + path
        opening = _Opening(self.endpoint.header_timeout)
        try:
            request = client.build_request(
                method, url, content=body, extensions={"trace": opening.trace}
            )
            async with opening.limit:
                return await client.send(request, stream=True)
        except TimeoutError as error:
            cause = opening.waiting_for if opening.limit.expired() else self._cause(error)
            raise TransportFailure(f"http: {cause}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransportFailure(f"http: {self._cause(error)}") from error
        finally:
            await opening.release()

    async def chunks(
        self, response: httpx.Response, idle: Callable[[], float | None]
    ) -> ByteStream:
        """The body as it arrives; ``idle()`` is asked before each wait."""
        import httpx

        async with aclosing(cast(ByteStream, response.aiter_bytes())) as body:
            while True:
                seconds = idle()
                try:
                    async with asyncio.timeout(seconds):
                        chunk = await anext(body, None)
                except TimeoutError as error:
                    waited = f" (no data for {seconds:g}s)" if seconds is not None else ""
                    raise TransportFailure(f"{STALL}{waited}", partial=True) from error
                except (httpx.HTTPError, httpx.StreamError) as error:
                    text = f"stream read: {self._cause(error)}"
                    raise TransportFailure(text, partial=True) from error
                if chunk is None:
                    return
                yield chunk

    async def failure_text(self, response: httpx.Response) -> str:
        """``<name> <status>: <body>``; whatever part of the body could be read is kept."""
        body = await self.read(response, ERROR_BODY_LIMIT, lenient=True)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self.mask(decoder.decode(body)).strip()
        return f"{self.endpoint.name} {response.status_code}: {text}"

    async def close(self) -> None:
        """Close the pool; further calls fail."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()

    async def read(self, response: httpx.Response, limit: int, *, lenient: bool = False) -> bytes:
        """At most ``limit`` bytes of a body; ``lenient`` takes what came before a failure.

        Raises :class:`TransportFailure`.
        """
        body = bytearray()
        try:
            async with aclosing(self.chunks(response, lambda: self.endpoint.idle_timeout)) as parts:
                async for part in parts:
                    body += part
                    if len(body) >= limit:
                        break
        except TransportFailure:
            if not lenient:
                raise
        return bytes(body[:limit])

    async def _knock(self) -> None:
        """Find out that nothing serves on this machine before the HTTP client costs its memory."""
        try:
            address = urlsplit(self.endpoint.base_url)
            if address.hostname not in LOOPBACK:
                return
            port = address.port or (443 if address.scheme == "https" else 80)
            _, writer = await asyncio.open_connection(address.hostname, port)
        except OSError as error:
            raise TransportFailure(f"http: {self._cause(error)}") from error
        except ValueError:
            raise ProviderError(f"{self.endpoint.name}: the base URL is not one") from None
        writer.close()

    async def _http(self) -> httpx.AsyncClient:
        if self._closed:
            raise ProviderError("http: the provider is closed")
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    try:
                        self._client = await asyncio.to_thread(_new_client, self.endpoint)
                    except (ImportError, ValueError, OSError) as error:
                        raise ProviderError(f"http: {self.mask(str(error))}") from error
        return self._client

    def _cause(self, error: BaseException) -> str:
        """The error's text and, where it hides it, that of the socket error beneath."""
        text = str(error) or type(error).__name__
        beneath: BaseException | None = error
        while beneath is not None:
            if isinstance(beneath, BaseExceptionGroup):
                beneath = beneath.exceptions[0]
            if isinstance(beneath, OSError) and str(beneath) not in text:
                text = f"{text}: {beneath}"
            beneath = beneath.__cause__ or beneath.__context__
        return self.mask(text)

    def mask(self, text: str) -> str:
        """``text`` without the endpoint's key."""
        secret = self.endpoint.secret
        return text.replace(secret, "[redacted]") if secret else text


class _Opening:
    """Times the phases of one request until its response headers are in.

    Sending has no limit of its own. A connection whose TLS handshake is broken off has no owner
    in the HTTP client, so :meth:`release` closes it.
    """

    def __init__(self, header_timeout: float | None) -> None:
        self.limit = asyncio.timeout(None)
        self.waiting_for = ""
        self._header_timeout = header_timeout
        self._connected: Any = None
        self._handshaking: Any = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by the HTTP client at each step (httpcore's ``trace`` extension)."""
        match event.split(".", 1)[-1]:
            case "connect_tcp.complete":
                self._connected = info["return_value"]
            case "start_tls.started":
                self._handshaking = self._connected
                self._arm("TLS handshake timeout", TLS_TIMEOUT)
            case "start_tls.complete":
                self._handshaking = None
                self.limit.reschedule(None)
            case "receive_response_headers.started":
                self._arm("timeout awaiting response headers", self._header_timeout)

    async def release(self) -> None:
        if self._handshaking is not None:
            await self._handshaking.aclose()

    def _arm(self, what: str, seconds: float | None) -> None:
        if seconds is None:
            return
        self.waiting_for = f"{what} ({seconds:g}s)"
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)


class Exchange:
    """One streaming POST, repeated after 429 with identical bytes.

    Set ``ended`` at the vendor's last frame: what follows is read only to give the connection
    back to the pool, so a server that does not hang up costs at most ``DRAIN_TIMEOUT``.
    """

    def __init__(self, transport: Transport, path: str, body: bytes) -> None:
        self.ended = False
        self._transport = transport
        self._path = path
        self._body = body

    async def frames(self) -> AsyncGenerator[RetryDelta | bytes, None]:
        """Frames of the answer; a :class:`RetryDelta` before each pause.

        Raises :class:`ProviderError`; ``partial`` is set once the answer had begun. Closing the
        generator aborts the exchange at once.
        """
        transport, endpoint = self._transport, self._transport.endpoint
        backoff = Backoff(endpoint.header_wait)
        while True:
            response = await transport.open("POST", self._path, self._body)
            try:
                if response.status_code == 200:
                    async with aclosing(self._answer(response)) as frames:
                        async for frame in frames:
                            yield frame
                    return
                failure = await transport.failure_text(response)
            finally:
                await response.aclose()
            pause = backoff.next(response.headers) if response.status_code == 429 else None
            if pause is None:
                raise ProviderError(failure)
            yield RetryDelta(endpoint.name, pause.attempt, pause.milliseconds, pause.reason)
            await transport.sleep(pause.seconds)

    def cut_short(self) -> TransportFailure:
        """The error for an answer whose body ended properly but before its last frame."""
        return TransportFailure("stream read: unexpected end of stream", partial=True)

    async def _answer(self, response: httpx.Response) -> ByteStream:
        framing = self._transport.endpoint.framing()
        try:
            async with aclosing(self._transport.chunks(response, self._patience)) as chunks:
                async for chunk in chunks:
                    if not self.ended:
                        for frame in framing.feed(chunk):
                            yield frame
            for frame in framing.finish():
                yield frame
        except LineTooLong as error:
            raise ProviderError(f"stream read: {error}", partial=True) from error
        except TransportFailure:
            if not self.ended:
                raise

    def _patience(self) -> float | None:
        return DRAIN_TIMEOUT if self.ended else self._transport.endpoint.idle_timeout


def _new_client(endpoint: Endpoint) -> httpx.AsyncClient:
    """Importing httpx and loading certificates takes 0.15 s, hence never on the event loop."""
    import httpx

    return httpx.AsyncClient(
        headers={
            "Content-Type": "application/json",
            "Accept": endpoint.accept,
            "Accept-Encoding": "identity",
            "User-Agent": "loomcycle",
            **endpoint.headers,
        },
        timeout=None,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
    )
