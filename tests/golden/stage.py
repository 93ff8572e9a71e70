"""The runtime that golden journals are recorded from: the real one, with a vendor of our own.

Only the vendor's words are scripted (at the HTTP wire) and ids are counted instead of random, so
that recording again changes little but times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from events.commit import decode
from events.ids import first_run_of
from events.log import EventStore
from events.vocabulary import ChildStarted
from loomcycle.auth import OPEN
from loomcycle.commands.cancel import cancel_run
from loomcycle.commands.hooks import HookRequest
from loomcycle.commands.requests import RunRequest
from loomcycle.commands.runs import StartedRun
from loomcycle.config import load
from loomcycle.feed import RunFeed
from loomcycle.loading import read_commits
from loomcycle.runtime import Runtime, open_runtime
from tests.golden.agents import configuration
from tests.wire.vendors import FakeVendor, Reply, json_reply, openai_chunk, openai_usage, sse
from tests.wire.vendors import environment as vendor_environment
from tests.wire.witness import Pay

USER = "golden-user"

SECRET = "golden-secret-of-the-environment"
"""A value of the process environment: masked wherever it appears."""

CREDENTIAL = "golden-credential-of-the-run"
"""A credential given with one run."""

PATIENCE_S = 30.0

MakeOn = Callable[["Stage"], Awaitable[str]]
"""Makes a run on a stage that others use too; its id."""

Export = Callable[[EventStore, str], Awaitable[None]]
MakeIn = Callable[[Path, FakeVendor, Export], Awaitable[None]]
"""Makes a run on stages of its own, and hands it over while one is open."""


@dataclass
class Stage:
    """A running runtime and the vendor that its agents ask."""

    runtime: Runtime
    vendor: FakeVendor
    name: str = ""
    runs: list[StartedRun] = field(default_factory=list)
    _ids: int = 0

    def enter(self, name: str) -> None:
        """The next runs belong to the shape ``name``."""
        self.name, self._ids = name, 0

    def hex(self) -> str:
        """Ids that depend on the shape and on how many were made before."""
        self._ids += 1
        return sha256(f"{self.name} {self._ids}".encode()).hexdigest()[:16]

    def next_first_run(self) -> str:
        """The id of the run that the next start without a session makes."""
        return first_run_of("s_" + sha256(f"{self.name} {self._ids + 1}".encode()).hexdigest()[:16])

    async def start(self, agent: str, prompt: str = "Say something.", **given: Any) -> StartedRun:
        """Start a run and leave it running."""
        if "segments" in given:
            prompt = ""
        request = RunRequest(agent=agent, prompt=prompt, user_id=USER, **given)
        return self._noted(await self.runtime.commands.start(request, OPEN))

    async def run(self, agent: str, prompt: str = "Say something.", **given: Any) -> StartedRun:
        """Start a run and read it to its end."""
        return await finished(await self.start(agent, prompt, **given))

    async def go_on(self, run: StartedRun, prompt: str, **given: Any) -> StartedRun:
        """Continue the session of ``run`` and read to the end."""
        commands = self.runtime.commands
        request = RunRequest(prompt=prompt, **given)
        return await finished(
            self._noted(await commands.continue_session(run.session_id, request, OPEN))
        )

    async def cancel(self, run: StartedRun, reason: str) -> None:
        assert await cancel_run(self.runtime.services, run.tenant, run.run_id, reason)

    async def say(self, run: StartedRun, text: str) -> None:
        await self.runtime.inputs.send(OPEN, run.run_id, text, "api")

    async def answer(self, run: StartedRun, interrupt_id: str, answer: str) -> None:
        await self.runtime.interrupts.resolve(
            OPEN, run.run_id, interrupt_id, answer=answer, resolved_by="api"
        )

    async def parked(self, run: StartedRun) -> None:
        """Wait until nobody holds ``run`` any more."""
        store = self.runtime.store
        async with asyncio.timeout(PATIENCE_S):
            while True:
                last = await store.log.last(store.subjects.journal(run.tenant, run.run_id))
                if last is not None and decode(last.data).header.events[-1].type == "run.parked":
                    return
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def hook(self, name: str, phase: str, fail_mode: str = "open") -> AsyncIterator[None]:
        """A hook around payments; the vendor answers it at the path ``/<name>``."""
        hooks = self.runtime.hooks
        url = f"{self.vendor.url}/{name}"
        request = HookRequest(
            owner="app",
            name=name,
            phase=phase,
            callback_url=url,
            fail_mode=fail_mode,
            tools=("Pay",),
        )
        ident = await hooks.register(request, OPEN)
        yield
        await hooks.delete(ident, OPEN)

    async def listed(self, models: Mapping[str, Sequence[str]]) -> None:
        """Vendors list these models, by path, and are asked for them now."""
        for path, names in models.items():
            self.vendor.listings[path] = json_reply({"data": [{"id": name} for name in names]})
        await self.runtime.resolver.probe()

    async def child_of(self, run: StartedRun) -> str:
        """The id of the first child of ``run``, once it was started."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for commit in await read_commits(self.runtime.store, run.tenant, run.run_id):
                    for record in commit.records():
                        if isinstance(record.event, ChildStarted):
                            return record.event.run
                await asyncio.sleep(0.01)

    async def ended(self, run_id: str) -> None:
        """Follow a run that somebody else started to its end."""
        services = self.runtime.services
        feed = RunFeed(services.store, services.live, "", run_id, process=services.process)
        async with asyncio.timeout(PATIENCE_S), feed:
            while not feed.ended:
                await feed.next()

    def _noted(self, run: StartedRun) -> StartedRun:
        self.runs.append(run)
        return run


