"""Builds journals of runs in one readable expression, as a worker would have committed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from events import vocabulary as v
from events.commit import NewEvent, encode_commit, new_event
from events.content import ContentBlock, Segment
from events.log import Log
from events.subjects import Subjects

SECOND = 1_000_000_000


def said(text: str) -> v.UserInput:
    return v.UserInput(payload=(Segment("user", (ContentBlock(text=text),)),))


def started(run: str, **fields: Any) -> v.RunStarted:
    given = {
        "run": run,
        "session": "s_" + run.removeprefix("r_"),
        "agent": "writer",
        "agent_id": "a_" + run.removeprefix("r_"),
        "user_id": "u1",
        "plan": "f" * 64,
    }
    return v.RunStarted(**(given | fields))


def usage(input_tokens: int, output_tokens: int, model: str = "m-1") -> v.Usage:
    totals = v.UsageTotals(
        input_tokens=input_tokens, output_tokens=output_tokens, model=model, provider="mock"
    )
    return v.Usage(usage=totals)


def called(call: str, tool: str, arguments: str = "{}") -> v.ToolCall:
    return v.ToolCall(tool_use=v.ToolUse(id=call, name=tool, input=Raw(arguments.encode())))


def answered(call: str, tool: str, text: str = "ok") -> v.ToolResult:
    return v.ToolResult(tool_use=v.ToolUse(id=call, name=tool, input=Raw(b"{}")), text=text)


def finished(status: v.Status = "completed", **fields: Any) -> v.RunFinished:
    return v.RunFinished(status=status, **fields)


def opening(run: str, **fields: Any) -> list[v.Event]:
    """The first commit of a plain run."""
    prompt = v.SystemPromptBody(system_prompt="Be brief.")
    return [started(run, **fields), said("hi"), v.SystemPrompt(payload=prompt), v.Started()]


def ending(text: str = "hello") -> list[v.Event]:
    """The second and last commit of a plain run."""
    totals = v.UsageTotals(input_tokens=10, output_tokens=5, model="m-1", provider="mock")
    return [
        v.ModelAnswered(request="0" * 64, iteration=0, stop_reason="end_turn"),
        v.Text(text=text),
        usage(10, 5),
        v.Done(usage=totals, stop_reason="end_turn"),
        finished(stop_reason="end_turn", usage=totals),
    ]


class Journal:
    """Encodes the commits of one run; keeps the chain."""

    def __init__(self, run: str, tenant: str = "", writer: str = "w1", at: int = SECOND) -> None:
        self.run, self.tenant, self.writer, self.at = run, tenant, writer, at
        self.c = self.n = 0
        self.epoch = 1
        self.prev = ""

    def commit(self, *events: v.Event | NewEvent, **changed: Any) -> bytes:
        """Stored bytes of the next commit; ``changed`` header fields make it a wrong one."""
        new = [e if isinstance(e, NewEvent) else new_event(e) for e in events]
        fields: dict[str, Any] = {
            "run": self.run,
            "c": self.c + 1,
            "prev": self.prev,
            "epoch": self.epoch,
            "writer": self.writer,
            "first_n": self.n + 1,
            "ts": self.at,
        }
        data, hash_, header, _ = encode_commit(events=new, **(fields | changed))
        self.c, self.n, self.prev = header.c, header.events[-1].n, hash_
        self.at += SECOND
        return data

    def subject(self, subjects: Subjects) -> str:
        return subjects.journal(self.tenant, self.run)

    async def append(self, log: Log, subjects: Subjects, *events: v.Event | NewEvent) -> int:
        """Commit and store; returns the stream sequence."""
        return await log.append(self.subject(subjects), self.commit(*events))


def plain_run(run: str, *, at: int = SECOND, **fields: Any) -> tuple[Journal, list[bytes]]:
    """A finished run of two commits and nine events, the first at ``at``."""
    journal = Journal(run, fields.get("tenant", ""), at=at)
    return journal, [journal.commit(*opening(run, **fields)), journal.commit(*ending())]


def flatten(parts: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [data for part in parts for data in part]
