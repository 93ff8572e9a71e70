"""What a run that has ended owes the run that spawned it: a message in its inbox.

The message is durable before anybody acts on it, and its id follows from the child: telling
twice is telling once (kernel.md section 6).
"""

from __future__ import annotations

from events import inbox
from loomcycle.journal import patiently
from loomcycle.services import Services
from loomcycle.wakes import wake_data
from replay.children import ChildIds, outcome
from replay.state import State

MESSAGE_LIMIT = 512 * 1024
"""An outcome above this many bytes is not sent: its parent reads the child's journal instead."""


async def tell_parent(services: Services, state: State) -> None:
    """Tell the parent of a run that has ended; nothing for a run without one. Raises LogFull."""
    facts, finished = state.facts, state.finished
    if facts is None or facts.parent is None or finished is None:
        return
    store, parent = services.store, facts.parent
    ids = ChildIds(facts.run, facts.session, facts.agent_id)
    ok, text, error = outcome(facts.agent, ids, finished, state.final_text)
    message = inbox.ChildMessage(
        id=f"child:{facts.run}",
        run=facts.run,
        n=parent.n,
        index=parent.index,
        ok=ok,
        text=text,
        error=error,
    )
    data = inbox.encode(message)
    large = len(data) > MESSAGE_LIMIT
    if not large:
        subject = store.subjects.inbox(facts.tenant, parent.run)
        await patiently(lambda: store.log.append(subject, data, msg_id=message.id))
        if services.births is not None and services.births.nudge(parent.run):
            return
        store.live.poke(parent.run, b"inbox")
    wake = wake_data(facts.tenant, check=large)
    await patiently(lambda: store.wakes.post(parent.run, message.id, wake))
