"""The people of a world: they answer questions (or not), say more to runs that wait, and end them.

What they do goes through a process, as a gateway's commands do, and may be lost with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from events import inbox
from events.log import LogError
from events.vocabulary import InterruptClosed, InterruptionPending
from loomcycle.said import stir
from tests.sim.agents import Script, Turn
from tests.sim.host import Host
from tests.sim.index import RunRow

if TYPE_CHECKING:
    from tests.sim.world import World

GLANCE_S = 0.3
ENOUGH = 2
"""So often people go on talking to an interactive run before they end it."""


class People:
    """One crowd for the whole world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: dict[str, int] = {}
        self._answered: set[str] = set()

    async def live(self) -> None:
        while True:
            await asyncio.sleep(GLANCE_S * (1 + self._world.rng.random()))
            for row in list(self._world.index.runs.values()):
                if not row.ended and row.started is not None:
                    await self._see(row)

    async def _see(self, row: RunRow) -> None:
        for question in open_questions(row):
            if question not in self._answered and self._world.rng.random() < 0.4:
                self._answered.add(question)
                message = inbox.AnswerMessage(id=f"a:{question}", interrupt_id=question, answer="5")
                await self._tell(row, message)
        if row.parked is not None and row.parked.reason == "input":
            await self._go_on(row)

    async def _go_on(self, row: RunRow) -> None:
        said = self._said.get(row.id, 0)
        if said > ENOUGH or self._world.rng.random() < 0.3:
            host = await self._world.some_host()
            await self._world.answer(host, host.cancel(row.tenant, row.id, "enough"))
            return
        self._said[row.id] = said + 1
        script = Script([Turn(words=1, calls=("Memory",)), Turn(words=1)])
        text = msgspec.json.encode(script).decode()
        await self._tell(row, inbox.InputMessage(id=f"i:{row.id}:{said}", text=text))

    async def _tell(self, row: RunRow, message: inbox.InboxMessage) -> None:
        """Append and stir; what the process did not get done is tried no more."""
        host = await self._world.some_host()
        self._world.note("people", f"{type(message).__name__} to {row.id} through {host.name}")
        await self._world.answer(host, host.spawn(_append(host, row, message)))


async def _append(host: Host, row: RunRow, message: inbox.InboxMessage) -> None:
    store = host.services.store
    try:
        data = inbox.encode(message)
        await store.log.append(store.subjects.inbox(row.tenant, row.id), data, msg_id=message.id)
        await stir(store, row.tenant, row.id, message.id)
    except LogError:
        return


def open_questions(row: RunRow) -> list[str]:
    """Questions of a run that nobody settled."""
    asked: dict[str, None] = {}
    for event in row.events():
        match event:
            case InterruptionPending(interruption=body):
                asked[body.interrupt_id] = None
            case InterruptClosed(interrupt_id=ident):
                asked.pop(ident, None)
    return list(asked)
