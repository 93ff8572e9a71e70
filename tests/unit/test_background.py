"""Tasks that nobody awaits end by themselves, or when their owner says so."""

from __future__ import annotations

import asyncio

from loomcycle.background import Background


async def test_the_end_waits_for_what_is_under_way_and_no_longer_than_it_may() -> None:
    background, go, ended = Background(), asyncio.Event(), list[str]()

    async def work(name: str, until: asyncio.Event) -> None:
        await until.wait()
        ended.append(name)

    background.add(work("a", go))
    background.add(work("b", asyncio.Event()))
    go.set()
    await background.ended(within_s=0.01)
    assert ended == ["a"]
    await background.cancel()


async def test_what_is_left_is_cancelled_and_has_cleaned_up_after_that() -> None:
    background, begun, cleaned = Background(), asyncio.Event(), list[str]()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    background.add(work())
    await begun.wait()
    await background.cancel()
    assert cleaned == ["up"]
    async with asyncio.timeout(1):
        await background.ended(within_s=60)
