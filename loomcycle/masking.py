"""Masks around one run: what goes into its journal, what is shown, and what an effect really needs.

The journal, every view and every client get the masked form; the plaintext is sealed beside the
run and only ever used to perform an effect of that run (design.md section 8, kernel.md 9).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from events.content import Segment
from events.plan import RunPlan, SystemBlock
from events.vocabulary import (
    AnswerRejected,
    BudgetRefused,
    CacheInvalidated,
    CallPrepared,
    CallReviewed,
    CancelRequested,
    ChildFinished,
    CompactionMade,
    CompactionSkipped,
    ContextCompaction,
    Error,
    Event,
    FallbackSuppressed,
    HostWidened,
    InterruptClosed,
    InterruptionPending,
    InterruptNotified,
    ModelAnswered,
    ModelAttemptFailed,
    ModelDowngraded,
    ModelFailed,
    OutputRejected,
    ProviderFallback,
    ReasoningInvalidated,
    RunStarted,
    SpawnChildResult,
    SpawnChildStarted,
    SystemPrompt,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserInput,
)
from loomcycle.journal import RunJournal
from loomcycle.redaction import DeltaGuard, Mask, Redactor
from loomcycle.services import Services
from replay import approval, compaction, conversation
from replay.conversation import Block, Message, ModelRequest
from replay.fold import metadata_block, opening_message, system_blocks
from replay.machine import CODE_PROVIDER
from replay.state import Call

_BOTH_TIERS: dict[type[Event], tuple[str, ...]] = {
    BudgetRefused: ("reason",),
    CacheInvalidated: ("text",),
    CallPrepared: ("input", "denied", "notes"),
    CallReviewed: ("notes",),
    CancelRequested: ("reason",),
    ChildFinished: ("text", "error"),
    CompactionSkipped: ("reason",),
    ContextCompaction: ("context_compaction.summary",),
    Error: ("error",),
    FallbackSuppressed: ("text",),
    HostWidened: ("host_widening.url",),
    InterruptionPending: (
        "interruption.question",
        "interruption.options",
        "interruption.context",
    ),
    InterruptNotified: ("message", "context"),
    ModelAttemptFailed: ("error",),
    ModelDowngraded: ("text",),
    ModelFailed: ("error",),
    ProviderFallback: ("fallback.cause_error",),
    ReasoningInvalidated: ("text",),
    SpawnChildResult: ("spawn_child.output", "spawn_child.error"),
    SpawnChildStarted: ("spawn_child.output", "spawn_child.error"),
    ToolCall: ("tool_use.input",),
    ToolResult: ("text", "tool_use.input"),
}
"""What comes of tools and errors, or repeats it: exact values and what looks like a secret.

(``InterruptClosed``, which becomes a result or arguments, too.)
"""

_EXACT_ONLY: dict[type[Event], tuple[str, ...]] = {
    AnswerRejected: ("text",),
    CompactionMade: ("pinned",),
    ModelAnswered: ("reasoning",),
    OutputRejected: ("error",),
    RunStarted: ("metadata",),
    SystemPrompt: ("payload.system_prompt",),
    Text: ("text",),
}
"""Prose of people and models: exact values only (``UserInput``, with its segments, too)."""

_WORDS: dict[type[Event], tuple[str, ...]] = {
    CompactionMade: ("usage.model",),
    CompactionSkipped: ("usage.model",),
    ModelAnswered: ("stop_reason", "model"),
    Usage: ("usage.model",),
}
"""Words of vendors, mostly the same ones: exact values only."""

_OWN_WORDS = frozenset({"", "end_turn", "tool_use", "max_tokens"})
"""Words of our own, among them the stop reason that the machine goes by."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")

_Fields = tuple[tuple[str, str], ...]


def _fields(paths: tuple[str, ...]) -> _Fields:
    """(holder, field) of each path; the holder of a field of the event itself is ""."""
    return tuple((outer, inner) for outer, _, inner in (path.rpartition(".") for path in paths))


class _Rule(NamedTuple):
    """``words`` recur, ``texts`` do not; ``exact_only`` is about the texts."""

    texts: _Fields
    exact_only: bool
    words: _Fields


_RULES: dict[type[Event], _Rule] = {
    kind: _Rule(
        _fields(_BOTH_TIERS.get(kind) or _EXACT_ONLY.get(kind, ())),
        kind not in _BOTH_TIERS,
        _fields(_WORDS.get(kind, ())),
    )
    for kind in (*_BOTH_TIERS, *_EXACT_ONLY, *_WORDS)
}
"""Type -> its fields that may hold a secret."""


