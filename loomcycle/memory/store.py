"""All scopes of memory that this process touched lately, and the operations on them.

Everything that reads or writes rows goes through here: the tool, administration, hooks, seeds.
Known secrets are masked on the way in (exact values only, kernel.md section 9).
"""

from __future__ import annotations

from collections import OrderedDict

from events.log import Log
from events.subjects import Subjects
from loomcycle.memory import writes
from loomcycle.memory.rows import Address, Page, Row
from loomcycle.memory.scope import Effect, MemoryScope
from loomcycle.memory.writes import Decide, Write
from loomcycle.redaction import Redactor

MAX_SCOPES = 10_000
MAX_CACHED_BYTES = 64 * 1024 * 1024
DEFAULT_SWEEP_MS = 900_000

_MILLISECOND_NS = 1_000_000


class RowStore:
    """``redactor`` None masks nothing; ``sweep_ms`` 0 or less keeps expired rows present."""

    def __init__(
        self,
        log: Log,
        subjects: Subjects,
        *,
        redactor: Redactor | None = None,
        sweep_ms: int = DEFAULT_SWEEP_MS,
        max_scopes: int = MAX_SCOPES,
        max_cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._log = log
        self._subjects = subjects
        self._redactor = redactor
        self._sweep_ns = sweep_ms * _MILLISECOND_NS if sweep_ms > 0 else None
        self._max_scopes = max_scopes
        self._max_bytes = max_cached_bytes
        self._scopes: OrderedDict[Address, MemoryScope] = OrderedDict()
        self._sizes: dict[Address, int] = {}
        self._cached_bytes = 0

    # --- masks ----------------------------------------------------------------------------

    def mask_text(self, text: str) -> str:
        """A key or prefix as it is stored."""
        if self._redactor is None:
            return text
        return self._redactor.redact(text, exact_only=True)[0]

    def mask_json(self, value: bytes) -> bytes:
        """A value as it is stored; unchanged byte for byte when there is nothing to mask."""
        if self._redactor is None:
            return value
        return self._redactor.redact_json(value, exact_only=True)[0]

    # --- operations -----------------------------------------------------------------------

    async def get(self, address: Address, key: str, now_ns: int) -> Row | None:
        """The live row; raises MemoryUnavailable."""
        scope = self._scope(address)
        try:
            return (await scope.catch_up()).live(self.mask_text(key), now_ns)
        finally:
            self._account(scope)

    async def page(self, address: Address, prefix: str, limit: int, now_ns: int) -> Page:
        """The first ``limit`` live rows by key; raises MemoryUnavailable."""
        scope = self._scope(address)
        try:
            return (await scope.catch_up()).page(self.mask_text(prefix), limit, now_ns)
        finally:
            self._account(scope)

    async def write(
        self, write: Write, decide: Decide, *, recovering_since_ns: int | None = None
    ) -> bytes:
        """Do one of ``loomcycle.memory.writes``, exactly once per effect id.

        ``write.key`` and the value in ``decide`` must be masked. Returns the result's JSON;
        raises MemoryRefused, MemoryUnavailable.
        """
        scope = self._scope(write.address)
        try:
            effect = Effect(write.key, write.effect_id, recovering_since_ns)
            return await scope.write(effect, decide)
        finally:
            self._account(scope)

    async def put(
        self,
        address: Address,
        key: str,
        value: bytes,
        *,
        now_ns: int,
        effect_id: str,
        ttl_s: int = 0,
        recovering_since_ns: int | None = None,
    ) -> None:
        """Set a row without cap or quota (administration and hooks)."""
        write = self._unlimited(address, key, now_ns, effect_id, ttl_s)
        decide = writes.set_value(write, self.mask_json(value))
        await self.write(write, decide, recovering_since_ns=recovering_since_ns)

    async def put_if_absent(
        self, address: Address, key: str, value: bytes, *, now_ns: int, effect_id: str
    ) -> bool:
        """Set a row unless there is a live one; whether it was set."""
        write = self._unlimited(address, key, now_ns, effect_id)
        decide = writes.set_if_absent(write, self.mask_json(value))
        return await self.write(write, decide) == b'{"ok":true}'

    async def delete(self, address: Address, key: str, *, now_ns: int, effect_id: str) -> bool:
        """Remove a row; whether there was one."""
        write = self._unlimited(address, key, now_ns, effect_id)
        return await self.write(write, writes.delete(write)) == b'{"deleted":true}'

    def _unlimited(
        self, address: Address, key: str, now_ns: int, effect_id: str, ttl_s: int = 0
    ) -> Write:
        return Write(
            address=address,
            key=self.mask_text(key),
            now_ns=now_ns,
            effect_id=effect_id,
            ttl_s=ttl_s,
        )

    # --- cache ----------------------------------------------------------------------------

    def _scope(self, address: Address) -> MemoryScope:
        scope = self._scopes.get(address)
        if scope is None:
            scope = MemoryScope(self._log, self._subjects, address, sweep_ns=self._sweep_ns)
            self._scopes[address] = scope
        else:
            self._scopes.move_to_end(address)
        return scope

    def _account(self, scope: MemoryScope) -> None:
        """Note the scope's size and drop the ones not used for longest; never this one."""
        if self._scopes.get(scope.address) is not scope:
            return
        size = scope.rows.footprint
        self._cached_bytes += size - self._sizes.get(scope.address, 0)
        self._sizes[scope.address] = size
        while len(self._scopes) > 1 and (
            len(self._scopes) > self._max_scopes or self._cached_bytes > self._max_bytes
        ):
            oldest = next(iter(self._scopes))
            if oldest == scope.address:
                self._scopes.move_to_end(oldest)
                continue
            del self._scopes[oldest]
            self._cached_bytes -= self._sizes.pop(oldest, 0)
