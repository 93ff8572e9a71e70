"""A tool that must not run twice, and what a test knows of how often it did."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from loomcycle.tools.base import CallContext, Repeat, ToolOutput


class Pay:
    """Takes any object; answers with what it was given. ``held`` keeps it from ending."""

    name = "Pay"
    description = "Pays."
    input_schema = b'{"type":"object"}'
    repeat = Repeat.UNSAFE
    side_effect_class = "network"

    def __init__(self) -> None:
        self.paid: list[Any] = []
        self.hosts: list[tuple[str, ...]] = []
        self.held: asyncio.Event | None = None

    async def call(self, input_json: bytes, context: CallContext) -> ToolOutput:
        given = msgspec.json.decode(input_json)
        self.paid.append(given)
        self.hosts.append(context.hosts)
        if self.held is not None:
            await self.held.wait()
        return ToolOutput(f"paid {msgspec.json.encode(given).decode()}")