@asynccontextmanager
async def open_stage(
    directory: Path,
    vendor: FakeVendor,
    *,
    name: str = "",
    variables: Mapping[str, str] | None = None,
    **concurrency: int,
) -> AsyncIterator[Stage]:
    """Start the runtime on ``directory`` (created, or gone on with) and end it in order."""
    runtime = await open_runtime(configured(directory, vendor, variables or {}, **concurrency))
    stage = Stage(runtime, vendor, name)
    tools = runtime.services.tools
    assert isinstance(tools, dict)
    tools[Pay.name] = Pay()
    runtime.services.new_hex = stage.hex
    try:
        yield stage
    finally:
        for run in stage.runs:
            run.feed.close()
        await runtime.close()


def configured(
    directory: Path, vendor: FakeVendor, variables: Mapping[str, str], **concurrency: int
) -> Any:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "loomcycle.yaml"
    path.write_text(configuration(**concurrency))
    environ = vendor_environment(
        vendor,
        LOOMCYCLE_DATA_DIR=str(directory / "data"),
        LOOMCYCLE_MOCK_ENABLED="1",
        LOOMCYCLE_MOCK_LATENCY_MS="0",
        LOOMCYCLE_MOCK_LATENCY_JITTER_MS="0",
        LOOMCYCLE_CODE_AGENTS_ENABLED="1",
        GOLDEN_TOKEN=SECRET,
        **variables,
    )
    return load([path], environ, directory)


async def finished(run: StartedRun) -> StartedRun:
    """Read ``run`` to its end."""
    async with asyncio.timeout(PATIENCE_S):
        while not run.feed.ended:
            await run.feed.next()
    return run


async def shown(run: StartedRun, event: str) -> Any:
    """Read until a frame ``event``; what it says."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for frame in await run.feed.next():
                if frame.event == event:
                    return json.loads(frame.data)


async def spoken(run: StartedRun, text: str) -> None:
    """Read until ``text`` was shown."""
    seen = ""
    async with asyncio.timeout(PATIENCE_S):
        while text not in seen:
            for frame in await run.feed.next():
                if frame.event == "text":
                    seen += json.loads(frame.data)["text"]


def asks_for(*calls: tuple[str, str, dict[str, Any] | str], text: str = "") -> Reply:
    """An answer of an OpenAI model with tool calls (id, name, input or its text) at once."""
    chunks = [openai_chunk({"role": "assistant", "content": text or None})]
    for index, (call_id, name, value) in enumerate(calls):
        arguments = value if isinstance(value, str) else json.dumps(value)
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        chunks.append(openai_chunk({"tool_calls": [call]}))
    return Reply([sse(*chunks, openai_chunk(finish="tool_calls"), openai_usage(), done=True)])


def says_and(part: Any, text: str) -> Reply:
    """An answer of an OpenAI model that breaks off after a line, in the way of ``part``."""
    return Reply([sse(openai_chunk({"role": "assistant", "content": f"{text}\n"})), part])
