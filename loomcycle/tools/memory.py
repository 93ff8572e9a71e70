"""Memory: rows of JSON that outlive a run. Specification: memory.md sections 2 to 4 and 13.

This module checks who may do what and words the answers; its input is declared in
``memory_input.py``, what a write does to the rows in ``loomcycle/memory/writes.py``. Vectors, the
memory layer, SQL and path names are refused in the words of a deployment without them.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from loomcycle.memory import writes
from loomcycle.memory.errors import MemoryRefused, MemoryUnavailable
from loomcycle.memory.rows import Address
from loomcycle.memory.store import RowStore
from loomcycle.memory.writes import Decide, Limits, Write
from loomcycle.tools.base import CallContext, Repeat, ToolOutput
from loomcycle.tools.memory_input import OPERATIONS, SQL_OPERATIONS, MemoryInput, input_schema
from loomcycle.tools.policy import side_effect_class

DEFAULT_MAX_VALUE_BYTES = 65_536
DEFAULT_MAX_SCOPE_BYTES = 1_048_576
DEFAULT_LIST_LIMIT = 100
MAX_LIST_LIMIT = 1000

NO_VECTORS = (
    "vector index not configured: this server stores no embeddings; write without embed and read"
    " with get or list"
)
NO_MEMORY_LAYER = "add/recall require a memory-layer backend; this agent's backend has none"
NO_NAMES = "path names are not available in this deployment; address the row by key"


class _Entry(Struct):
    key: str
    value: Raw
    expires_at: str | None


_decoder = msgspec.json.Decoder(MemoryInput)
_scope_list = msgspec.json.Decoder(list[str])
_encode = msgspec.json.Encoder().encode


class Memory:
    """``max_value_bytes`` and ``max_scope_bytes``: 0 or less = no limit."""

    name = "Memory"
    repeat = Repeat.OWN_STORE
    side_effect_class = side_effect_class("Memory")
    description = (
        "Keep JSON values by key beyond this run, private to this agent (scope agent) or to the"
        " user (scope user). get, set, delete and list work on whole values; incr, merge,"
        " append_dedupe and bounded_list change a value atomically."
    )

    def __init__(
        self,
        store: RowStore | None,
        *,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        max_scope_bytes: int = DEFAULT_MAX_SCOPE_BYTES,
    ) -> None:
        self._store = store
        self._max_value_bytes = max_value_bytes
        self._max_scope_bytes = max_scope_bytes
        self.input_schema = input_schema()

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        if self._store is None:
            return _error("memory store not configured on this server")
        try:
            input_json.decode()
            request = _decoder.decode(input_json)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _error(f"invalid input JSON: {error}")
        try:
            return ToolOutput((await self._perform(self._store, request, context)).decode())
        except MemoryRefused as refusal:
            return _error(refusal.reason if refusal.bare else f"{request.op}: {refusal.reason}")
        except MemoryUnavailable as failure:
            return _error(f"{request.op}: {failure.reason}")
        except RecursionError:
            return _error(f"{request.op}: value is nested too deeply")

    async def _perform(self, store: RowStore, request: MemoryInput, context: CallContext) -> bytes:
        op = request.op or ""
        if op in SQL_OPERATIONS:
            raise _sql_refusal(request.scope or "", context)
        address = _address(request.scope or "", context)
        if not op:
            raise MemoryRefused("missing required field: op", bare=True)
        handler = _HANDLERS.get(op)
        if handler is None:
            raise MemoryRefused(
                f'unknown op "{op}" (must be one of: {", ".join(OPERATIONS)})', bare=True
            )
        quota = context.plan.memory_quota_bytes or self._max_scope_bytes
        limits = Limits(self._max_value_bytes, quota)
        return await handler(_Call(store, request, address, context, limits))


class _Call(NamedTuple):
    """One decoded call of an agent that may use ``address``."""

    store: RowStore
    request: MemoryInput
    address: Address
    context: CallContext
    limits: Limits

    def key(self) -> str:
        if not self.request.key:
            raise MemoryRefused("missing required field: key")
        return self.store.mask_text(self.request.key)

    def value(self) -> bytes:
        if self.request.value is UNSET:
            raise MemoryRefused("missing required field: value")
        return self.store.mask_json(bytes(self.request.value))

    def write(self) -> Write:
        return Write(
            address=self.address,
            key=self.key(),
            now_ns=self.context.now_ns,
            effect_id=self.context.effect_id or uuid.uuid4().hex,
            ttl_s=self.request.ttl or 0,
            limits=self.limits,
        )

    async def perform(self, write: Write, decide: Decide) -> bytes:
        return await self.store.write(
            write, decide, recovering_since_ns=self.context.recovering_since
        )


async def _get(call: _Call) -> bytes:
    if not call.request.key and call.request.path:
        raise MemoryRefused(NO_NAMES)
    row = await call.store.get(call.address, call.key(), call.context.now_ns)
    if row is None:
        return b'{"value":null,"expires_at":null}'
    return b'{"value":%b,"expires_at":%b}' % (row.value, _encode(timestamp(row.expires_at_ns)))


async def _list(call: _Call) -> bytes:
    limit = call.request.limit or 0
    limit = min(limit, MAX_LIST_LIMIT) if limit > 0 else DEFAULT_LIST_LIMIT
    prefix = call.request.prefix or ""
    page = await call.store.page(call.address, prefix, limit, call.context.now_ns)
    entries = [
        _Entry(key, Raw(row.value), timestamp(row.expires_at_ns)) for key, row in page.entries
    ]
    return _encode({"entries": entries, "truncated": page.truncated})


async def _set(call: _Call) -> bytes:
    write, value = call.write(), call.value()
    if call.request.path:
        raise MemoryRefused(NO_NAMES)
    embedding = _no_vectors() if call.request.embed else None
    return await call.perform(write, writes.set_value(write, value, embedding=embedding))


async def _delete(call: _Call) -> bytes:
    write = call.write()
    return await call.perform(write, writes.delete(write))


async def _incr(call: _Call) -> bytes:
    write, delta = call.write(), call.request.delta
    return await call.perform(write, writes.incr(write, 1 if delta is None else delta))


async def _merge(call: _Call) -> bytes:
    write, value = call.write(), call.value()
    return await call.perform(write, writes.merge(write, value))


async def _append_dedupe(call: _Call) -> bytes:
    write, value = call.write(), call.value()
    return await call.perform(write, writes.append_dedupe(write, value))


async def _bounded_list(call: _Call) -> bytes:
    write, value = call.write(), call.value()
    decide = writes.bounded_list(write, value, call.request.limit or 0)
    return await call.perform(write, decide)


async def _search(call: _Call) -> bytes:
    if not call.request.query:
        raise MemoryRefused("missing required field: query")
    raise _no_vectors()


async def _memory_layer(call: _Call) -> bytes:
    raise MemoryRefused(NO_MEMORY_LAYER, "capability_unsupported", bare=True)


_HANDLERS: dict[str, Callable[[_Call], Awaitable[bytes]]] = {
    "get": _get,
    "set": _set,
    "delete": _delete,
    "list": _list,
    "incr": _incr,
    "search": _search,
    "merge": _merge,
    "append_dedupe": _append_dedupe,
    "bounded_list": _bounded_list,
    "add": _memory_layer,
    "recall": _memory_layer,
}


def timestamp(unix_ns: int | None) -> str | None:
    """RFC 3339 in UTC with as many fractional digits as needed."""
    if unix_ns is None:
        return None
    seconds, fraction = divmod(unix_ns, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


def _address(scope: str, context: CallContext) -> Address:
    """The scope's rows, if the agent may use them; raises MemoryRefused."""
    allowed = context.plan.memory_scopes
    if not scope:
        raise MemoryRefused("missing required field: scope", bare=True)
    if not allowed:
        raise MemoryRefused(
            "memory access denied: memory_scopes of this agent is empty; list agent or user there",
            bare=True,
        )
    if scope not in allowed:
        raise MemoryRefused(
            f'memory access denied: scope "{scope}" is not in memory_scopes of this agent'
            f" (allowed: {', '.join(allowed)})",
            bare=True,
        )
    return Address(context.tenant, scope, _scope_id(scope, context))


