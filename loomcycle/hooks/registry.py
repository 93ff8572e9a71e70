"""The hooks of the deployment, in this process: a fold of ``hook.>``, kept current.

Registrations are events of STATE, so they are durable and the same everywhere. This process
knows its own at once, those of others when they tell (within milliseconds) and at the latest at
the next look at the log. Callbacks are ``loomcycle/hooks/chain.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from events.hooks import HookDeleted, HookEvent, HookRegistered, decode, encode
from events.log import EventStore, LogError, OutcomeUnknown, WrongSequence
from events.state import StateError
from loomcycle.tools.policy import is_allowed

log = logging.getLogger("loomcycle.hooks")

TOPIC = "_hooks"
"""Name of the live messages that tell other processes to look; no run has it."""

CHECK_S = 5.0
"""How often the log is looked at, should a message between processes be lost."""

ATTEMPTS = 3
LAG_S = 0.005

Identity = tuple[str, str, str]


class HookRegistry:
    """Hooks in the order of their chain. ``any`` is all that a call without hooks asks for."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._filter = store.subjects.any("hook")
        self._hooks: dict[Identity, HookRegistered] = {}
        self._seq = 0
        self._folding = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unfollow: Callable[[], None] | None = None

    @property
    def any(self) -> bool:
        return bool(self._hooks)

    async def start(self) -> None:
        """Know what is registered, and stay current. Raises LogError."""
        self._unfollow = await self._store.live.follow(TOPIC, lambda _: self._hurry.set())
        await self.catch_up()
        self._task = asyncio.create_task(self._look_after(), name="hooks")

    async def stop(self) -> None:
        if self._unfollow is not None:
            self._unfollow()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def matching(
        self, phase: Literal["pre", "post"], tenant: str, agent: str, tool: str
    ) -> Sequence[HookRegistered]:
        """Those that a call of ``tool`` by ``agent`` has to pass, in registration order."""
        return [
            hook
            for hook in self._hooks.values()
            if hook.phase == phase
            and hook.tenant in ("", tenant)
            and (not hook.agents or is_allowed(agent, hook.agents))
            and (not hook.tools or is_allowed(tool, hook.tools))
        ]

    def with_id(self, hook_id: str) -> HookRegistered | None:
        """As of the last :meth:`catch_up`."""
        return next((hook for hook in self._hooks.values() if hook.id == hook_id), None)

    async def register(self, hook: HookRegistered) -> None:
        """Add a hook, or put it in the place of its namesake. Raises LogError."""
        subject, data = self._subject(hook), encode(hook)
        for attempt in range(ATTEMPTS):
            try:
                await self._store.log.append(subject, data, msg_id=hook.id)
                break
            except OutcomeUnknown:
                if attempt == ATTEMPTS - 1:
                    raise
        await self._changed()

    async def delete(self, hook: HookRegistered) -> bool:
        """Remove a hook; False when it was replaced or removed meanwhile. Raises LogError."""
        event = HookDeleted(id=hook.id, tenant=hook.tenant, owner=hook.owner, name=hook.name)
        subject, data = self._subject(hook), encode(event)
        for attempt in range(ATTEMPTS):
            last = await self._store.log.last(subject)
            current = _event(last.data) if last is not None else None
            if current == event and attempt:  # an attempt whose outcome was unknown
                break
            if not isinstance(current, HookRegistered) or current.id != hook.id or last is None:
                return False
            try:
                await self._store.log.append(subject, data, after=last.seq)
                break
            except (WrongSequence, OutcomeUnknown):
                if attempt == ATTEMPTS - 1:
                    raise
        await self._changed()
        return True

    async def catch_up(self) -> None:
        """Fold everything up to the leader's end. Raises LogError."""
        log_ = self._store.log
        async with self._folding:
            last = await log_.last(self._filter)
            end = last.seq if last is not None else 0
            if end == self._seq:
                return
            cut_back = end < self._seq
            seq, hooks = (0, {}) if cut_back else (self._seq, dict(self._hooks))
            while seq < end:
                messages = await log_.read(self._filter, after=seq)
                for message in messages:
                    _apply(hooks, _event(message.data))
                    seq = message.seq
                if not messages:
                    await asyncio.sleep(LAG_S)
            self._seq, self._hooks = seq, hooks

    async def _changed(self) -> None:
        await self.catch_up()
        self._store.live.publish(TOPIC, b"changed")

    async def _look_after(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._hurry.wait()
            self._hurry.clear()
            try:
                await self.catch_up()
            except LogError as cause:
                log.debug("hooks not looked at: %s", cause)

    def _subject(self, hook: HookRegistered) -> str:
        return self._store.subjects.state("hook", hook.tenant, hook.owner, hook.name)


def _apply(hooks: dict[Identity, HookRegistered], event: HookEvent | None) -> None:
    """A dict keeps the place of a key whose value is replaced, as the chain must."""
    match event:
        case HookRegistered():
            hooks[event.tenant, event.owner, event.name] = event
        case HookDeleted():
            hooks.pop((event.tenant, event.owner, event.name), None)


def _event(data: bytes) -> HookEvent | None:
    try:
        return decode(data)
    except StateError as fault:
        log.error("an event of a hook is left out: %s", fault.reason)
        return None
