"""Sealed secrets of runs: AES-256-GCM under the deployment's master key, in the log's SEALS.

A seal is bound to its run and name and carries the id of its key; nothing here logs or returns
key material, and an error names ids only. Deleting a run's seals is the caller's duty.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from events.log import Log, Sealed, SealError
from events.subjects import Subjects

KEY_BYTES = 32
_VERSION = b"\x01"
_ID_BYTES = 8
_NONCE_BYTES = 12
_HEX = re.compile(r"[0-9a-fA-F]{64}")


def load_master_key(data_dir: Path, given: str = "") -> bytes:
    """The 32-byte master key: ``given`` (hex or base64), else ``<data_dir>/master.key``.

    The file is created once with mode 0600; concurrent creators agree on one key. Raises
    SealError for a malformed key.
    """
    if given:
        return _decode_key(given, "LOOMCYCLE_MASTER_KEY")
    path = data_dir / "master.key"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        draft = data_dir / f".master.key.{secrets.token_hex(8)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return _decode_key(path.read_text().strip(), str(path))


def _decode_key(text: str, source: str) -> bytes:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        key = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise SealError(f"{source}: the master key must be 32 bytes as 64 hex digits or base64")
    return key


class Sealer:
    """Seals and opens values; ``key_id`` tells keys apart without telling anything of them."""

    def __init__(self, master_key: bytes) -> None:
        if len(master_key) != KEY_BYTES:
            raise SealError(f"the master key must have {KEY_BYTES} bytes")
        self._aead = AESGCM(
            HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"run seals v1").derive(master_key)
        )
        mac = hmac.HMAC(master_key, hashes.SHA256())
        mac.update(b"key id")
        self._id = mac.finalize()[:_ID_BYTES]

    @property
    def key_id(self) -> str:
        return self._id.hex()

    def seal(self, context: str, plaintext: bytes) -> bytes:
        """Encrypt ``plaintext``; it opens only with the same ``context``."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        head = _VERSION + self._id
        sealed = self._aead.encrypt(nonce, plaintext, head + context.encode())
        return head + nonce + sealed

    def open(self, context: str, sealed: bytes) -> bytes:
        """Decrypt; raises SealError for another key, another context or damage."""
        head, key_id = sealed[: 1 + _ID_BYTES], sealed[1 : 1 + _ID_BYTES]
        if head[:1] != _VERSION:
            raise SealError(f"{context}: not a seal of a known version")
        if key_id != self._id:
            raise SealError(
                f"{context}: sealed with master key {key_id.hex()}, this process has {self.key_id}"
            )
        nonce = sealed[len(head) : len(head) + _NONCE_BYTES]
        try:
            return self._aead.decrypt(
                nonce, sealed[len(head) + _NONCE_BYTES :], head + context.encode()
            )
        except (InvalidTag, ValueError):
            raise SealError(f"{context}: the seal is damaged") from None


class LogSeals:
    """See :class:`events.log.Seals`."""

    def __init__(self, log: Log, subjects: Subjects, sealer: Sealer) -> None:
        self._log = log
        self._subjects = subjects
        self._sealer = sealer

    async def put(self, run_id: str, name: str, plaintext: bytes) -> None:
        subject = self._subjects.seal(run_id, name)
        await self._log.append(subject, self._sealer.seal(_context(run_id, name), plaintext))

    async def get(self, run_id: str, name: str) -> bytes | None:
        message = await self._log.last(self._subjects.seal(run_id, name))
        if message is None:
            return None
        return self._sealer.open(_context(run_id, name), message.data)

    async def delete(self, run_id: str) -> None:
        await self._log.purge(self._subjects.seals(run_id))

    async def next(self, after: int = 0) -> Sealed | None:
        message = await self._log.first(self._subjects.any("seal"), after=after)
        if message is None:
            return None
        run_id = self._subjects.parse(message.subject).run_id
        return Sealed(run_id, message.seq, message.time_ns)


def _context(run_id: str, name: str) -> str:
    return f"seal {run_id}/{name}"
