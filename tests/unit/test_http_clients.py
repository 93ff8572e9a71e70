"""Clients that leave and servers that stop interrupt what waits, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from gateways.http.clients import Clients, Departure, Watch
from gateways.http.errors import ShuttingDown
from tests.wire.asgi import AsgiClient


async def waiting(clients: Clients, client: AsgiClient, entered: asyncio.Event) -> Watch:
    with clients.watch(client.scope) as watch:
        entered.set()
        await asyncio.Event().wait()
    return watch


async def test_a_client_that_leaves_ends_the_wait() -> None:
    client, entered = AsgiClient(body=[]), asyncio.Event()
    task = asyncio.create_task(waiting(Clients(), client, entered))
    await entered.wait()
    client.leave()
    assert (await task).departed is Departure.CLIENT


async def test_a_stop_ends_all_waits_and_refuses_new_ones() -> None:
    clients = Clients()
    events = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(waiting(clients, AsgiClient(body=[]), e)) for e in events]
    for event in events:
        await event.wait()
    clients.stop()
    assert [(await task).departed for task in tasks] == [Departure.SERVER] * 3
    with pytest.raises(ShuttingDown), clients.watch(AsgiClient().scope):
        pass
    assert not clients.watched


async def test_a_client_that_leaves_after_the_stop_does_not_count() -> None:
    clients, client, entered = Clients(), AsgiClient(body=[]), asyncio.Event()
    task = asyncio.create_task(waiting(clients, client, entered))
    await entered.wait()
    clients.stop()
    client.leave()
    assert (await task).departed is Departure.SERVER


async def test_what_ends_by_itself_saw_nobody_depart() -> None:
    clients = Clients()
    with clients.watch(AsgiClient(body=[]).scope) as watch:
        await asyncio.sleep(0)
    assert watch.departed is None
    assert not clients.watched


async def test_errors_inside_pass_through() -> None:
    with pytest.raises(KeyError), Clients().watch(AsgiClient(body=[]).scope):
        raise KeyError


async def test_a_cancellation_from_elsewhere_is_not_swallowed() -> None:
    entered = asyncio.Event()
    task = asyncio.create_task(waiting(Clients(), AsgiClient(body=[]), entered))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_after_a_departure_the_task_can_wait_again() -> None:
    client, entered = AsgiClient(body=[]), asyncio.Event()

    async def twice() -> str:
        await waiting(Clients(), client, entered)
        await asyncio.sleep(0)
        return "still here"

    task = asyncio.create_task(twice())
    await entered.wait()
    client.leave()
    assert await task == "still here"
    assert task.cancelling() == 0


async def test_a_client_that_had_left_before_ends_the_first_wait() -> None:
    client = AsgiClient(body=[])
    client.leave()
    assert (await waiting(Clients(), client, asyncio.Event())).departed is Departure.CLIENT
