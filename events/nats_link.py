"""The connection to a NATS server: nats-py underneath, with a synchronous way in and out.

Nothing that was refused or timed out is ever sent later: bytes leave in the same turn of the
event loop or not at all. Replies come through one private inbox to futures; no task, queue or
timer per request. It knows nothing of streams beyond the error envelope of their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import StaleConnectionError

from events.log import LogError, LogFull, LogUnavailable, OutcomeUnknown

log = logging.getLogger(__name__)

Receive = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Called with (subject, reply, data, raw headers or None)."""

Collect = Callable[[bytes, bytes | None], bool]
"""Called with (data, raw headers) of each of several replies; True when it was the last."""

REQUEST_TIMEOUT_S = 5.0
_RECONNECT_WAIT_S = 0.05
_MAX_SUBJECT = 1024
_NO_RESPONDERS = b"NATS/1.0 503"


class ApiError(msgspec.Struct, frozen=True):
    """JetStream's error envelope."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _Waiting:
    __slots__ = ("collect", "deadline", "future", "patience")

    def __init__(
        self,
        future: asyncio.Future[tuple[bytes, bytes | None]],
        deadline: float,
        patience: float,
        collect: Collect | None,
    ) -> None:
        self.future = future
        self.deadline = deadline
        self.patience = patience
        self.collect = collect


class Link(Client):
    """One connection. Use :func:`open_link`; all methods belong to its event loop's thread."""

    def __init__(self, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        self.reconnected: list[Callable[[], None]] = []
        """Called after each reconnect, subscriptions already restored."""
        self.lost: list[Callable[[], None]] = []
        """Called when the connection broke or was closed."""
        self._loop = asyncio.get_running_loop()
        self._receivers: dict[int, Receive] = {}
        self._waiting: dict[bytes, _Waiting] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self._count = 0
        self._out: list[bytes] = []
        self._out_scheduled = False
        self._reply_prefix = b"_INBOX.%s." % self._nuid.next()

    # --- sending --------------------------------------------------------------------------

    def send(self, *parts: bytes) -> None:
        """Write protocol bytes in this turn of the loop; raises LogUnavailable, sending nothing."""
        if not self.is_connected:
            raise LogUnavailable("not connected to the NATS server")
        self._out += parts
        if not self._out_scheduled:
            self._out_scheduled = True
            self._loop.call_soon(self._write_out)

    def _write_out(self) -> None:
        self._out_scheduled = False
        out, self._out = self._out, []
        if out and self.is_connected and self._transport is not None:
            self._transport.write(b"".join(out))

    def publish_now(self, subject: bytes, data: bytes, reply: bytes = b"") -> None:
        """Publish without an answer; raises LogUnavailable."""
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data))

    def request_now(
        self,
        subject: bytes,
        data: bytes,
        headers: bytes = b"",
        *,
        collect: Collect | None = None,
        timeout_s: float = 0.0,
    ) -> asyncio.Future[tuple[bytes, bytes | None]]:
        """Publish and return the future answer (data, raw headers).

        ``headers``: header lines, each ended by CRLF. Raises LogUnavailable when not connected
        and LogFull when the message is too large; the future fails with OutcomeUnknown.
        """
        size = len(data)
        if size + len(headers) > self._max_payload:
            raise LogFull(
                f"message of {size} bytes exceeds the server's max_payload {self._max_payload}"
            )
        if len(subject) > _MAX_SUBJECT:
            raise LogError(f"subject of {len(subject)} bytes exceeds {_MAX_SUBJECT}")
        self._count += 1
        token = b"%d" % self._count
        reply = self._reply_prefix + token
        if headers:
            head = len(headers) + 12  # "NATS/1.0" CRLF ... CRLF
            self.send(
                b"HPUB %s %s %d %d\r\nNATS/1.0\r\n%s\r\n%s\r\n"
                % (subject, reply, head, head + size, headers, data)
            )
        else:
            self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, size, data))
        future: asyncio.Future[tuple[bytes, bytes | None]] = self._loop.create_future()
        patience = timeout_s or self.timeout_s
        deadline = self._loop.time() + patience
        self._waiting[token] = _Waiting(future, deadline, patience, collect)
        if self._ticking is None or deadline < self._ticking.when():
            self._tick_at(deadline)
        return future

    # --- receiving ------------------------------------------------------------------------

    def attach(self, subject: str, receive: Receive, queue: str = "") -> int:
        """Subscribe for as long as the link lives; ``receive`` is called on the loop."""
        self._sid += 1
        sid = self._sid
        self._subs[sid] = Subscription(self, sid, subject=subject, queue=queue)
        self._receivers[sid] = receive
        if self.is_connected:
            self.send(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def detach(self, sid: int) -> None:
        self._receivers.pop(sid, None)
        if self._subs.pop(sid, None) is not None and self.is_connected:
            self.send(b"UNSUB %d\r\n" % sid)

    async def settle(self) -> None:
        """Wait until the server has seen everything sent so far; quietly gives up when it broke."""
        if not self.is_connected:
            return
        self._write_out()
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            await self.flush(timeout=2)

    async def _process_pong(self) -> None:
        """A waiter that gave up or was cancelled must not end the connection's read loop."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def fresh_inbox(self) -> str:
        """A subject nobody else listens on."""
        return f"_INBOX.{self._nuid.next().decode()}"

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        receive = self._receivers.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            receive(subject, reply, data, headers)
        except Exception:
            log.exception("a receiver of NATS messages failed")

    def _on_reply(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        token = subject[len(self._reply_prefix) :]
        entry = self._waiting.get(token)
        if entry is None:
            return
        if entry.collect is not None and not (headers and headers.startswith(_NO_RESPONDERS)):
            entry.deadline = self._loop.time() + entry.patience
            if not entry.collect(data, headers):
                return
        del self._waiting[token]
        if not entry.future.done():
            entry.future.set_result((data, headers))

    def _tick(self) -> None:
        self._ticking = None
        now = self._loop.time()
        for token in [t for t, entry in self._waiting.items() if entry.deadline <= now]:
            self._fail(self._waiting.pop(token), "the NATS server did not answer in time")
        if self._waiting:
            self._tick_at(min(entry.deadline for entry in self._waiting.values()))

    def _tick_at(self, deadline: float) -> None:
        """Look at the deadlines when the first of them is due."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._ticking = self._loop.call_at(deadline, self._tick)

    @staticmethod
    def _fail(entry: _Waiting, reason: str) -> None:
        if not entry.future.done():
            entry.future.set_exception(OutcomeUnknown(reason))
            entry.future.exception()  # whoever awaits it still sees it; nobody else is warned

    # --- life -----------------------------------------------------------------------------

    def _lost(self) -> None:
        """Answers of a lost connection never come: whatever waits for one does not know."""
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            self._fail(entry, "the connection broke before the NATS server answered")
        for callback in list(self.lost):
            callback()

    async def _process_op_err(self, e: Exception) -> None:
        await super()._process_op_err(e)
        self._lost()

    async def _process_err(self, err_msg: str) -> None:
        """A protocol error costs the connection, never the client: reconnect for ever."""
        if self.is_connected and "permissions violation" not in err_msg:
            log.warning("the NATS server reported %s", err_msg)
            await self._process_op_err(StaleConnectionError())
            return
        await super()._process_err(err_msg)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        self._write_out()
        await super()._close(status, do_cbs)
        if status == Client.CLOSED:
            self._lost()
            if self._ticking is not None:
                self._ticking.cancel()
                self._ticking = None

    def listen_for_replies(self) -> None:
        self.attach((self._reply_prefix + b"*").decode(), self._on_reply)


async def open_link(
    servers: str | list[str],
    *,
    name: str,
    timeout_s: float = REQUEST_TIMEOUT_S,
    connect_timeout_s: float = 5.0,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Link:
    """Connect, retrying for ``connect_timeout_s``; raises LogUnavailable."""
    link = Link(timeout_s)
    failures: list[str] = []

    async def on_error(error: Exception) -> None:
        failures.append(f"{type(error).__name__}: {error}")
        del failures[:-1]
        log.debug("NATS client: %s", failures[0])

    async def on_reconnect() -> None:
        for callback in list(link.reconnected):
            callback()

    options: dict[str, Any] = {
        "name": name,
        "error_cb": on_error,
        "reconnected_cb": on_reconnect,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_WAIT_S,
        "connect_timeout": 2,
        "ping_interval": 5,
        "max_outstanding_pings": 2,
        "user": user,
        "password": password,
        "token": token,
        "user_credentials": credentials,
        "tls": tls,
    }
    try:
        async with asyncio.timeout(connect_timeout_s):
            await link.connect(servers, **options)
    except (TimeoutError, OSError, NatsError) as error:
        await link.close()
        reason = failures[-1] if failures else str(error)
        raise LogUnavailable(f"cannot connect to the NATS server: {reason}") from error
    link.listen_for_replies()
    return link
