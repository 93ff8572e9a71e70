"""What the simulated agents are: a scripted model, three kinds of tools, and their witness.

A run's input is its script (:class:`Script`), so a turn follows from the conversation alone, as
with a real model; its words do not, so a repeated turn says something else.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Raw, Struct

from events.log import EventStore
from loomcycle.config.agent_schema import AgentConfig, AgentInterruption
from loomcycle.memory.store import RowStore
from loomcycle.providers.base import (
    Capabilities,
    Delta,
    Done,
    ProviderError,
    RetryDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from loomcycle.tools.agent import Agent
from loomcycle.tools.base import CallContext, Repeat, Tool, ToolOutput
from loomcycle.tools.interruption import Interruption
from loomcycle.tools.memory import Memory
from replay.conversation import ModelRequest, Text

TALKER, COUNTER = "talker", "counter"

COUNTER_BODY = """
function run(input) {
  let seen = [];
  for (let i = 0; i < Number(input.prompt); i++)
    seen.push(Memory.incr({scope: "agent", key: "total"}));
  return seen.length + " times";
}
"""

AGENTS = {
    TALKER: AgentConfig(
        name=TALKER,
        provider="sim",
        model="sim-1",
        system_prompt="Do as you are told.",
        allowed_tools=("Lookup", "Memory", "Charge", "Agent", "Interruption"),
        memory_scopes=("agent",),
        interruption=AgentInterruption(enabled=True),
    ),
    COUNTER: AgentConfig(
        name=COUNTER,
        provider="code-js",
        code=COUNTER_BODY,
        allowed_tools=("Memory",),
        memory_scopes=("agent",),
    ),
}


class Turn(Struct, omit_defaults=True):
    """One answer: words (each a delta), calls (names of tools), seconds before and between."""

    words: int = 2
    calls: tuple[str, ...] = ()
    pace_s: float = 0.01
    retry: bool = False
    fails: bool = False


class Script(Struct):
    turns: list[Turn]


ERRAND = Script([Turn(words=1, calls=("Charge", "Memory"), pace_s=0.02), Turn(words=1)])
"""What children do."""


class Witness:
    """Counts what happened outside, where no crash of ours reaches."""

    def __init__(self) -> None:
        self.charges: Counter[str] = Counter()
        self.lookups = 0


_decode_script = msgspec.json.Decoder(Script).decode
_INPUTS = {
    "Lookup": Raw(b'{"what":"weather"}'),
    "Charge": Raw(b'{"cents":5}'),
    "Memory": Raw(b'{"op":"incr","scope":"agent","key":"total"}'),
    "Interruption": Raw(b'{"op":"ask","question":"How much?","timeout_ms":4000}'),
    "Agent": Raw(
        msgspec.json.encode(
            {
                "op": "parallel_spawn",
                "spawns": [
                    {"name": name, "prompt": prompt}
                    for name, prompt in (
                        (TALKER, msgspec.json.encode(ERRAND).decode()),
                        (COUNTER, "2"),
                        ("nobody", "hello"),
                    )
                ],
            }
        )
    ),
}


class ScriptedModel:
    """An ordinary provider whose answers stand in the conversation's last script."""

    id = "sim"
    capabilities = Capabilities(parallel_tools=True)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        turn = _turn_of(request)
        await asyncio.sleep(turn.pace_s)
        if turn.retry:
            yield RetryDelta("sim", 1, 50, "busy")
            await asyncio.sleep(0.05)
        for _ in range(turn.words):
            yield TextDelta(f"{self._rng.getrandbits(24):06x} ")
            await asyncio.sleep(turn.pace_s)
        if turn.fails:
            raise ProviderError("sim 500: broken", partial=True)
        for name in turn.calls:
            yield ToolCallDelta(f"tu_{self._rng.getrandbits(32):08x}", name, _INPUTS[name])
        yield Done(
            stop_reason="tool_use" if turn.calls else "end_turn",
            usage=Usage(input_tokens=10, output_tokens=turn.words, model="sim-1"),
        )

    async def models(self) -> list[str]:
        return ["sim-1"]

    async def close(self) -> None:
        """Nothing is open."""


def _turn_of(request: ModelRequest) -> Turn:
    answered = 0
    for message in reversed(request.messages):
        if message.role == "assistant":
            answered += 1
            continue
        first = message.blocks[0]
        if isinstance(first, Text):
            turns = _decode_script(first.text.encode()).turns
            return turns[answered] if answered < len(turns) else Turn()
    raise ValueError("a conversation without a script")


class Lookup:
    """A call that may be repeated: it changes nothing."""

    name = "Lookup"
    description = "Look something up."
    input_schema = b'{"type":"object"}'
    repeat = Repeat.SAFE
    side_effect_class = "network"

    def __init__(self, witness: Witness, rng: random.Random) -> None:
        self._witness, self._rng = witness, rng

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        await asyncio.sleep(self._rng.random() * 0.05)
        self._witness.lookups += 1
        return ToolOutput("fair")


class Charge:
    """A call that must not be repeated: the witness counts each one."""

    name = "Charge"
    description = "Take money."
    input_schema = b'{"type":"object"}'
    repeat = Repeat.UNSAFE
    side_effect_class = "network"

    def __init__(self, witness: Witness, rng: random.Random) -> None:
        self._witness, self._rng = witness, rng

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        await asyncio.sleep(self._rng.random() * 0.1)
        self._witness.charges[context.effect_id] += 1
        await asyncio.sleep(self._rng.random() * 0.1)
        return ToolOutput("charged")


def tools_of(store: EventStore, witness: Witness, rng: random.Random) -> dict[str, Tool]:
    tools: list[Tool] = [
        Lookup(witness, rng),
        Charge(witness, rng),
        Memory(RowStore(store.log, store.subjects)),
        Agent(),
        Interruption(),
    ]
    return {tool.name: tool for tool in tools}
