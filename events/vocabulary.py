"""Every event that can stand in a run's journal, one Struct each.

Two families: types without a dot are what clients see (the stored body *is* the frame, see
``events/frames.py``); dotted types are the kernel's own facts, seen by replay and audit only.
A change of a type's fields is a new ``VERSION`` and an upcast (``events/upcast.py``).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from events.content import Segment

Status = Literal["running", "completed", "failed", "cancelled"]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of all journal events. ``MUST_UNDERSTAND``: an older replica must not fold past it."""

    VERSION: ClassVar[int] = 1
    MUST_UNDERSTAND: ClassVar[bool] = True


class RunRef(Struct, frozen=True, gc=False):
    """A durable reference: event ``n`` of run ``run`` (never a stream sequence)."""

    run: str
    n: int


class UsageTotals(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Tokens; the two required counts are always written (specification: loop.md section 3)."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    model: str = ""
    provider: str = ""
    max_context_tokens: int = 0


class ToolUse(Struct, frozen=True, gc=False):
    id: str
    name: str
    input: Raw


# --- what clients see ---------------------------------------------------------------------


class UserInput(Event, frozen=True, kw_only=True, tag="user_input"):
    """Input of a person or program. ``inbox`` names the inbox message it came from, if any."""

    payload: tuple[Segment, ...] = ()
    source: str = ""
    inbox: str = ""


class SystemPromptBody(Struct, frozen=True, gc=False, omit_defaults=True):
    system_prompt: str
    agent_def_id: str = ""
    skill_def_ids: dict[str, str] = {}


class SystemPrompt(Event, frozen=True, kw_only=True, tag="system_prompt"):
    """The resolved system prompt and the definitions it came from."""

    payload: SystemPromptBody


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """The opening is complete; the model is due."""


class Text(Event, frozen=True, kw_only=True, tag="text"):
    """All text of one model turn. ``attempt`` counts the model calls made for this turn."""

    text: str
    attempt: int = 1


class ToolCall(Event, frozen=True, kw_only=True, tag="tool_call"):
    """A call that the model asked for, once all its arguments are known."""

    tool_use: ToolUse


class ToolResult(Event, frozen=True, kw_only=True, tag="tool_result"):
    """What a call gave back; ``tool_use`` repeats the call as the model made it."""

    tool_use: ToolUse
    text: str = ""
    is_error: bool = False


class Usage(Event, frozen=True, kw_only=True, tag="usage"):
    """Tokens of one model turn."""

    usage: UsageTotals


class RetryBody(Struct, frozen=True, gc=False):
    provider: str
    attempt: int
    wait_ms: int
    reason: str


class Retry(Event, frozen=True, kw_only=True, tag="retry"):
    """A wait before the same request is sent again; stored before the wait begins."""

    retry: RetryBody


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """The run's last word when it failed or was cancelled."""

    error: str


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The run's last word when it completed: totals over all turns."""

    usage: UsageTotals
    stop_reason: str = ""


# --- the kernel's own facts ---------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started"):
    """First event of a run: who, what and under which plan.

    ``plan`` is the SHA-256 of a :class:`events.plan.RunPlan` blob. ``previous`` is the run
    before this one in its session; ``continues`` says whether its conversation is replayed.
    ``reader`` says what the loss of the last reader means. ``machine`` is the version of the
    machine that drives the run for ever. ``sealed`` names the sealed credentials.
    """

    run: str
    session: str
    agent: str
    agent_id: str
    tenant: str = ""
    user_id: str = ""
    user_tier: str = ""
    plan: str
    machine: int = 1
    origin: str = "http"
    reader: Literal["cancel", "continue"] = "cancel"
    idempotency_key: str = ""
    principal: str = ""
    token_id: str = ""
    parent_agent_id: str = ""
    parent_context: dict[str, str] | None = None
    interactive: bool = False
    metadata: Raw | UnsetType = UNSET
    caller_hosts: tuple[str, ...] | None = None
    web_search_filter: str = ""
    previous: RunRef | None = None
    continues: bool = False
    sealed: tuple[str, ...] = ()
    started_ns: int = 0


class RunClaimed(Event, frozen=True, kw_only=True, tag="run.claimed"):
    """Another worker goes on. The number of the commit that holds this is the new epoch."""

    worker: str


class CancelRequested(Event, frozen=True, kw_only=True, tag="run.cancel_requested"):
    """Somebody asked for the run's end; the first one counts."""

    reason: str
    inbox: str = ""


class RunFinished(Event, frozen=True, kw_only=True, tag="run.finished"):
    """The terminal event: exactly one in every accepted run."""

    status: Status
    stop_reason: str = ""
    error: str = ""
    usage: UsageTotals | None = None


class RunWithdrawn(Event, frozen=True, kw_only=True, tag="run.withdrawn"):
    """Tombstone at commit 1: the start was refused before any worker took it."""

    reason: str


class RunImported(Event, frozen=True, kw_only=True, tag="run.imported"):
    """This journal continues one that another deployment wrote."""

    source: str
    last_n: int
    hash: str


class RunForked(Event, frozen=True, kw_only=True, tag="run.forked"):
    """This journal begins as a copy of another up to an event."""

    origin: RunRef


class RunArchived(Event, frozen=True, kw_only=True, tag="run.archived"):
    """Everything up to ``last_n`` lies in an archive segment."""

    segment: str
    last_n: int
    hash: str


class ModelAnswered(Event, frozen=True, kw_only=True, tag="model.answered"):
    """A model call ended regularly. ``request`` is the canonical hash of what was asked."""

    request: str
    iteration: int
    attempt: int = 1
    provider: str = ""
    model: str = ""
    stop_reason: str = ""
    reasoning: str = ""


class ModelFailed(Event, frozen=True, kw_only=True, tag="model.failed"):
    """A model call failed for good; ``partial`` when it broke inside an open stream."""

    request: str
    iteration: int
    error: str
    attempt: int = 1
    partial: bool = False


class ModelStarted(Event, frozen=True, kw_only=True, tag="model.started"):
    """A model call is about to be repeated after a crash: text already shown is void."""

    MUST_UNDERSTAND: ClassVar[bool] = True
    iteration: int
    attempt: int


class ToolStarted(Event, frozen=True, kw_only=True, tag="tool.started"):
    """Written before a tool that must not run twice."""

    tool_use_id: str
    effect_id: str


JournalEvent = (
    UserInput
    | SystemPrompt
    | Started
    | Text
    | ToolCall
    | ToolResult
    | Usage
    | Retry
    | Error
    | Done
    | RunStarted
    | RunClaimed
    | CancelRequested
    | RunFinished
    | RunWithdrawn
    | RunImported
    | RunForked
    | RunArchived
    | ModelAnswered
    | ModelFailed
    | ModelStarted
    | ToolStarted
)

TYPES: dict[str, type[Event]] = {str(t.__struct_config__.tag): t for t in JournalEvent.__args__}


_NAMES: dict[type[Event], str] = {cls: name for name, cls in TYPES.items()}


def type_of(event: Event) -> str:
    """The stored name of ``event``'s type."""
    return _NAMES[type(event)]


def is_public(event_type: str) -> bool:
    """Whether clients see events of this type."""
    return "." not in event_type


class Unrecognised(Struct, frozen=True):
    """An event this version does not know and need not understand; the fold ignores it."""

    type: str
    body: dict[str, Any]
