"""People of the kill loop: they talk to runs, answer their questions, pause the runtime.

Each notes what it was promised; what became of that is ``loop_invariants.py``'s to judge.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import json

from tests.bench.sse import BrokenOff, Frame, request
from tests.chaos.clients import Tracked

ANSWER_S = 20.0
"""An answer that takes longer counts as lost."""

TIRES_AFTER_S = 60.0

SETTLED = (404, 409, 410)
"""Whoever hears one of these needs not try again."""


@dataclass
class Notes:
    """What people tried (``sent``) and what they were told was taken (``taken``).

    Inputs by run, answers by question.
    """

    sent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    taken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    tally: Counter[str] = field(default_factory=Counter)


class People:
    """``ports`` are tried at random; ``told`` hands on what runs show."""

    def __init__(self, ports: Callable[[], Sequence[int]], seed: int) -> None:
        self._ports = ports
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.notes = Notes()

    def told(self, run: Tracked, frame: Frame) -> None:
        """React to what a run shows, at once and beside everything else."""
        match frame.event:
            case "awaiting_input":
                for number in range(self._random.choice((1, 1, 2))):
                    self._begin(self._say(run, f"{frame.id}.{number}"))
            case "text" if run.agent == "talker" and self._random.random() < 0.1:
                self._begin(self._say(run, f"{frame.id}.between"))
            case "interruption_pending":
                ident = frame.json()["interruption"]["interrupt_id"]
                for number in range(self._random.choice((1, 2))):
                    self._begin(self._answer(run, ident, f"{ident}-{number}"))

    def start(self) -> None:
        """Have the runtime paused and its providers probed now and then."""
        self._begin(self._pause_now_and_then())
        self._begin(self._probe_now_and_then())

    async def finish(self) -> None:
        """Stop, and leave a runtime that runs."""
        self._stopping.set()
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def register_hook(self, url: str) -> None:
        """Hooks around the calls of agent ``hooked``."""
        for phase in ("pre", "post"):
            hook = {
                "owner": "app",
                "name": phase,
                "phase": phase,
                "callback_url": url,
                "agents": ["hooked"],
                "tools": ["Memory"],
                "fail_mode": "closed",
                "timeout_ms": 60_000,
            }
            while (await self._ask("POST", "/v1/hooks", hook))[0] not in (200, 201):
                await self._breath()

    async def cancel(self, agent_id: str) -> None:
        await self._ask("POST", f"/v1/agents/{agent_id}/cancel", {"reason": "nobody is left"})

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- talking

    async def _say(self, run: Tracked, text: str) -> None:
        """Try until it is taken, each time in other words, so that each try can be found again."""
        for attempt in self._attempts():
            said = f"{text}.{attempt}"
            self.notes.sent[run.run_id].add(said)
            status, _ = await self._ask("POST", f"/v1/runs/{run.run_id}/input", {"text": said})
            self.notes.tally[f"input {status}"] += 1
            if status == 200:
                self.notes.taken[run.run_id].append(said)
            if status in (200, *SETTLED) or run.ended:
                return
            await self._breath()

    async def _answer(self, run: Tracked, ident: str, text: str) -> None:
        path = f"/v1/runs/{run.run_id}/interrupts/{ident}/resolve"
        for attempt in self._attempts():
            answer = f"{text}-{attempt}"
            self.notes.sent[ident].add(answer)
            status, _ = await self._ask("POST", path, {"answer": answer})
            self.notes.tally[f"answer {status}"] += 1
            if status == 200:
                self.notes.taken[ident].append(answer)
            if status in (200, *SETTLED):
                return
            await self._breath()

    def _attempts(self) -> range:
        return range(int(TIRES_AFTER_S / 0.1))

    # -- operating

    async def _pause_now_and_then(self) -> None:
        while await self._has(1.5 + self._random.random() * 3):
            status, _ = await self._ask("POST", "/v1/_pause", {"timeout_ms": 1000})
            self.notes.tally[f"pause {status}"] += 1
            await self._has(self._random.random() * 0.3)
            while await self._state() != "running":
                await self._ask("POST", "/v1/_resume", None)
                await self._breath()

    async def _state(self) -> str:
        status, body = await self._ask("GET", "/v1/_state", None)
        return str(json.decode(body)["state"]) if status == 200 else ""

    async def _probe_now_and_then(self) -> None:
        """Without it a provider that failed once is left alone for minutes."""
        while await self._has(0.5):
            for port in self._ports():
                await self._ask("POST", "/v1/_resolve/probe", None, port)

    async def _has(self, seconds: float) -> bool:
        """Whether so much time has passed before the end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return not self._stopping.is_set()

    async def _breath(self) -> None:
        await asyncio.sleep(0.05 + self._random.random() * 0.1)

    async def _ask(self, method: str, path: str, body: Any, port: int = 0) -> tuple[int, bytes]:
        """Status and body; 0 when there was no answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                port = port or self._random.choice(self._ports())
                status, _, answer = await request(port, method, path, body)
        except (BrokenOff, TimeoutError):
            return 0, b""
        return status, answer