class RunMasker:
    """Masks the events of one run and remembers what each placeholder stands for.

    Tool calls, tool results and errors take both tiers; prose takes exact values only, live and
    stored alike (secrets.md section 3).
    """

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self._values: dict[str, set[str]] = {}

    def mask(self, event: Event) -> Event:
        """The event as it may be stored: the same object when nothing was masked."""
        rule = _RULES.get(type(event))
        if rule is not None:
            if rule.words:
                event = self._words_masked(event, rule.words)
            return self._masked(event, rule.texts, rule.exact_only)
        if isinstance(event, UserInput):
            payload = tuple(self._segment(segment) for segment in event.payload)
            if all(a is b for a, b in zip(payload, event.payload, strict=True)):
                return event
            return replace(event, payload=payload)
        if isinstance(event, InterruptClosed):
            answer, by = self.answer(event.answer), self.text(event.resolved_by)
            if answer is not event.answer or by is not event.resolved_by:
                return replace(event, answer=answer, resolved_by=by)
        return event

    def text(self, text: str) -> str:
        """``text`` masked in both tiers; the same object when nothing was masked."""
        return self._text(text)

    def answer(self, text: str) -> str:
        """A person's answer, masked as the result or the arguments of the call that it becomes."""
        edit = approval.arguments_in(text)
        if edit is None:
            return self._text(text)
        masked = self._json(edit)
        return text if masked is edit else bytes(masked).decode()

    def _masked(self, event: Event, fields: _Fields, exact_only: bool) -> Event:
        for outer, inner in fields:
            holder = getattr(event, outer) if outer else event
            value = getattr(holder, inner)
            masked = self._value(value, exact_only)
            if masked is not value:
                holder = replace(holder, **{inner: masked})
                event = replace(event, **{outer: holder}) if outer else holder
        return event

    def _words_masked(self, event: Event, fields: _Fields) -> Event:
        for outer, inner in fields:
            holder = getattr(event, outer) if outer else event
            word = "" if holder is None else getattr(holder, inner)
            if word in _OWN_WORDS or self.redactor.is_clean_word(word):
                continue
            masked = self._text(word, exact_only=True)
            if masked is not word:
                holder = replace(holder, **{inner: masked})
                event = replace(event, **{outer: holder}) if outer else holder
        return event

    def _value(self, value: Any, exact_only: bool) -> Any:
        """A masked text, list of texts or JSON value; the same object when nothing was masked."""
        match value:
            case str() if value:
                return self._text(value, exact_only=exact_only)
            case Raw():
                return self._json(value, exact_only=exact_only)
            case tuple() if value:
                masked = tuple(self._text(text, exact_only=exact_only) for text in value)
                same = all(a is b for a, b in zip(masked, value, strict=True))
                return value if same else masked
            case _:
                return value

    def learn(self, events: Iterable[Event]) -> None:
        """Remember the placeholders of events that were unsealed after a takeover."""
        for event in events:
            self.mask(event)

    def resolve(self, data: bytes) -> bytes:
        """Put values for placeholders in the string leaves of JSON, where they are unambiguous."""
        for placeholder, values in self._values.items():
            token = placeholder.encode()
            if len(values) == 1 and token in data:
                data = data.replace(token, json.dumps(next(iter(values)))[1:-1].encode())
        return data

    def _text(self, text: str, *, exact_only: bool = False) -> str:
        masked, masks = self.redactor.redact(text, exact_only=exact_only)
        self._note(masks)
        return masked if masks else text

    def _json(self, raw: Raw, *, exact_only: bool = False) -> Raw:
        masked, masks = self.redactor.redact_json(bytes(raw), exact_only=exact_only)
        self._note(masks)
        return Raw(masked) if masks else raw

    def _segment(self, segment: Segment) -> Segment:
        content = tuple(
            block if text is block.text else replace(block, text=text)
            for block in segment.content
            for text in (self._text(block.text, exact_only=True),)
        )
        if all(a is b for a, b in zip(content, segment.content, strict=True)):
            return segment
        return replace(segment, content=content)

    def _note(self, masks: Sequence[Mask]) -> None:
        for mask in masks:
            self._values.setdefault(mask.placeholder, set()).add(mask.secret_value)


class DeltaShow:
    """The text of a turn while it is spoken: small batches, masked as they will be stored."""

    def __init__(self, services: Services, journal: RunJournal, attempt: int) -> None:
        masker = journal.masker
        self._live = services.live
        self._flush_s = services.delta_flush_s
        self._run = journal.state.run
        self._attempt = attempt
        self._guard = DeltaGuard(masker.redactor) if isinstance(masker, RunMasker) else None
        self._parts: list[str] = []
        self._unshown: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Take a piece; it is shown within ``delta_flush_s`` unless the turn ends first."""
        self._parts.append(text)
        shown = text if self._guard is None else self._guard.feed(text)
        if not shown:
            return
        self._unshown.append(shown)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._flush_s, self._show)

    def finish(self) -> str:
        """Stop showing and return the whole text, unmasked (the journal masks it)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return "".join(self._parts)

    def _show(self) -> None:
        self._timer = None
        text = "".join(self._unshown)
        self._unshown.clear()
        self._live.delta(self._run, self._attempt, text)


def unmasked(request: ModelRequest, journal: RunJournal) -> ModelRequest:
    """``request`` with plaintext where the journal holds masks (only what seals still give)."""
    if not journal.plain:
        return request
    system = _plain_system(request.system, journal)
    return replace(request, messages=plain_messages(journal), system=system)


