"""What a code-js run executes: the program with everything that determines it.

Descriptions and pure functions; reading bodies from disk and running them are done elsewhere.
Specification: sections 2, 3 and 6 of code-js.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any

import msgspec
import quickjs

ABI_VERSION = "1.0.0"
DEFAULT_MEMORY_LIMIT = 64 << 20
"""Bytes of JavaScript heap, recorded results not counted."""
DEFAULT_STACK_LIMIT = 4 << 20
"""Bytes of C stack, about 2,600 calls deep. The thread that runs a program must have more than
this (8 MiB is usual); a smaller thread needs a smaller limit."""
DEFAULT_BUDGET_S = 120.0

DETERMINISTIC_SEED = "code-js|deterministic"
DETERMINISTIC_STARTED_MS = 1_700_000_000_000


class InvalidAgentName(ValueError):
    """The name cannot be a path segment; nothing may be read for it."""


class Program(msgspec.Struct, frozen=True, dict=True):
    """A program and all that its decisions depend on; equal programs decide alike.

    ``tools`` are the names visible to the agent; ``seed`` is :func:`seed_of` or
    :data:`DETERMINISTIC_SEED`; ``started_ms`` is the start of the run in Unix milliseconds;
    limits are in bytes; ``budget_s`` is the whole run's budget, only for error texts. Errors
    about arguments name the last key only without ``whole_paths``.
    """

    source: str
    agent_name: str
    tools: Sequence[str]
    input: Mapping[str, Any]
    seed: str
    started_ms: int
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    stack_limit: int = DEFAULT_STACK_LIMIT
    budget_s: float = DEFAULT_BUDGET_S
    whole_paths: bool = True

    @cached_property
    def code_hash(self) -> str:
        """Lowercase hex SHA-256 of the source's UTF-8 bytes."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(agent_id: str, agent_name: str) -> str:
    return f"{agent_id}|{agent_name}"


def fnv1a_32(text: str) -> int:
    """FNV-1a, 32 bits, of the UTF-8 bytes (draft-eastlake-fnv)."""
    value = 0x811C9DC5
    for byte in text.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def run_input(
    prompt: str,
    metadata: Mapping[str, Any],
    *,
    user_id: str,
    agent_name: str,
    payload_metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The ``input`` of ``run``: reserved metadata keys win, empty payload metadata is absent."""
    value: dict[str, Any] = {
        "prompt": prompt,
        "metadata": {**metadata, "user_id": user_id, "agent": agent_name},
    }
    if payload_metadata:
        value["payload_metadata"] = dict(payload_metadata)
    return value


def body_path(root: str, agent_name: str) -> str:
    """Where the file body of an agent is: ``<root>/<agent name>/index.js``.

    Raises :class:`InvalidAgentName` for a name that is not one plain path segment.
    """
    if agent_name in ("", ".", "..") or any(sign in agent_name for sign in "/\\\0"):
        raise InvalidAgentName(f"invalid agent name {agent_name!r}: it must be one path segment")
    return str(PurePath(root, agent_name, "index.js"))


_STRICT = re.compile(r"""(?:\s|//[^\n]*(?:\n|$)|/\*.*?\*/)*(?:'use strict'|"use strict")""", re.S)
_POSITION = re.compile(r"<input>:(\d+):(\d+)")


def check(source: str) -> str | None:
    """The syntax error of a body, with its position, or None. No code of the body is run."""
    prefix = "throw 0;"
    if _STRICT.match(source):
        prefix = '"use strict";' + prefix
    context = quickjs.Context()
    context.set_max_stack_size(DEFAULT_STACK_LIMIT)
    try:
        context.eval(prefix + source)
    except (UnicodeEncodeError, ValueError):
        return "SyntaxError: the source holds a NUL character or half of a surrogate pair"
    except quickjs.JSException as error:
        first, _, stack = str(error).partition("\n")
        if first == "0":
            return None
        return first + _position(stack, len(prefix))
    return None


def _position(stack: str, prefix: int) -> str:
    found = _POSITION.search(stack)
    if found is None:
        return ""
    line, column = int(found[1]), int(found[2])
    return f" (index.js:{line}:{max(column - prefix, 1) if line == 1 else column})"
