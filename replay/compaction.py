"""Compaction: when it is due, what is summarised, and the conversation that comes of it.

Specification: compaction.md. Pure: the summary itself is written by a model and stands in the
journal; the view of the context is a fold. A tool call is never parted from its results.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from events.plan import Compaction, Pair, SystemBlock
from events.vocabulary import CompactionBody, CompactionMade
from replay.conversation import Message, ModelRequest, Text, ToolResult, ToolUse
from replay.hashing import RollingHash, request_hash
from replay.state import State

SUMMARY_LABEL = "Summary of the conversation so far:"
TASK_LABEL = "The task:"
GO_ON = "Go on from here."

WHOLE, TASK, SUMMARY = -1, -2, -3
"""Places of masks in a message: all of it, its pinned task, its summary (``State.masked``)."""

MIN_MESSAGES = 4
"""A person's request to compact a shorter conversation does nothing."""

MODEL_HAS_A_PROVIDER = 3
"""From this machine version on ``compaction.model`` is not asked of another provider than the
plan's; before, one that a run had fallen back to was asked for it too."""

_TARGET_RANGE = range(10, 51)


class Settings(Struct, frozen=True, kw_only=True):
    """What is in force (compaction.md section 1); ``model`` "" is the run's own."""

    enabled: bool = False
    target_percentage: int = 10
    keep_last_n: int = 4
    keep_first: bool = True
    autocompact_at_pct: int = 80
    model: str = ""


class Cut(Struct, frozen=True):
    """``messages[first:kept_from]`` are summarised, ``pinned`` stays as it was said."""

    first: int
    kept_from: int
    pinned: str


def effective(given: Compaction) -> Settings:
    """``given`` with the defaults; a target out of range counts as not set."""
    target, keep = given.target_percentage, given.keep_last_n
    return Settings(
        enabled=bool(given.enabled),
        target_percentage=target if target is not None and target in _TARGET_RANGE else 10,
        keep_last_n=4 if keep is None else max(0, keep),
        keep_first=given.keep_first is not False,
        autocompact_at_pct=80 if given.autocompact_at_pct is None else given.autocompact_at_pct,
        model=given.model or "",
    )


def due(state: State) -> str:
    """The trigger of the compaction that is due before the next turn, "" when none is."""
    at = state.iteration + state.spent
    if state.skipped_at == at or state.compacted_at == at:
        return ""
    if state.compacting:
        return state.compacting
    if not state.plan.compaction.enabled:
        return ""
    window = _window(state)
    fires = (
        window > 0
        and state.used > 0
        and at > state.compacted_at + 1
        and state.used * 100 >= window * effective(state.plan.compaction).autocompact_at_pct
    )
    return "auto" if fires and cut(state, "auto") is not None else ""


# --- what is summarised -------------------------------------------------------------------


def cut(state: State, trigger: str) -> Cut | None:
    """Where the conversation is divided; None when there is nothing to summarise.

    A person's request (``manual``) knows no window, so the tail is not capped then.
    """
    messages = state.messages
    if not messages or (trigger == "manual" and len(messages) < MIN_MESSAGES):
        return None
    settings = effective(state.plan.compaction)
    head = messages[0]
    pinned = _task(head) if settings.keep_first else ""
    first = 1 if pinned or head.summary else 0
    at = _division(messages, first, settings.keep_last_n)
    if trigger != "manual" and at > first:
        at = _capped(messages, at, _window(state))
    return Cut(first, at, pinned) if at > first else None


def _division(messages: Sequence[Message], first: int, keep: int) -> int:
    """The first message to keep. What a person said last is not summarised before it is read."""
    end = len(messages)
    while end > first and _is_fresh(messages[end - 1]):
        end -= 1
    if keep <= 0:
        return end
    target = len(messages) - keep
    if target <= first:
        return first
    for begins in (_is_fresh, _begins_round):
        for index in range(target, first, -1):
            if begins(messages[index]):
                return index
    return end


def _capped(messages: Sequence[Message], at: int, window: int) -> int:
    """Move the division on until what is kept fits half the window, where that is possible."""
    if window <= 0:
        return at
    size = sum(_bytes(message) for message in messages[at:])
    for index in range(at + 1, len(messages)):
        if size // 4 * 2 <= window:
            break
        if _is_fresh(messages[index]) or _begins_round(messages[index]):
            size -= sum(_bytes(message) for message in messages[at:index])
            at = index
    return at


def _is_fresh(message: Message) -> bool:
    """Whether a person's turn begins here."""
    return message.role == "user" and not (
        message.blocks and isinstance(message.blocks[0], ToolResult)
    )


def _begins_round(message: Message) -> bool:
    """Whether the model asks for tools here; their results are in the next message."""
    return message.role == "assistant" and any(isinstance(b, ToolUse) for b in message.blocks)


def _window(state: State) -> int:
    return state.last_usage.max_context_tokens if state.last_usage else 0


def pinned_text(message: Message) -> str:
    """The task that a first message is: its text."""
    return "".join(block.text for block in message.blocks if isinstance(block, Text))


def _task(head: Message) -> str:
    """The original task, whether it stands there as it was said or was pinned before."""
    if not head.summary:
        return pinned_text(head) if _is_fresh(head) else ""
    block = head.blocks[0]
    if len(head.blocks) == 1 or not isinstance(block, Text):
        return ""
    return block.text.removeprefix(task_block("").text)


