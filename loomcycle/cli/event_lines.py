"""One stored event as one line: for people, or as JSON with nothing left out. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from events.commit import JournalError, Record
from events.frames import rfc3339, steer_text
from events.vocabulary import (
    CancelRequested,
    Done,
    Error,
    ModelAnswered,
    ModelFailed,
    RunClaimed,
    RunFinished,
    RunStarted,
    SystemPrompt,
    Text,
    ToolCall,
    ToolResult,
    ToolStarted,
    Usage,
    UserInput,
)
from loomcycle.cli.transcript import one_line, printable

WIDTH = 100

_encode = msgspec.json.Encoder().encode


def as_text_line(record: Record, *, with_run: bool) -> str:
    """Time, number, type and the beginning of the content; the run's id first if asked."""
    run = f"{record.commit.run}  " if with_run else ""
    content = one_line(printable(content_of(record)), WIDTH)
    mask = " [masked]" if record.header.masked else ""
    return f"{_time(record.ts)}  {run}{record.n:>5}  {record.type:<20} {content}{mask}".rstrip()


def _time(ns: int) -> str:
    """UTC to the microsecond, always the same width."""
    return datetime.fromtimestamp(ns // 1000 / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")


def as_json_line(tenant: str | None, record: Record) -> str:
    """The whole event with its envelope; ``body`` is what was stored, null where erased.

    ``tenant`` is null for a start that was withdrawn, if its name is too long for a subject.
    """
    header = record.commit.header
    fields: dict[str, Any] = {
        "time": rfc3339(record.ts),
        "tenant": tenant,
        "run": header.run,
        "n": record.n,
        "type": record.type,
        "seq": record.seq,
        "commit": header.c,
        "epoch": header.epoch,
        "writer": header.writer,
        "digest": record.header.digest,
        "cause": record.header.cause,
        "principal": record.header.principal,
        "masked": record.header.masked,
        "body": Raw(record.body) if record.body else None,
    }
    return _encode(fields).decode()


def content_of(record: Record) -> str:
    """What an event says, in short; of an unknown type its body."""
    try:
        event = record.event
    except JournalError:
        return record.body.decode(errors="replace")
    describe = _CONTENT.get(type(event))
    return describe(event) if describe else _rest(record.body)


def _rest(body: bytes) -> str:
    fields = msgspec.json.decode(body)
    fields.pop("type", None)
    return _encode(fields).decode() if fields else ""


def _named(**fields: object) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items() if value not in ("", None))


def _started(e: RunStarted) -> str:
    return _named(
        agent=e.agent,
        agent_id=e.agent_id,
        session=e.session,
        user=e.user_id,
        origin=e.origin,
        parent=e.parent_agent_id,
        plan=e.plan[:12],
        machine=e.machine,
    )


def _answered(e: ModelAnswered) -> str:
    return _named(
        turn=e.iteration,
        attempt=e.attempt,
        provider=e.provider,
        model=e.model,
        stop=e.stop_reason,
        request=e.request[:12],
    )


def _failed(e: ModelFailed) -> str:
    return f"{_named(turn=e.iteration, attempt=e.attempt, request=e.request[:12])}: {e.error}"


def _finished(e: RunFinished) -> str:
    return _named(status=e.status, stop_reason=e.stop_reason, error=e.error)


def _result(e: ToolResult) -> str:
    failed = " FAILED" if e.is_error else ""
    return f"{e.tool_use.name}{failed} {len(e.text.encode())} bytes: {e.text}"


def _usage(e: Usage) -> str:
    usage = e.usage
    return _named(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_input_tokens or "",
        model=usage.model,
    )


_CONTENT: dict[type, Callable[[Any], str]] = {
    UserInput: steer_text,
    SystemPrompt: lambda e: str(e.payload.system_prompt),
    Text: lambda e: str(e.text),
    ToolCall: lambda e: f"{e.tool_use.name} {bytes(e.tool_use.input).decode()}",
    ToolResult: _result,
    ToolStarted: lambda e: _named(tool_use=e.tool_use_id, effect=e.effect_id),
    Usage: _usage,
    Error: lambda e: str(e.error),
    Done: lambda e: _named(
        stop_reason=e.stop_reason, input=e.usage.input_tokens, output=e.usage.output_tokens
    ),
    RunStarted: _started,
    RunClaimed: lambda e: _named(worker=e.worker),
    CancelRequested: lambda e: str(e.reason),
    RunFinished: _finished,
    ModelAnswered: _answered,
    ModelFailed: _failed,
}
