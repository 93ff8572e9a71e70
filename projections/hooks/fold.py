"""Folds registrations and deletions of hooks into rows (specification: hooks.md section 2).

A hook is found by its subject, which names tenant, owner and name in bounded length; its place
in the chain is the sequence of its first registration since it was last deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from events.hooks import HookDeleted, HookRegistered
from projections.framework import Projection, Write
from projections.sources import HookChange, HookFault


def fold(items: Sequence[Any]) -> list[Write]:
    """Rows put and deleted by ``items``; unreadable messages are noted as faults."""
    writes: list[Write] = []
    for item in items:
        match item:
            case HookChange(seq, subject, HookRegistered() as hook):
                row = (
                    subject,
                    seq,
                    hook.id,
                    hook.tenant,
                    hook.owner,
                    hook.name,
                    hook.phase,
                    _patterns(hook.agents),
                    _patterns(hook.tools),
                    hook.callback_url,
                    hook.fail_mode,
                    hook.timeout_ms,
                    hook.registered_at_ns,
                )
                writes.append(Write("put_hook", subject, row))
            case HookChange(_, subject, HookDeleted()):
                writes.append(Write("delete_hook", subject, (subject,)))
            case HookFault(seq, subject, reason):
                writes.append(Write("note_hook_fault", seq, (seq, subject, reason)))
    return writes


def _patterns(patterns: tuple[str, ...] | None) -> str | None:
    """JSON text; None when none were given."""
    return None if patterns is None else msgspec.json.encode(patterns).decode()


PROJECTION = Projection(
    name="hooks",
    version=1,
    source="state",
    tables={"hooks": ("subject",), "hook_faults": ("seq",)},
    fold=fold,
)