# --- how it is summarised -----------------------------------------------------------------

_INSTRUCTION = (
    "You condense the older part of a conversation between a user, an assistant and the"
    " assistant's tools, so that the assistant can go on without it. Write one summary of about"
    " {percent}% of its length (some {tokens} tokens). Keep: goals, constraints, decisions and"
    " their reasons, facts, names, paths, numbers and identifiers, results of tools that still"
    " matter, and what is left to do. Do not answer or continue the conversation. Reply with the"
    " summary and nothing else."
)


def summariser(state: State) -> Pair:
    """Who writes the summary: the pair that serves the run, with the model set for it.

    The model was set for the provider of the plan; another that serves the run now may not have
    it.
    """
    if state.amended is not None:
        return Pair(state.amended.provider, state.amended.model)
    own = state.plan.compaction.model or ""
    if state.provider != state.plan.provider and state.started.machine >= MODEL_HAS_A_PROVIDER:
        own = ""
    return Pair(state.provider, own or state.asked_model)


def summary_request(
    state: State,
    division: Cut,
    messages: Sequence[Message] | None = None,
    *,
    max_tokens: int = 0,
) -> ModelRequest:
    """What the summariser is asked. ``messages``: those of ``state`` with plaintext for masks;
    ``max_tokens``: how long a budget lets the summary be, 0 for the vendor's default."""
    pair = summariser(state)
    span = _span(state.messages if messages is None else messages, division)
    percent = effective(state.plan.compaction).target_percentage
    goal = max(1, estimate(span) * percent // 100)
    return ModelRequest(
        provider=pair.provider,
        model=pair.model,
        system=(SystemBlock(_INSTRUCTION.format(percent=percent, tokens=goal)),),
        messages=(Message("user", (Text("\n\n".join(_flat(span))),)),),
        max_tokens=max_tokens,
    )


def summary_hash(request: ModelRequest) -> str:
    """What ``compaction.made`` records of the request, masks in place."""
    return request_hash(request, RollingHash().over(request.messages))


def _span(messages: Sequence[Message], division: Cut) -> list[Message]:
    """What is summarised: an earlier summary first, for the new one takes its place."""
    span = list(messages[division.first : division.kept_from])
    head = messages[0]
    if head.summary and division.first:
        blocks = head.blocks[-1:] if division.pinned else head.blocks
        span.insert(0, Message("user", blocks))
    return span


def _flat(span: Sequence[Message]) -> list[str]:
    parts: list[str] = []
    for message in span:
        for block in message.blocks:
            match block:
                case Text(text):
                    if text:
                        parts.append(f"{message.role}: {text}")
                case ToolUse(_, name, arguments):
                    given = bytes(arguments).decode(errors="replace")
                    parts.append(f"{message.role}: [tool call] {name} {given}")
                case ToolResult(_, name, text):
                    if text:
                        parts.append(f"{message.role}: [result of {name}] {text}")
    return parts


# --- what comes of it ---------------------------------------------------------------------


def compacted(
    messages: Sequence[Message], kept_from: int, pinned: str, summary: str
) -> list[Message]:
    """The conversation from now on; it begins with a user's turn and never ends otherwise."""
    kept = list(messages[kept_from:])
    go_on = not kept or kept[0].role == "assistant"
    blocks = (summary_block(summary, go_on=go_on),)
    if pinned:
        return [Message("user", (task_block(pinned), *blocks), summary=True), *kept]
    return [Message("user", blocks, summary=True), *kept]


def task_block(task: str) -> Text:
    return Text(f"{TASK_LABEL}\n{task}")


def summary_block(summary: str, *, go_on: bool) -> Text:
    return Text(f"{SUMMARY_LABEL}\n{summary}" + (f"\n\n{GO_ON}" if go_on else ""))


def compact(
    state: State, made: CompactionMade, body: CompactionBody, n: int, *, masked: bool = False
) -> None:
    """Put the summary of event ``n`` in place of what came before ``made.kept_from``."""
    shift = 1 - made.kept_from
    places = {}
    for event, (at, block) in state.masked.items():
        if at >= made.kept_from:
            places[event] = (at + shift, block)
        elif made.pinned and at == 0 and block in (WHOLE, TASK):
            places[event] = (0, TASK)
    if masked:
        places[n] = (0, SUMMARY)
    state.messages = compacted(state.messages, made.kept_from, made.pinned, body.summary)
    state.masked = places
    state.history = 0
    state.rolling = RollingHash()
    state.used = estimate(state.messages)


def body_of(state: State, division: Cut, summary: str, trigger: str) -> CompactionBody:
    """What clients are told of a compaction that is made now."""
    messages = state.messages
    after = compacted(messages, division.kept_from, division.pinned, summary)
    return CompactionBody(
        summary=summary,
        before_tokens=estimate(messages),
        after_tokens=estimate(after),
        keep_n=len(messages) - division.kept_from,
        keep_first=bool(division.pinned),
        trigger=trigger,
    )


def estimate(messages: Sequence[Message]) -> int:
    """Tokens of ``messages``, by rule of thumb: bytes of text and inputs, a quarter."""
    return sum(_bytes(message) for message in messages) // 4


def _bytes(message: Message) -> int:
    size = 0
    for block in message.blocks:
        match block:
            case Text(text) | ToolResult(_, _, text):
                size += len(text.encode())
            case ToolUse(_, _, arguments):
                size += len(bytes(arguments))
    return size
