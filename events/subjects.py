"""Names of everything in the log: one reversible encoding of names into subject tokens.

A subject is built here or nowhere, so that no name from outside can act as a wildcard, split a
token, or make a subject longer than 1 KiB (the server closes connections over 4 KiB).
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import lru_cache

from msgspec import Struct

from events.ids import slot

LANES = 32
"""Lanes of the start queue; each is served in turn, which gives users fair shares."""

MAX_NAME_BYTES = 64
"""A longer name becomes ``~`` and its SHA-256: such a token cannot be decoded again."""

STATE_AREAS = frozenset({"mem", "path", "doc", "eval", "hook", "sql", "agent", "budget"})
"""First tokens of the STATE stream."""

_MAX_NAMES = 5
_VERBATIM = re.compile(r"[A-Za-z0-9_-]+")
_VERBATIM_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")


class NotReversible(ValueError):
    """The token is a hash: the name stands in the event, not in the subject."""


@lru_cache(maxsize=4096)
def encode(name: str) -> str:
    """One subject token for any text: at most 192 bytes of ``[A-Za-z0-9_=~-]``."""
    raw = name.encode("utf-8", "surrogatepass")
    if not raw:
        return "="
    if len(raw) > MAX_NAME_BYTES:
        return "~" + hashlib.sha256(raw).hexdigest()
    if _VERBATIM.fullmatch(name):
        return name
    return "".join(chr(b) if b in _VERBATIM_BYTES else f"={b:02X}" for b in raw)


def decode(token: str) -> str:
    """Inverse of :func:`encode`.

    Raises :class:`NotReversible` for a hashed name, ValueError for no token of ours.
    """
    if token == "=":
        return ""
    if token.startswith("~"):
        raise NotReversible(f"subject token {token!r} is the hash of a name over 64 bytes")
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not an encoded name")
    if "=" not in token:
        return token
    head, *rest = token.split("=")
    raw = head.encode() + b"".join(bytes([int(r[:2], 16)]) + r[2:].encode() for r in rest)
    return raw.decode("utf-8", "surrogatepass")


def name_or_hash(token: str) -> str:
    """The decoded name, or the token itself where it is a hash."""
    return token if token.startswith("~") else decode(token)


def lane_of(tenant: str, user_id: str, run_id: str) -> int:
    """Lane of a start: stable hash of tenant and user, of the run for an empty user."""
    key = f"{tenant}\0{user_id}" if user_id else run_id
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % LANES


class Parsed(Struct, frozen=True, kw_only=True):
    """What a subject names. A name over 64 bytes appears as its ``~`` token.

    ``kind`` is one of journal, inbox, session, start, wake, channel, definition, memory,
    agent, path, doc, eval, hook, sql, timer, due, lease, seal, blob, live, signal. Fields that
    the kind does not have are empty. ``names`` holds all decoded tokens after the kind.
    """

    kind: str
    names: tuple[str, ...] = ()
    slot: str = ""
    tenant: str = ""
    run_id: str = ""
    session_id: str = ""
    user_id: str = ""
    lane: int = -1
    scope: str = ""
    scope_id: str = ""
    key: str = ""
    name: str = ""


_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "wake": ("wake", ("slot", "run_id")),
    "chan": ("channel", ("tenant", "scope", "scope_id", "name")),
    "def": ("definition", ("tenant", "key", "name")),
    "mem": ("memory", ("tenant", "scope", "scope_id", "key")),
    "agent": ("agent", ("tenant", "name")),
    "timer": ("timer", ("key", "name")),
    "due": ("due", ("key", "name")),
    "lease": ("lease", ("name",)),
    "seal": ("seal", ("run_id", "name")),
    "blob": ("blob", ("name", "key")),
    "live": ("live", ("run_id",)),
    "sig": ("signal", ("run_id",)),
}
"""First token -> kind and the fields of the tokens after it.

