"""What a tool, its hooks and its children are really given: the call's arguments without masks,
and what a call that asked a person really got.

The journal holds masked arguments and answers; their plaintext is sealed beside the run. Which
arguments count (the model's, a person's edit, what hooks made of them): ``replay/approval.py``.
"""

from __future__ import annotations

import re

from msgspec import Raw
from msgspec.structs import replace

from events.vocabulary import CallPrepared, InterruptClosed, InterruptionPending
from loomcycle.journal import RunJournal
from loomcycle.masking import RunMasker, plain_input
from replay import approval, interrupts
from replay.machine import CloseCall
from replay.state import Call

_MASK = re.compile(rb"\[redacted[^\]\"]*\]")


def given_input(call: Call, journal: RunJournal) -> bytes:
    """The arguments that the call would run with now."""
    if call.prepared is None and call.closed is None:
        return plain_input(call, journal)
    given = approval.arguments(call)
    if given is call.input:
        return plain_input(call, journal)
    if call.prepared is not None and given is call.prepared.input:
        return bytes(_plain_rewrite(call, call.prepared, journal) or given)
    return _resolved(bytes(_plain_edit(call, journal) or given), call, journal)


def given_to_children(call: Call, journal: RunJournal) -> bytes:
    """The arguments under which a call waits for its children."""
    given, prepared = call.given, call.prepared
    if given is None or given is call.input or (prepared and given is prepared.input):
        return given_input(call, journal)
    state = journal.state
    for event in reversed(journal.plain.values()):
        if not isinstance(event, InterruptClosed) or approval.edited(event) is None:
            continue
        if any(approval.is_asked_by(state, call, event.interrupt_id, i) for i in range(call.asked)):
            return bytes(approval.edited(event) or given)
    return bytes(given)


def answered_text(effect: CloseCall, journal: RunJournal) -> str:
    """The result of a call that waited: ``effect.text`` with what a person really said."""
    call = effect.call
    closed = _plain_closed(call, journal) or _plain_choice(call, journal)
    if closed is None or call.waiting is None:
        return effect.text
    return interrupts.result(call, call.waiting, closed)[0]


def _plain_choice(call: Call, journal: RunJournal) -> InterruptClosed | None:
    """The answer of a person who chose an option by the mask that the question showed."""
    closed, masker = call.closed, journal.masker
    if closed is None or masker is None:
        return None
    for event in journal.plain.values():
        if not isinstance(event, InterruptionPending):
            continue
        if event.interruption.interrupt_id == closed.interrupt_id:
            shown = masker.mask(event)
            assert isinstance(shown, InterruptionPending)
            pairs = zip(shown.interruption.options, event.interruption.options, strict=True)
            chosen = [plain for mask, plain in pairs if mask.strip() == closed.answer]
            return replace(closed, answer=chosen[0].strip()) if len(chosen) == 1 else None
    return None


def denied_text(call: Call, prepared: CallPrepared, journal: RunJournal) -> str:
    """The result that hooks gave to a call that must not run."""
    plain = _plain_prepared(call, prepared, journal)
    return (prepared if plain is None else plain).denied or ""


def _plain_rewrite(call: Call, prepared: CallPrepared, journal: RunJournal) -> Raw | None:
    plain = _plain_prepared(call, prepared, journal)
    return plain.input if plain is not None and isinstance(plain.input, Raw) else None


def _plain_prepared(call: Call, prepared: CallPrepared, journal: RunJournal) -> CallPrepared | None:
    for n, event in journal.plain.items():
        if n > call.n and isinstance(event, CallPrepared):
            own = (event.tool_use_id, event.edit_of) == (call.id, prepared.edit_of)
            if own:
                return event
    return None


def _plain_edit(call: Call, journal: RunJournal) -> Raw | None:
    closed = _plain_closed(call, journal)
    return None if closed is None else approval.edited(closed)


def _plain_closed(call: Call, journal: RunJournal) -> InterruptClosed | None:
    closed = call.closed
    if closed is None:
        return None
    for event in journal.plain.values():
        if isinstance(event, InterruptClosed) and event.interrupt_id == closed.interrupt_id:
            return event
    return None


def _resolved(edit: bytes, call: Call, journal: RunJournal) -> bytes:
    """A person edits what the question showed: its masks, and no others, stand for values."""
    masker = journal.masker
    shown = approval.shown(call)
    if isinstance(masker, RunMasker) and set(_MASK.findall(edit)) <= set(_MASK.findall(shown)):
        return masker.resolve(edit)
    return edit
