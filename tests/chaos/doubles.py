"""Vendors and applications that runs of the kill loop call: they outlive every kill.

They remember nothing of a run but how often a call was asked about: what a model says follows
from the conversation it is sent, so a repeated request is answered as the first one was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

from tests.chaos.agents import COMPACTED_STEPS, TIERED_STEPS
from tests.e2e.turns import reply
from tests.wire.vendors import (
    Cut,
    FakeVendor,
    Received,
    Reply,
    anthropic_text,
    anthropic_tool_call,
    json_reply,
    openai_text,
    openai_tool_call,
)

FULL = 190_000
"""Tokens of a turn that fills a window of 200 000 beyond 80 %."""

COUNT = {"op": "incr", "scope": "user", "key": "count"}


class Doubles(FakeVendor):
    """Model vendors and the application of a hook, on one port."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.callbacks: Counter[tuple[str, str, str]] = Counter()
        """Calls of hooks by phase, agent id and call."""

    async def reply_to(self, received: Received) -> Reply:
        await asyncio.sleep(self._random.random() * 0.03)
        match received.target.split("?")[0]:
            case "/v1/messages":
                return self._anthropic(received.json)
            case "/v1/chat/completions":
                return _counting_openai(received.json)
            case "/hook":
                return self._hook(received.json)
            case _:
                return await super().reply_to(received)

    def _anthropic(self, body: dict[str, Any]) -> Reply:
        if body["model"] == "claude-small":
            return anthropic_text("We have been counting.")
        counted = _last_count(body["messages"])
        if body["model"] == "claude-counting":
            if counted >= COMPACTED_STEPS:
                return anthropic_text("Counted.")
            tokens = FULL if counted % 2 else 10
            return anthropic_tool_call("Memory", COUNT, call_id=f"t{counted}", input_tokens=tokens)
        chance = self._random.random()
        if chance < 0.25:
            return Reply([b"busy"], status=503)
        if chance < 0.4:
            return reply("anthropic", "half a sen\n", Cut())
        if counted >= TIERED_STEPS:
            return anthropic_text("Counted.")
        return anthropic_tool_call("Memory", COUNT, call_id=f"t{counted}", text="On.")

    def _hook(self, question: dict[str, Any]) -> Reply:
        """Each time it is asked it wants the call to count under another key."""
        call = (question["phase"], question["agent_id"], question["tool_call"]["id"])
        self.callbacks[call] += 1
        if question["phase"] == "post":
            return json_reply({})
        return json_reply({"input": {**COUNT, "key": f"hooked-{self.callbacks[call]}"}})


def _counting_openai(body: dict[str, Any]) -> Reply:
    counted = _last_count(body["messages"])
    if counted >= TIERED_STEPS:
        return openai_text("Counted.")
    return openai_tool_call("Memory", COUNT, call_id=f"t{counted}", text="On.")


def _last_count(messages: list[dict[str, Any]]) -> int:
    """The value that the conversation's last result tells, 0 before the first."""
    content = messages[-1]["content"]
    if isinstance(content, list):
        results = [block.get("content") for block in content if block["type"] == "tool_result"]
        content = results[-1] if results else ""
    try:
        return int(json.loads(content)["value"])
    except (ValueError, TypeError, KeyError):
        return 0