def plain_messages(journal: RunJournal) -> list[Message]:
    """The conversation with plaintext where the journal holds masks."""
    messages = journal.state.messages
    places = journal.state.masked
    if not journal.plain or not places:
        return messages
    messages = list(messages)
    for n, event in journal.plain.items():
        place = places.get(n)
        if place is not None and place[0] < len(messages):
            messages[place[0]] = _with_plain(messages[place[0]], place[1], event)
    return messages


def _plain_system(system: tuple[SystemBlock, ...], journal: RunJournal) -> tuple[SystemBlock, ...]:
    """The plan's blocks, then the block of the metadata, then those of the caller's segments."""
    blocks = list(system)
    for event in journal.plain.values():
        if isinstance(event, SystemPrompt) and journal.state.plan.system:
            blocks[0] = replace(blocks[0], text=event.payload.system_prompt)
        elif isinstance(event, RunStarted) and isinstance(event.metadata, Raw):
            metadata = metadata_block(event.metadata)
            if metadata is not None:
                blocks[len(journal.state.plan.system)] = metadata
        elif isinstance(event, UserInput) and not event.inbox:
            own = system_blocks(event.payload, journal.state.started.machine)
            blocks[len(blocks) - len(own) :] = own
    return tuple(blocks)


def _with_plain(message: Message, index: int, event: Event) -> Message:
    match index, event:
        case compaction.WHOLE, UserInput():
            return opening_message(event.payload) or message
        case compaction.TASK, UserInput():
            task = opening_message(event.payload)
            if task is None:
                return message
            block = compaction.task_block(compaction.pinned_text(task))
            return replace(message, blocks=(block, *message.blocks[1:]))
        case compaction.SUMMARY, ContextCompaction():
            summary = _plain_block(message.blocks[-1], event)
            return replace(message, blocks=(*message.blocks[:-1], summary))
    if not 0 <= index < len(message.blocks):
        return message
    blocks = list(message.blocks)
    blocks[index] = _plain_block(blocks[index], event)
    return replace(message, blocks=tuple(blocks))


def _plain_block(block: Block, event: Event) -> Block:
    match block, event:
        case conversation.Text(), Text():
            return replace(block, text=event.text)
        case conversation.Text(), ContextCompaction():
            go_on = block.text.endswith(compaction.GO_ON)
            return compaction.summary_block(event.context_compaction.summary, go_on=go_on)
        case conversation.ToolUse(), ToolCall():
            return replace(block, input=event.tool_use.input)
        case conversation.ToolResult(), ToolResult():
            return replace(block, text=event.text)
        case _:
            return block


def holds_secret(text: str, journal: RunJournal) -> bool:
    """Whether an exact value of a known secret stands in ``text``."""
    return _exact(text, journal) is not text


def tool_name(name: str, journal: RunJournal) -> str:
    """The name of a tool as a model said it, without exact values.

    A masked one is spelled so that vendors take it back; those of the run's own tools stay.
    """
    if any(tool.name == name for tool in journal.state.plan.tools):
        return name
    masked = _exact(name, journal)
    return name if masked is name else _NOT_IN_NAMES.sub("_", masked).strip("_")


def _exact(text: str, journal: RunJournal) -> str:
    masker = journal.masker
    if not isinstance(masker, RunMasker):
        return text
    masked, masks = masker.redactor.redact(text, exact_only=True)
    return masked if masks else text


def plain_input(call: Call, journal: RunJournal) -> bytes:
    """What a tool is really given: the model's own input, masks of a program resolved."""
    event = journal.plain.get(call.n)
    if isinstance(event, ToolCall):
        return bytes(event.tool_use.input)
    data = bytes(call.input)
    masker = journal.masker
    if journal.state.plan.provider == CODE_PROVIDER and isinstance(masker, RunMasker):
        return masker.resolve(data)
    return data


def stored_form(data: bytes, journal: RunJournal) -> bytes:
    """A tool's input as our own stores may keep it: exact values of this run masked."""
    masker = journal.masker
    if not isinstance(masker, RunMasker):
        return data
    return masker.redactor.redact_json(data, exact_only=True)[0]


class Redaction:
    """Hands out maskers; credentials of a run are masked wherever they appear."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, text: str) -> str:
        """``text`` without the environment's secrets."""
        return self._redactor.redact(text)[0]

    def plan(self, plan: RunPlan) -> RunPlan:
        """``plan`` as it may be stored: exact values masked in prompt and program.

        A model still gets the prompt's plaintext (sealed with the run's opening); a program
        sees the mask, as it does everywhere.
        """
        system = tuple(
            replace(block, text=self._redactor.redact(block.text, exact_only=True)[0])
            for block in plan.system
        )
        code = plan.code and self._redactor.redact(plan.code, exact_only=True)[0]
        return replace(plan, system=system, code=code)

    def for_run(self, credentials: Mapping[str, str]) -> RunMasker:
        return RunMasker(self._redactor.for_run(credentials))


def decode_credentials(sealed: bytes | None) -> dict[str, str]:
    """Credentials of a run as sealed at its start; {} when they are gone."""
    return msgspec.json.decode(sealed, type=dict[str, str]) if sealed else {}
