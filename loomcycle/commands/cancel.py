"""Cancelling runs: a message to the run's inbox, a poke to its owner, a wake should it have none.

Specification: http-runs.md section 14. An accepted cancel always ends the run as cancelled.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from events import inbox
from events.log import OutcomeUnknown
from loomcycle.admission import terminal
from loomcycle.auth import Principal
from loomcycle.errors import UnknownAgentId
from loomcycle.lookups import Lookups
from loomcycle.said import RunEnded, masker_of
from loomcycle.services import Services
from loomcycle.wakes import wake_data
from projections.rows import Run

DEFAULT_REASON = "cancelled by api"


class Cancelled(Struct, frozen=True, kw_only=True):
    """``status`` is set when the run had ended before; ``cascaded`` are agent ids."""

    agent_id: str
    cancelled: bool
    status: str = ""
    reason: str = ""
    cascaded: tuple[str, ...] = ()


async def cancel_run(services: Services, tenant: str, run_id: str, reason: str) -> bool:
    """Ask for the end of one run; False when it has ended. Raises LogError.

    ``reason`` is the runtime's own: only this deployment's secrets are looked for in it.
    """
    if await _has_ended(services, tenant, run_id):
        return False
    if services.redaction is not None:
        reason = services.redaction.text(reason)
    message = _message(services, reason)
    if not await _leave(services, tenant, run_id, message):
        return False
    await _announce(services, tenant, run_id, message)
    return True


async def cancel_agent(
    services: Services, lookups: Lookups, principal: Principal, agent_id: str, reason: str
) -> Cancelled:
    """Cancel the latest run of a handle and its descendants. Raises UnknownAgentId, LogError.

    All messages are stored before anybody is told, so that descendants end for the reason given
    here and not for their parent's end.
    """
    run = await lookups.run_of_handle(principal, agent_id)
    if run is None:
        raise UnknownAgentId(agent_id)
    if await _has_ended(services, run.tenant, run.id):
        current = await lookups.run_of_handle(principal, agent_id)
        return Cancelled(agent_id=agent_id, cancelled=False, status=(current or run).status)
    given = await _shown(services, run, reason) if reason else DEFAULT_REASON
    runs = [*await lookups.descendants(run.tenant, agent_id), run]
    left = await asyncio.gather(*(_told(services, one, given, reason) for one in runs))
    told = [(one, m) for one, m in zip(runs, left, strict=True) if m is not None]
    await asyncio.gather(*(_announce(services, one.tenant, one.id, m) for one, m in told))
    if left[-1] is None:
        current = await lookups.run_of_handle(principal, agent_id)
        return Cancelled(agent_id=agent_id, cancelled=False, status=(current or run).status)
    cascaded = tuple(one.agent_id for one, _ in told[:-1])
    return Cancelled(agent_id=agent_id, cancelled=True, reason=given, cascaded=cascaded)


async def _told(
    services: Services, run: Run, given: str, reason: str
) -> inbox.CancelMessage | None:
    """The message left for one of the runs to cancel; None when the run had ended before.

    ``given`` is the caller's ``reason`` as masked for the first of them; a run may have
    credentials of its own.
    """
    shown = await _shown(services, run, given) if reason else given
    message = _message(services, shown)
    return message if await _leave(services, run.tenant, run.id, message) else None


async def _shown(services: Services, run: Run, reason: str) -> str:
    """``reason`` without secrets of this deployment and of ``run``."""
    try:
        masker = await masker_of(services, run.tenant, run.id)
    except RunEnded:
        return DEFAULT_REASON
    return reason if masker is None else masker.text(reason)


def _message(services: Services, reason: str) -> inbox.CancelMessage:
    return inbox.CancelMessage(id=f"i_{services.new_hex()}", reason=reason)


async def _has_ended(services: Services, tenant: str, run_id: str) -> bool:
    """Leader read."""
    store = services.store
    last = await store.log.last(store.subjects.journal(tenant, run_id))
    return last is not None and terminal(last)


async def _leave(
    services: Services, tenant: str, run_id: str, message: inbox.CancelMessage
) -> bool:
    """Put ``message`` where the run's owner finds it; False when the run had ended before."""
    store = services.store
    subject, data = store.subjects.inbox(tenant, run_id), inbox.encode(message)
    try:
        seq = await store.log.append(subject, data, msg_id=message.id)
    except OutcomeUnknown:
        seq = await store.log.append(subject, data, msg_id=message.id)
    after = await store.log.last(store.subjects.journal(tenant, run_id))
    return after is None or after.seq >= seq or not terminal(after)


async def _announce(
    services: Services, tenant: str, run_id: str, message: inbox.CancelMessage
) -> None:
    """Poke the run's owner; should it have none, a worker takes it up."""
    services.store.live.poke(run_id, b"inbox")
    await services.store.wakes.post(run_id, message.id, wake_data(tenant))