def _scope_id(scope: str, context: CallContext) -> str:
    match scope:
        case "agent":
            if not context.plan.agent:
                raise MemoryRefused('scope "agent" needs an agent name in the run', bare=True)
            return context.plan.agent
        case "user":
            if not context.user_id:
                raise MemoryRefused(
                    'scope "user" needs a user_id; start the run with one', bare=True
                )
            return context.user_id
        case "run":
            raise MemoryRefused('scope "run" is for sql_* operations only', bare=True)
        case _:
            raise MemoryRefused(f'unknown scope "{scope}"; use agent or user', bare=True)


def _sql_refusal(scope: str, context: CallContext) -> MemoryRefused:
    """Why this SQL operation is refused, gates in the order of sql-memory.md section 2."""
    extra = context.plan.extra.get("sql_scopes")
    allowed = _scope_list.decode(extra) if extra is not None else None
    if not scope:
        return MemoryRefused("missing required field: scope")
    if not allowed:
        return MemoryRefused("this agent has no sql_scopes")
    if scope not in allowed:
        return MemoryRefused(f'scope "{scope}" is not in this agent\'s sql_scopes')
    if scope == "user" and not context.user_id:
        return MemoryRefused('scope "user" needs a user_id; start the run with one')
    return MemoryRefused("SQL memory is not enabled on this server")


def _no_vectors() -> MemoryRefused:
    return MemoryRefused(NO_VECTORS, "vector_unsupported", bare=True)


def _error(text: str) -> ToolOutput:
    return ToolOutput(text, is_error=True)