``key`` is a definition's or timer's kind, and a blob's part.
"""


class Subjects:
    """Builds and parses the subjects of one deployment. All names are encoded here."""

    def __init__(self, prefix: str = "loom") -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"log prefix {prefix!r}: use 1 to 32 of A-Z a-z 0-9 _ -")
        self.prefix = prefix
        self._root = prefix + "."

    def _join(self, family: str, *names: str) -> str:
        return ".".join((self.prefix, family, *map(encode, names)))

    # --- runs -----------------------------------------------------------------------------

    def _run(self, tenant: str, ident: str, leaf: str) -> str:
        return f"{self._root}run.{slot(ident)}.{encode(tenant)}.{encode(ident)}.{leaf}"

    def journal(self, tenant: str, run_id: str) -> str:
        return self._run(tenant, run_id, "journal")

    def inbox(self, tenant: str, run_id: str) -> str:
        return self._run(tenant, run_id, "inbox")

    def run(self, tenant: str, run_id: str) -> str:
        """Filter: journal and inbox of one run (``append(scope=...)``, park and finish)."""
        return self._run(tenant, run_id, ">")

    def journals(self, run_id: str) -> str:
        """Filter: the journal of one run, whatever its tenant."""
        return f"{self._root}run.{slot(run_id)}.*.{encode(run_id)}.journal"

    def session(self, tenant: str, session_id: str) -> str:
        return self._run(tenant, session_id, "session")

    def start(self, lane: int, tenant: str, user_id: str, run_id: str) -> str:
        """A named user has one subject (its cap); an empty user one per run, a token longer."""
        base = f"{self._root}start.{lane}.{encode(tenant)}.{encode(user_id)}"
        return base if user_id else f"{base}.{encode(run_id)}"

    def lane(self, lane: int) -> str:
        """Filter: all starts of one lane."""
        return f"{self._root}start.{lane}.>"

    def wake(self, run_id: str) -> str:
        return f"{self._root}wake.{slot(run_id)}.{encode(run_id)}"

    # --- definitions and state ------------------------------------------------------------

    def definition(self, tenant: str, kind: str, name: str) -> str:
        return self._join("def", tenant, kind, name)

    def definitions(self, tenant: str, kind: str) -> str:
        """Filter: all definitions of one kind."""
        return self._join("def", tenant, kind) + ".>"

    def channel(self, tenant: str, scope: str, scope_id: str, channel: str) -> str:
        return self._join("chan", tenant, scope, scope_id, channel)

    def memory(self, tenant: str, scope: str, scope_id: str, key: str) -> str:
        return self._join("mem", tenant, scope, scope_id, key)

    def memory_scope(self, tenant: str, scope: str, scope_id: str) -> str:
        """Filter: all keys of one memory scope."""
        return self._join("mem", tenant, scope, scope_id) + ".>"

    def agent_handle(self, tenant: str, agent_id: str) -> str:
        return self._join("agent", tenant, agent_id)

    def state(self, area: str, tenant: str, *names: str) -> str:
        """Another subject of STATE: ``area`` of STATE_AREAS and one to four names."""
        if area not in STATE_AREAS or not 1 <= len(names) < _MAX_NAMES:
            raise ValueError(f"no subject in STATE: {area!r} with {len(names)} names")
        return self._join(area, tenant, *names)

    def state_under(self, area: str, tenant: str, *names: str) -> str:
        """Filter: every subject of ``area`` that begins with these names."""
        if area not in STATE_AREAS or len(names) >= _MAX_NAMES:
            raise ValueError(f"no subjects in STATE: {area!r} with {len(names)} names")
        return self._join(area, tenant, *names) + ".>"

    # --- timers, leases, secrets, blobs ---------------------------------------------------

    def timer(self, kind: str, timer_id: str) -> str:
        return self._join("timer", kind, timer_id)

    def due(self, kind: str, timer_id: str) -> str:
        return self._join("due", kind, timer_id)

    def lease(self, name: str) -> str:
        return self._join("lease", name)

    def seal(self, run_id: str, name: str) -> str:
        return self._join("seal", run_id, name)

    def seals(self, run_id: str) -> str:
        """Filter: all sealed values of one run."""
        return self._join("seal", run_id) + ".>"

    def blob(self, digest: str, part: str) -> str:
        return self._join("blob", digest, part)

    def blob_parts(self, digest: str) -> str:
        """Filter: all parts of one blob."""
        return self._join("blob", digest) + ".>"

    # --- messages that nobody stores ------------------------------------------------------

    def live(self, run_id: str) -> str:
        return self._join("live", run_id)

    def signal(self, run_id: str) -> str:
        return self._join("sig", run_id)

    def any(self, family: str) -> str:
        """Filter: every subject of a family (first token: ``run``, ``wake``, ``due``, ...)."""
        return f"{self._root}{family}.>"

    # --- reading --------------------------------------------------------------------------

    def family(self, subject: str) -> tuple[str, str]:
        """(first token, second token) after the prefix; raises ValueError when foreign."""
        if not subject.startswith(self._root):
            raise ValueError(f"subject {subject!r} is not under prefix {self.prefix!r}")
        tokens = subject.split(".", 3)
        if len(tokens) < 3:
            raise ValueError(f"subject {subject!r} is too short")
        return tokens[1], tokens[2]

    def parse(self, subject: str) -> Parsed:
        """What ``subject`` names; raises ValueError when it is none of ours."""
        family, _ = self.family(subject)
        tokens = subject[len(self._root) :].split(".")[1:]
        if family == "run" and len(tokens) == 4:
            place, tenant, ident, leaf = tokens
            return _parse_run(place, name_or_hash(tenant), name_or_hash(ident), leaf)
        names = tuple(map(name_or_hash, tokens))
        if family == "start" and len(tokens) in (3, 4):
            return Parsed(
                kind="start",
                names=names,
                lane=int(tokens[0]),
                tenant=names[1],
                user_id=names[2],
                run_id=names[3] if len(names) == 4 else "",
            )
        kind, fields = _FIELDS.get(family, (family, ()))
        if fields and len(fields) != len(names):
            raise ValueError(f"subject {subject!r} has {len(names)} names, not {len(fields)}")
        if fields:
            return Parsed(kind=kind, names=names, **dict(zip(fields, names, strict=True)))  # type: ignore[arg-type]
        if family in STATE_AREAS:
            return Parsed(kind=family, names=names, tenant=names[0])
        raise ValueError(f"subject {subject!r} is of no known family")


def _parse_run(place: str, tenant: str, ident: str, leaf: str) -> Parsed:
    names = (tenant, ident)
    match leaf:
        case "journal" | "inbox":
            return Parsed(kind=leaf, names=names, slot=place, tenant=tenant, run_id=ident)
        case "session":
            return Parsed(kind=leaf, names=names, slot=place, tenant=tenant, session_id=ident)
        case _:
            raise ValueError(f"run subject ends in {leaf!r}")
