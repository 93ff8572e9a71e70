"""What was decided when a run started: the resolved, immutable plan that its journal names.

A plan is stored once, as a blob named by the SHA-256 of its bytes; ``run.started`` carries that
name. Replay folds with the plan and never resolves a definition, a model or a tool again.
It must hold no secret and nothing that differs between two runs of the same definition.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import Raw, Struct


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
    retry_attempts: int = 0
    context_window: int = 0
    tool_parallelism: int = 8
    code: str | None = None
    run_timeout_seconds: int = 0
    deterministic: bool = False
    memory_scopes: tuple[str, ...] = ()
    memory_quota_bytes: int = 0
    volumes: tuple[VolumeBinding, ...] | None = None
    allowed_tools: tuple[str, ...] = ()
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
