"""What was decided when a run started: the resolved, immutable plan that its journal names.

A plan is stored once, as a blob named by the SHA-256 of its bytes; ``run.started`` carries that
name. Replay folds with the plan and never resolves a definition, a model or a tool again.
It must hold no secret and nothing that differs between two runs of the same definition.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class SystemBlock(Struct, frozen=True, omit_defaults=True):
    """One ordered part of the system prompt; ``cacheable`` marks a prompt-cache breakpoint."""

    text: str
    cacheable: bool = False


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. ``input_schema`` is JSON Schema, byte for byte as declared."""

    name: str
    description: str
    input_schema: Raw


class Sampling(Struct, frozen=True, omit_defaults=True):
    """Sampling parameters; None means "not set", an explicit 0 is a value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None


class VolumeBinding(Struct, frozen=True, omit_defaults=True):
    """A host directory that the run's file tools may reach."""

    name: str
    path: str
    mode: Literal["rw", "ro"] = "rw"
    default: bool = False


class Pair(Struct, frozen=True, gc=False):
    """A provider's id and a model of it."""

    provider: str
    model: str


class Routing(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the run may leave its provider (providers.md section 9).

    ``candidates`` in order of preference, the pinned pair alone for a pinned agent.
    ``retry_attempts`` of the same pair; ``cooldown_ms`` of a pair that was rate limited.
    """

    candidates: tuple[Pair, ...] = ()
    pinned: bool = True
    user_tier: str = ""
    retry_attempts: int = 0
    fallback: bool = False
    max_switches: int = 3
    pin_after_success: bool = False
    cooldown_ms: int = 30_000


class Compaction(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Settings of compaction.md section 1; None means "not set", defaults apply at use."""

    enabled: bool | None = None
    target_percentage: int | None = None
    keep_last_n: int | None = None
    keep_first: bool | None = None
    autocompact_at_pct: int | None = None
    model: str | None = None


class Budget(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Limits of a run and all its children; None means no limit. ``cost_micros``: 1e-6 USD."""

    cost_micros: int | None = None
    tokens: int | None = None


class Interruption(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Whether and how an agent may ask people. Times in milliseconds; 0 = none, no limit."""

    enabled: bool = False
    kinds: tuple[str, ...] = ()
    max_pending: int = 0
    default_timeout_ms: int = 0
    max_timeout_ms: int = 0
    backend: str = ""


class RunPlan(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Everything about a run that follows from its definition and the request's narrowing.

    ``max_iterations`` is the number of model turns allowed (specification: loop.md section 2).
    ``volumes`` is None when no volume policy is active and ``()`` when active but empty.
    ``code`` is the JavaScript body of a code-js agent, else None.
    """

    agent: str
    provider: str
    model: str
    definition: str = ""
    agent_def_id: str = ""
    system: tuple[SystemBlock, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 0
    effort: str = ""
    sampling: Sampling = Sampling()
    max_iterations: int = 16
    context_window: int = 0
    tool_parallelism: int = 8
    code: str | None = None
    run_timeout_seconds: int = 0
    deterministic: bool = False
    memory_scopes: tuple[str, ...] = ()
    memory_quota_bytes: int = 0
    volumes: tuple[VolumeBinding, ...] | None = None
    allowed_tools: tuple[str, ...] = ()
    routing: Routing = Routing()
    compaction: Compaction = Compaction()
    budget: Budget | None = None
    interruption: Interruption = Interruption()
    output_schema: Raw | UnsetType = UNSET
    require_approval: tuple[str, ...] = ()
    approval_timeout_ms: int = 0
    max_concurrent_children: int = 4
    extra: dict[str, Raw] = {}


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(RunPlan)


def encode_plan(plan: RunPlan) -> tuple[str, bytes]:
    """Return (hex SHA-256 of the bytes, canonical JSON bytes)."""
    data = _encoder.encode(plan)
    return hashlib.sha256(data).hexdigest(), data


def decode_plan(data: bytes) -> RunPlan:
    """Inverse of :func:`encode_plan`; raises ``msgspec.ValidationError`` on foreign bytes."""
    return _decoder.decode(data)
