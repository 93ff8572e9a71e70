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
from loomcycle.services import Services
from loomcycle.wakes import wake_data

DEFAULT_REASON = "cancelled by api"


class Cancelled(Struct, frozen=True, kw_only=True):
    """``status`` is set when the run had ended before; ``cascaded`` are agent ids."""

    agent_id: str
    cancelled: bool
    status: str = ""
    reason: str = ""
    cascaded: tuple[str, ...] = ()


async def cancel_run(services: Services, tenant: str, run_id: str, reason: str) -> bool:
    """Ask for the end of one run; False when it has ended. Raises LogError."""
    if await _has_ended(services, tenant, run_id):
        return False
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
    given = reason or DEFAULT_REASON
    runs = [*await lookups.descendants(run.tenant, agent_id), run]
    messages = [_message(services, given) for _ in runs]
    left = await asyncio.gather(
        *(_leave(services, one.tenant, one.id, m) for one, m in zip(runs, messages, strict=True))
    )
    told = [(one, m) for one, m, ok in zip(runs, messages, left, strict=True) if ok]
    await asyncio.gather(*(_announce(services, one.tenant, one.id, m) for one, m in told))
    if not left[-1]:
        current = await lookups.run_of_handle(principal, agent_id)
        return Cancelled(agent_id=agent_id, cancelled=False, status=(current or run).status)
    cascaded = tuple(one.agent_id for one, _ in told[:-1])
    return Cancelled(agent_id=agent_id, cancelled=True, reason=given, cascaded=cascaded)


def _message(services: Services, reason: str) -> inbox.CancelMessage:
    if services.redaction is not None:
        reason = services.redaction.text(reason)
    return inbox.CancelMessage(id=f"i_{services.new_hex()}", reason=reason)


async def _has_ended(services: Services, tenant: str, run_id: str) -> bool:
    """Leader read."""
    store = services.store
    last = await store.log.last(store.subjects.journal(tenant, run_id))
    return last is not None and terminal(last.data)


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
    return after is None or after.seq >= seq or not terminal(after.data)


async def _announce(
    services: Services, tenant: str, run_id: str, message: inbox.CancelMessage
) -> None:
    """Poke the run's owner; should it have none, a worker takes it up."""
    services.store.live.poke(run_id, b"inbox")
    await services.store.wakes.post(run_id, message.id, wake_data(tenant))
