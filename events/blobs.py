"""Content-addressed payloads over any log: chunks first, the part that makes it exist last.

A blob is named by the hex SHA-256 of its bytes and verified on every read, so two writers of one
blob cannot disturb each other. Recently used blobs are kept in memory, bounded by bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections import OrderedDict

from events.log import Log, LogError, Message, OutcomeUnknown, WrongSequence
from events.subjects import Subjects

CHUNK_BYTES = 768 * 1024
"""Fits a server with the default ``max_payload`` of 1 MB too, headers included."""

CACHE_BYTES = 64 * 1024 * 1024

_LAST = "z"
_IN_FLIGHT = 4
_ATTEMPTS = 3
_NAME = re.compile(r"[0-9a-f]{64}")


class ChunkedBlobs:
    """See :class:`events.log.Blobs`."""

    def __init__(self, log: Log, subjects: Subjects, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._log = log
        self._subjects = subjects
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[str, bytes] = OrderedDict()
        self._cached_size = 0

    async def put(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        if name in self._cached:
            self._cached.move_to_end(name)
            return name
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)] or [b""]
        last = self._subjects.blob(name, _LAST)
        if len(chunks) == 1 or await self._log.last(last) is None:
            for at in range(0, len(chunks) - 1, _IN_FLIGHT):
                await asyncio.gather(
                    *(
                        self._store(self._subjects.blob(name, f"{index:06}"), chunks[index])
                        for index in range(at, min(at + _IN_FLIGHT, len(chunks) - 1))
                    )
                )
            await self._store(last, chunks[-1])
        self._remember(name, data)
        return name

    async def _store(self, subject: str, chunk: bytes) -> None:
        """Write once; that it is there already is as good."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._log.append(subject, chunk, after=0)
            except OutcomeUnknown:
                if attempt == _ATTEMPTS:
                    raise
                continue
            except WrongSequence:
                pass
            return

    async def get(self, name: str) -> bytes:
        if name in self._cached:
            self._cached.move_to_end(name)
            return self._cached[name]
        if not _NAME.fullmatch(name):
            raise KeyError(name)
        parts = await self._log.read(self._subjects.blob_parts(name))
        last = self._subjects.blob(name, _LAST)
        if all(part.subject != last for part in parts):
            parts = await self._from_leader(name, last)
        data = _join(parts)
        if hashlib.sha256(data).hexdigest() != name:
            data = _join(await self._from_leader(name, last))
            if hashlib.sha256(data).hexdigest() != name:
                raise LogError(f"blob {name}: {len(data)} bytes do not have this SHA-256")
        self._remember(name, data)
        return data

    async def _from_leader(self, name: str, last: str) -> list[Message]:
        """Parts as the leader has them, for a replica that lags behind; KeyError when absent."""
        final = await self._log.last(last)
        if final is None:
            raise KeyError(name)
        parts = [final]
        index = 0
        while chunk := await self._log.last(self._subjects.blob(name, f"{index:06}")):
            parts.append(chunk)
            index += 1
        return parts

    def _remember(self, name: str, data: bytes) -> None:
        if len(data) > self._cache_bytes // 4 or name in self._cached:
            return
        self._cached[name] = data
        self._cached_size += len(data)
        while self._cached_size > self._cache_bytes:
            with contextlib.suppress(KeyError):
                self._cached_size -= len(self._cached.popitem(last=False)[1])


def _join(parts: list[Message]) -> bytes:
    """Chunks in the order of their numbers; the last part's subject sorts behind all digits."""
    return b"".join(part.data for part in sorted(parts, key=lambda part: part.subject))
