"""Several runs in one request, answered when all have ended. Specification: http-runs.md 9.

Every run of a batch is an ordinary start of its own: what refuses one says nothing about the
others, and shows as that entry's error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from events.log import LogError
from loomcycle.auth import Principal
from loomcycle.commands.cancel import cancel_run
from loomcycle.commands.requests import RunRequest
from loomcycle.commands.runs import RunCommands, StartedRun
from loomcycle.errors import CommandError, InvalidArgument, LogAway
from loomcycle.feed import FeedFrame
from loomcycle.services import Services

MAX_SPAWNS = 32

TIMED_OUT = "batch timeout"

ENDING_S = 10.0
"""How long runs that were cancelled for the batch's time limit may take to end."""

CATEGORIES = {
    "unknown_agent": "unknown agent",
    "agent_id_in_use": "agent_id in use",
    "per_user_quota_exhausted": "per_user_quota_exhausted",
}
"""How an entry's error begins, where it is not the code in words."""


class BatchRequest(Struct, frozen=True):
    """``timeout_ms`` 0 means no limit."""

    spawns: tuple[RunRequest, ...] = ()
    mode: str = "join"
    timeout_ms: int = 0

    def check(self) -> None:
        """Raises InvalidArgument; nothing was started then."""
        if not self.spawns:
            raise InvalidArgument("spawn_runs: no spawns supplied", "spawns")
        if len(self.spawns) > MAX_SPAWNS:
            count = len(self.spawns)
            raise InvalidArgument(
                f"spawn_runs: {count} spawns supplied, the maximum is {MAX_SPAWNS}", "spawns"
            )
        if self.mode not in ("", "join"):
            raise InvalidArgument(
                f'spawn_runs: mode "{self.mode}" is not supported (must be join)', "mode"
            )
        if self.timeout_ms < 0:
            raise InvalidArgument("spawn_runs: timeout_ms must not be negative", "timeout_ms")


class Settled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an entry came to. ``usage`` is that of the last turn, ``final_text`` all it said; of
    an agent with an ``output_schema`` its last turn, for only that was checked.

    The ids are "" when the entry never became a run.
    """

    agent_id: str
    run_id: str
    session_id: str
    status: str
    stop_reason: str = ""
    final_text: str = ""
    usage: Raw | None = None
    error: str = ""
    parent_context: dict[str, str] | None = None


class Batch:
    """The runs of one request."""

    def __init__(
        self,
        commands: RunCommands,
        services: Services,
        principal: Principal,
        requests: Sequence[RunRequest],
    ) -> None:
        self._commands = commands
        self._services = services
        self._principal = principal
        self._requests = requests
        self._started: list[StartedRun] = []

    async def join(self, timeout_s: float | None) -> list[Settled]:
        """Start all runs and wait for their ends; after ``timeout_s`` they are cancelled.

        When this is cancelled itself, starts that wait are taken back and the rest runs on.
        """
        tasks = [asyncio.create_task(self._one(request)) for request in self._requests]
        try:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            if late:
                await self.cancel(TIMED_OUT)
                await self._give_up(late)
            return [_result(task) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def cancel(self, reason: str) -> None:
        """Ask all runs that began and have not ended to end. Raises LogError."""
        await asyncio.gather(
            *(
                cancel_run(self._services, run.tenant, run.run_id, reason)
                for run in self._started
                if not run.feed.ended
            )
        )

    async def _give_up(self, late: set[asyncio.Task[Settled]]) -> None:
        """Take back what waits for its start, let the rest end."""
        begun = {run.feed.run_id for run in self._started}
        ending = {task for task in late if task.get_name() in begun}
        for task in late - ending:
            task.cancel()
        await asyncio.wait(late, timeout=ENDING_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _one(self, request: RunRequest) -> Settled:
        """Start one run, without what a batch does not take, and read it to its end."""
        own = replace(request, prompt="", interactive=False, run_timeout_seconds=0, session_id="")
        try:
            run = await self._commands.start(own, self._principal)
        except CommandError as cause:
            return _refused(cause)
        self._started.append(run)
        task = asyncio.current_task()
        assert task is not None
        task.set_name(run.run_id)
        try:
            heard = _Heard(answer_only=await self._is_structured(run))
            heard.take(run.first)
            while not run.feed.ended:
                heard.take(await run.feed.next())
        except LogError:
            unread = LogAway("the log cannot be read on; the run goes on")
            return replace(_refused(unread), **_ids(run))
        finally:
            run.feed.close()
        return _ended(run, heard)

    async def _is_structured(self, run: StartedRun) -> bool:
        """Whether the run's answer has to fit a schema."""
        assert run.feed.started is not None
        plan = await self._services.plans.get(run.feed.started.plan)
        return isinstance(plan.output_schema, Raw)


class _Heard:
    """What the frames of one run add up to. ``answer_only``: of its text only what was said
    since the model was last told anything."""

    def __init__(self, *, answer_only: bool) -> None:
        self._answer_only = answer_only
        self._turns: list[str] = []
        self._turn: list[str] = []
        self.usage: Raw | None = None

    @property
    def text(self) -> str:
        return "".join([*self._turns, *self._turn])

    def take(self, frames: list[FeedFrame]) -> None:
        for frame in frames:
            match frame.event:
                case "text":
                    self._turn.append(_decode_text(frame.data).text)
                case "text_reset":
                    self._turn.clear()
                case "usage":
                    self.usage = _decode_usage(frame.data).usage
                    self._turns += self._turn
                    self._turn.clear()
                case "tool_result" | "answer_rejected" | "steer" if self._answer_only:
                    self._turns.clear()
                    self._turn.clear()
                case _:
                    pass


class _Text(Struct):
    text: str


class _Usage(Struct):
    usage: Raw


_decode_text = msgspec.json.Decoder(_Text).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


def _result(task: asyncio.Task[Settled]) -> Settled:
    if not task.cancelled():
        return task.result()
    return Settled(
        agent_id="",
        run_id="",
        session_id="",
        status="failed",
        error="backpressure: not started within timeout_ms",
    )


def _refused(cause: CommandError) -> Settled:
    category = CATEGORIES.get(cause.code, cause.code.replace("_", " "))
    text = str(cause)
    for said_before in (f"{category} ", f"{category}: ", "per-user quota exhausted: "):
        text = text.removeprefix(said_before)
    error = category if text == category else f"{category}: {text}"
    return Settled(agent_id="", run_id="", session_id="", status="failed", error=error)


def _ended(run: StartedRun, heard: _Heard) -> Settled:
    finished = run.feed.finished
    assert finished is not None
    return Settled(
        **_ids(run),
        status=finished.status,
        stop_reason=finished.stop_reason,
        final_text=heard.text,
        usage=heard.usage,
        error=finished.error,
        parent_context=run.parent_context,
    )


def _ids(run: StartedRun) -> dict[str, str]:
    return {"agent_id": run.agent_id, "run_id": run.run_id, "session_id": run.session_id}
