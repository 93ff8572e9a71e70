"""What people say to a run on its way into the log: masked, sealed where it was, and noticed.

A message is durable before anybody is told; a lost poke or wake costs time, never the message
(kernel.md section 2). What stands in an inbox holds no known secret (kernel.md section 9).
"""

from __future__ import annotations

import logging

from events.log import EventStore, LogError
from events.vocabulary import UserInput
from loomcycle.admission import terminal
from loomcycle.masking import RunMasker, decode_credentials
from loomcycle.ownership import CREDENTIALS
from loomcycle.run_facts import RunFacts
from loomcycle.services import Services
from loomcycle.taking import seal_name, user_turn
from loomcycle.wakes import wake_data

log = logging.getLogger("loomcycle.said")


class RunEnded(Exception):
    """The run has ended; what its secrets were is known no more."""


async def masker_of(services: Services, tenant: str, run_id: str) -> RunMasker | None:
    """What masks the secrets of this deployment and of a run; None where nothing is masked.

    Raises RunEnded, LogError.
    """
    if services.redaction is None:
        return None
    store = services.store
    sealed = await store.seals.get(run_id, CREDENTIALS)
    if sealed is None:
        last = await store.log.last(store.subjects.journal(tenant, run_id))
        if last is not None and terminal(last):
            raise RunEnded
    return services.redaction.for_run(decode_credentials(sealed))


async def masker_for(services: Services, run_id: str, facts: RunFacts) -> RunMasker | None:
    """:func:`masker_of` a run of which it is known whether it has credentials."""
    if services.redaction is not None and CREDENTIALS not in facts.sealed:
        return services.redaction.for_run({})
    return await masker_of(services, facts.tenant, run_id)


def words(masker: RunMasker | None, text: str) -> str:
    """A person's turn without exact values of known secrets."""
    if masker is None:
        return text
    event = masker.mask(user_turn(text))
    assert isinstance(event, UserInput)
    return event.payload[0].content[0].text


async def seal(store: EventStore, run_id: str, message_id: str, said: str) -> None:
    """Keep what was really said until the run's end, for its owner to find."""
    await store.seals.put(run_id, seal_name(message_id), said.encode())


async def stir(store: EventStore, tenant: str, run_id: str, message_id: str) -> None:
    """Tell whoever holds the run, or whoever takes it, that its inbox holds something."""
    store.live.poke(run_id, b"inbox")
    try:
        await store.wakes.post(run_id, message_id, wake_data(tenant))
    except LogError as cause:
        log.warning("wake of %s not posted, the sweeper will: %s", run_id, cause)
