"""What people say to a run on its way into the log: masked, sealed where it was, and noticed.

A message is durable before anybody is told; a lost poke or wake costs time, never the message
(kernel.md section 2). What stands in an inbox holds no known secret (kernel.md section 9).
"""

from __future__ import annotations

import logging

from events.log import EventStore, LogError
from events.vocabulary import UserInput
from loomcycle.masking import decode_credentials
from loomcycle.ownership import CREDENTIALS
from loomcycle.run_facts import RunFacts
from loomcycle.services import Services
from loomcycle.taking import user_turn
from loomcycle.wakes import wake_data

log = logging.getLogger("loomcycle.said")


async def masked(services: Services, run_id: str, facts: RunFacts, text: str) -> str:
    """``text`` without exact values of this deployment's and the run's secrets."""
    if services.redaction is None:
        return text
    sealed = None
    if CREDENTIALS in facts.sealed:
        sealed = await services.store.seals.get(run_id, CREDENTIALS)
    masker = services.redaction.for_run(decode_credentials(sealed))
    event = masker.mask(user_turn(text))
    assert isinstance(event, UserInput)
    return event.payload[0].content[0].text


async def stir(store: EventStore, tenant: str, run_id: str, message_id: str) -> None:
    """Tell whoever holds the run, or whoever takes it, that its inbox holds something."""
    store.live.poke(run_id, b"inbox")
    try:
        await store.wakes.post(run_id, message_id, wake_data(tenant))
    except LogError as cause:
        log.warning("wake of %s not posted, the sweeper will: %s", run_id, cause)
