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


class FallbackBody(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """``reason``: ``retryable`` or ``deprecated``. ``attempt`` counts the run's switches."""

    failed_provider: str
    failed_model: str
    new_provider: str = ""
    new_model: str = ""
    attempt: int
    user_tier: str = ""
    reason: str
    cause_error: str = ""


class ProviderFallback(Event, frozen=True, kw_only=True, tag="provider_fallback"):
    """Another provider or model goes on with the run (``model.switched`` makes it so)."""

    fallback: FallbackBody


class CacheInvalidated(Event, frozen=True, kw_only=True, tag="cache_invalidated"):
    """The prompt cache of the provider that is left is of no use any more."""

    text: str


class ReasoningInvalidated(Event, frozen=True, kw_only=True, tag="reasoning_invalidated"):
    """Stored reasoning was dropped: the new provider could not read it."""

    text: str


class ModelDowngraded(Event, frozen=True, kw_only=True, tag="model_downgraded"):
    """A sibling model is used for the rest of the run."""

    text: str


class FallbackSuppressed(Event, frozen=True, kw_only=True, tag="fallback_suppressed"):
    """No switch was made, although there was a reason for one."""

    text: str


class AnswerRejected(Event, frozen=True, kw_only=True, tag="answer_rejected"):
    """The final answer does not fit the agent's schema, for the reason ``text``; the model is
    told and asked again, so what it said in the turn before is no answer."""

    text: str


class HostWideningBody(Struct, frozen=True, gc=False, kw_only=True):
    tool_call_id: str
    tool_name: str
    url: str
    hook_owner: str
    hook_name: str
    hosts_added: tuple[str, ...]


class HostWidened(Event, frozen=True, kw_only=True, tag="host_widened"):
    """A hook granted hosts to one call; stored before the call runs."""

    host_widening: HostWideningBody


class InterruptionBody(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """``expires_at`` is RFC 3339 in UTC, "" when the question waits for ever."""

    interrupt_id: str
    kind: str
    question: str = ""
    options: tuple[str, ...] = ()
    context: str = ""
    priority: Literal["low", "normal", "high"]
    expires_at: str = ""


class InterruptionPending(Event, frozen=True, kw_only=True, tag="interruption_pending"):
    """A person is asked; the call that asks waits (``call.waiting``)."""

    interruption: InterruptionBody


class AwaitingInputBody(Struct, frozen=True, gc=False):
    since_turn: int


class AwaitingInput(Event, frozen=True, kw_only=True, tag="awaiting_input"):
    """An interactive run has nothing to do until somebody says something."""

    awaiting_input: AwaitingInputBody


class CompactionBody(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Tokens are estimates (compaction.md section 2); ``keep_n`` messages were kept verbatim."""

    summary: str
    before_tokens: int = 0
    after_tokens: int = 0
    keep_n: int = 0
    keep_first: bool = False
    trigger: str = ""


class ContextCompaction(Event, frozen=True, kw_only=True, tag="context_compaction"):
    """From here on the model sees a summary in place of the conversation's older part."""

    context_compaction: CompactionBody


class SpawnChildBody(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    tool_use_id: str
    index: int
    run_id: str = ""
    agent: str = ""
    ok: bool = False
    output: str = ""
    error: str = ""


class SpawnChildStarted(Event, frozen=True, kw_only=True, tag="spawn_child_started"):
    """Shown on re-read streams only, and only when the deployment asks for it."""

    spawn_child: SpawnChildBody


class SpawnChildResult(Event, frozen=True, kw_only=True, tag="spawn_child_result"):
    """Shown on re-read streams only, and only when the deployment asks for it."""

    spawn_child: SpawnChildBody


class Error(Event, frozen=True, kw_only=True, tag="error"):
    """What went wrong; the run's last word unless a compaction's summary failed."""

    error: str


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The run's last word when it completed: totals over all turns."""

    usage: UsageTotals
    stop_reason: str = ""


# --- the kernel's own facts ---------------------------------------------------------------


class ParentCall(Struct, frozen=True, gc=False):
    """The Agent call that spawned a run: entry ``index`` of call ``n`` of run ``run``."""

    run: str
    n: int
    index: int = 0


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started"):
    """First event of a run: who, what and under which plan.

    ``plan`` is the SHA-256 of a :class:`events.plan.RunPlan` blob. ``previous`` is the run
    before this one in its session; ``continues`` says whether its conversation is replayed.
    ``reader`` says what the loss of the last reader means. ``machine`` is the version of the
    machine that drives the run for ever. ``sealed`` names the sealed credentials. ``root`` is
    the run at the top of a tree of children (itself, when empty), ``depth`` the levels above.
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
    parent: ParentCall | None = None
    depth: int = 0
    root: str = ""
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
    """A model call ended regularly. ``request`` is the canonical hash of what was asked.

    ``max_tokens``, here and below: how long a budget let the answer be; 0 when none bounds the run.
    """

    request: str
    iteration: int
    attempt: int = 1
    provider: str = ""
    model: str = ""
    stop_reason: str = ""
    reasoning: str = ""
    max_tokens: int = 0


class ModelFailed(Event, frozen=True, kw_only=True, tag="model.failed"):
    """A model call failed for good; ``partial`` when it broke inside an open stream."""

    request: str
    iteration: int
    error: str
    attempt: int = 1
    partial: bool = False
    max_tokens: int = 0


class ModelStarted(Event, frozen=True, kw_only=True, tag="model.started"):
    """A model call is about to be repeated after a crash: text already shown is void."""

    MUST_UNDERSTAND: ClassVar[bool] = True
    iteration: int
    attempt: int


class ModelAttemptFailed(Event, frozen=True, kw_only=True, tag="model.attempt_failed"):
    """A model call failed, and the run goes on: a ``retry`` or a ``model.switched`` follows.

    It spends one iteration of the cap; text that was shown is void.
    """

    request: str
    iteration: int
    attempt: int
    error: str
    failure: str = ""
    partial: bool = False
    max_tokens: int = 0


class ModelSwitched(Event, frozen=True, kw_only=True, tag="model.switched"):
    """The pair that serves the run from here on. ``clear_reasoning`` drops stored reasoning."""

    provider: str
    model: str
    context_window: int = 0
    effort: str | None = None
    clear_reasoning: bool = False


class RunParked(Event, frozen=True, kw_only=True, tag="run.parked"):
    """Nobody advances the run until something reaches its inbox, or ``until_ns`` (0 = never).

    ``reason``: ``input`` (of a person), ``calls`` (children, answers) or ``pause``.
    """

    reason: Literal["input", "calls", "pause"]
    until_ns: int = 0


class CallPrepared(Event, frozen=True, kw_only=True, tag="call.prepared"):
    """What the hooks before a tool call decided; they are not asked again.

    ``input`` is the rewritten input, ``hosts`` were granted to this call, ``denied`` is the
    result of a call that must not run. ``notes`` tell what each hook did. ``edit_of`` names the
    question whose answer gave the arguments that the hooks saw, "" when they were the model's.
    """

    tool_use_id: str
    edit_of: str = ""
    input: Raw | UnsetType = UNSET
    denied: str | None = None
    denied_is_error: bool = False
    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class CallReviewed(Event, frozen=True, kw_only=True, tag="call.reviewed"):
    """Hooks after a tool call replaced the result that follows, or failed; ``notes`` say how."""

    tool_use_id: str
    notes: tuple[str, ...] = ()


class CallWaiting(Event, frozen=True, kw_only=True, tag="call.waiting"):
    """A call whose result comes from elsewhere: from ``children`` or as the ``answer`` to ``ref``.

    ``approval``: the answer decides whether the call may run; ``bound`` is the hash of what it
    would do (``replay/approval.py``).
    """

    tool_use_id: str
    kind: Literal["children", "answer", "approval"]
    ref: str = ""
    until_ns: int = 0
    bound: str = ""


class ChildStarted(Event, frozen=True, kw_only=True, tag="child.started"):
    """The run may start a child; written before its first commit (ids follow from the call)."""

    tool_use_id: str
    index: int
    run: str
    session: str
    agent: str
    agent_id: str


class ChildFinished(Event, frozen=True, kw_only=True, tag="child.finished"):
    """What a child, or the attempt to start one, came to."""

    tool_use_id: str
    index: int
    run: str = ""
    ok: bool = False
    text: str = ""
    error: str = ""
    inbox: str = ""


class InterruptClosed(Event, frozen=True, kw_only=True, tag="interrupt.closed"):
    """A question has its answer, or none will come. Times are unix nanoseconds."""

    interrupt_id: str
    status: Literal["resolved", "timed_out", "cancelled"]
    answer: str = ""
    resolved_by: str = ""
    resolved_ns: int = 0
    inbox: str = ""


class InterruptNotified(Event, frozen=True, kw_only=True, tag="interrupt.notified"):
    """A message to a person that needs no answer."""

    interrupt_id: str
    message: str
    context: str = ""
    priority: Literal["low", "normal", "high"] = "normal"


class CompactionRequested(Event, frozen=True, kw_only=True, tag="compaction.requested"):
    """Compact at the next boundary: the model asked (``self``) or a person (``manual``)."""

    trigger: Literal["self", "manual"]
    inbox: str = ""


class CompactionMade(Event, frozen=True, kw_only=True, tag="compaction.made"):
    """Facts beside ``context_compaction``: the hash of the request, its tokens, and the
    messages that stay: those from ``kept_from`` on (index in the conversation before)."""

    request: str
    trigger: str
    kept_from: int
    pinned: str = ""
    usage: UsageTotals | None = None
    max_tokens: int = 0


class CompactionSkipped(Event, frozen=True, kw_only=True, tag="compaction.skipped"):
    """Nothing was compacted: ``noop`` (nothing to do), ``failed`` (an ``error`` stands before) or
    ``blank`` (the summary was empty)."""

    trigger: str
    reason: str
    request: str = ""
    usage: UsageTotals | None = None
    max_tokens: int = 0


class RunAmended(Event, frozen=True, kw_only=True, tag="run.amended"):
    """Added to a run after its end, for those who continue its session (compaction.md 5).

    ``provider`` and ``model`` write the summary: the run's own may be gone by then.
    """

    by: str = ""
    provider: str = ""
    model: str = ""


class OutputRejected(Event, frozen=True, kw_only=True, tag="output.rejected"):
    """``answer_rejected`` as machines 1 and 2 wrote it: clients were not told."""

    error: str


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget.refused"):
    """The next model call does not fit the budget of the run's tree."""

    reason: str


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
    | ProviderFallback
    | CacheInvalidated
    | ReasoningInvalidated
    | ModelDowngraded
    | FallbackSuppressed
    | AnswerRejected
    | HostWidened
    | InterruptionPending
    | AwaitingInput
    | ContextCompaction
    | SpawnChildStarted
    | SpawnChildResult
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
    | ModelAttemptFailed
    | ModelSwitched
    | RunParked
    | CallPrepared
    | CallReviewed
    | CallWaiting
    | ChildStarted
    | ChildFinished
    | InterruptClosed
    | InterruptNotified
    | CompactionRequested
    | CompactionMade
    | CompactionSkipped
    | RunAmended
    | OutputRejected
    | BudgetRefused
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
