"""Cancelling runs: a message to the run's inbox, a poke to its owner, a wake should it have none.

Specification: http-runs.md section 14. An accepted cancel always ends the run as cancelled.
"""

from __future__ import annotations

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
    store = services.store
    journal = store.subjects.journal(tenant, run_id)
    before = await store.log.last(journal)
    if before is not None and terminal(before.data):
        return False
    if services.redaction is not None:
        reason = services.redaction.text(reason)
    message = inbox.CancelMessage(id=f"i_{services.new_hex()}", reason=reason)
    subject = store.subjects.inbox(tenant, run_id)
    try:
        seq = await store.log.append(subject, inbox.encode(message), msg_id=message.id)
    except OutcomeUnknown:
        seq = await store.log.append(subject, inbox.encode(message), msg_id=message.id)
    after = await store.log.last(journal)
    if after is not None and after.seq < seq and terminal(after.data):
        return False
    store.live.poke(run_id, b"inbox")
    await store.wakes.post(run_id, message.id, wake_data(tenant))
    return True


async def cancel_agent(
    services: Services, lookups: Lookups, principal: Principal, agent_id: str, reason: str
) -> Cancelled:
    """Cancel the latest run of a handle and its descendants. Raises UnknownAgentId, LogError."""
    run = await lookups.run_of_handle(principal, agent_id)
    if run is None:
        raise UnknownAgentId(agent_id)
    given = reason or DEFAULT_REASON
    if not await cancel_run(services, run.tenant, run.id, given):
        current = await lookups.run_of_handle(principal, agent_id)
        return Cancelled(agent_id=agent_id, cancelled=False, status=(current or run).status)
    cascaded: list[str] = []
    for child in await lookups.descendants(run.tenant, agent_id):
        if await cancel_run(services, child.tenant, child.id, given):
            cascaded.append(child.agent_id)
    return Cancelled(agent_id=agent_id, cancelled=True, reason=given, cascaded=tuple(cascaded))
