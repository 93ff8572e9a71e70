"""Streams that clients leave and come back to, on one replica or another (design.md 10).

Nothing is missing, nothing is seen twice, and ids only rise; whoever attaches in the middle of a
turn gets the text so far.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.e2e.proofs import prove_everything, rows, text_of, whole_texts
from tests.e2e.readers import Client, Drip, flow_all
from tests.e2e.turns import Call, reply
from tests.wire.gateway import GatewayUnderTest, Json, SseFrame, open_stream, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {{max_concurrent_runs: 32, max_queue_depth: 64}}
runtime: {{reader_grace_ms: 1600}}
volumes:
  docs: {{path: {docs}, mode: ro}}
agents:
  speaker: {{provider: anthropic, model: m-1}}
  reader: {{provider: anthropic, model: m-1, allowed_tools: [Read], volumes: [docs],
    max_iterations: 50}}
"""

PIECES = [f"{n}·näïve 🧵 " for n in range(40)]
READ = {"path": "note.txt"}


class Pair(NamedTuple):
    """Two replicas on one log."""

    first: GatewayUnderTest
    second: GatewayUnderTest

    def owner_of(self, run: str) -> int:
        return 0 if self.first.runtime.worker.owns(run) else 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor) -> AsyncIterator[Pair]:
    directory = tmp_path_factory.mktemp("streams")
    docs = directory / "docs"
    docs.mkdir()
    (docs / "note.txt").write_text("the note")
    settings, config = environment(vendor), CONFIG.format(docs=docs)
    async with (
        serving(directory, config, settings) as first,
        serving(directory, config, settings) as second,
    ):
        await until(lambda: _acquainted(first, second))
        yield Pair(first, second)
        await prove_everything(first.runtime.store)


async def _acquainted(*gateways: GatewayUnderTest) -> bool | None:
    return all(len(g.runtime.cluster.members) == len(gateways) for g in gateways) or None


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def script_played(vendor: FakeVendor) -> AsyncIterator[None]:
    vendor.requests.clear()
    yield
    assert not vendor.replies


async def transcript(http: httpx.AsyncClient, session: str) -> Json:
    response = await http.get(f"/v1/sessions/{session}/transcript")
    assert response.status_code == 200
    found: Json = response.json()
    return found


def ended_with(frames: list[SseFrame]) -> str:
    return frames[-1].event


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-replica", "other-replica"])
async def test_a_client_that_breaks_off_anywhere_goes_on_where_it_was(
    pair: Pair, vendor: FakeVendor, elsewhere: bool
) -> None:
    rng = random.Random(7 + elsewhere)
    drips = [Drip(reply("anthropic", *PIECES)) for _ in range(6)]
    vendor.script(*(drip.reply for drip in drips))
    clients = [Client() for _ in drips]

    async def read(client: Client) -> None:
        home = rng.randrange(2)
        body = {"agent": "speaker", "prompt": "go"}
        await client.start(pair[home].http, body, limit=rng.randint(2, 8))
        breaks = 0
        while not client.ended:
            breaks += 1
            replica = pair[(home + breaks * elsewhere) % 2]
            limit, by_header = rng.randint(1, 4), rng.random() < 0.5
            await client.attach(replica.http, limit=limit, by_header=by_header)
        assert breaks > 2

    await asyncio.gather(flow_all(drips, 0.01), *map(read, clients))
    for client in clients:
        assert text_of(client.frames) == "".join(PIECES)
        stored = await transcript(pair.second.http, client.session)
        assert whole_texts(client.frames) == rows(stored)


@pytest.mark.parametrize("attached", [0, 1], ids=["owner", "other-replica"])
async def test_whoever_attaches_in_the_middle_of_a_turn_gets_the_text_so_far(
    pair: Pair, vendor: FakeVendor, attached: int
) -> None:
    hold = asyncio.Event()
    vendor.script(reply("anthropic", "Once ", "upon ", hold, "a time."))
    body = {"agent": "speaker", "prompt": "go"}
    async with open_stream(pair.first, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data["run_id"]
        seen = ""
        while seen != "Once upon ":
            seen += (await stream.until("text")).data["text"]
        place = (pair.owner_of(run) + attached) % 2
        path = f"/v1/runs/{run}/stream"
        async with open_stream(pair[place], "GET", path) as late:
            so_far = await late.until("text")
            assert so_far.data["text"] == "Once upon "
            assert so_far.id.endswith(".1.10")
            hold.set()
            rest = await late.rest()
        assert text_of(rest) == "a time."
        assert text_of(await stream.rest()) == "a time."


async def test_a_finished_run_can_be_read_from_every_id(pair: Pair, vendor: FakeVendor) -> None:
    vendor.script(
        reply("anthropic", "one ", "two ", calls=[Call("toolu_1", "Read", READ)]),
        reply("anthropic", "three ", "four"),
    )
    whole = Client()
    await whole.start(pair.first.http, {"agent": "reader", "prompt": "go"})
    stored = rows(await transcript(pair.first.http, whole.session))
    for replica in pair:
        for place in range(len(whole.frames)):
            rest = Client(whole.run, whole.session, whole.frames[: place + 1])
            rest.frames = list(rest.frames)
            await rest.attach(replica.http)
            assert whole_texts(rest.frames) == stored

    seqs = [row["seq"] for row in (await transcript(pair.first.http, whole.session))["events"]]
    for seq in [*seqs, 0, 2**53]:
        path = f"/v1/runs/{whole.run}/stream?from_seq={seq}"
        async with open_stream(pair.second, "GET", path) as stream:
            agent, *frames = await stream.rest()
        assert set(agent.data) == {"agent_id", "run_id", "session_id"}
        shown = [f.event for f in frames if f.event != "steer"]
        expected = [
            row["type"]
            for row in (await transcript(pair.first.http, whole.session))["events"]
            if row["seq"] > seq and row["type"] != "user_input"
        ]
        assert shown == expected


async def test_readers_that_attach_between_two_turns_see_each_text_once(
    pair: Pair, vendor: FakeVendor
) -> None:
    turns = 25
    rng = random.Random(3)
    drips = [
        Drip(
            reply(
                "anthropic",
                f"turn {n}: ",
                "some words, ",
                "and more. ",
                calls=[Call(f"toolu_{n}", "Read", READ)] if n < turns - 1 else [],
            )
        )
        for n in range(turns)
    ]
    vendor.script(*(drip.reply for drip in drips))
    first = Client()
    started = asyncio.create_task(first.start(pair.first.http, {"agent": "reader", "prompt": "go"}))
    await until(lambda: _known(first))

    async def observe() -> Client:
        client = Client(first.run, first.session)
        await asyncio.sleep(rng.random() * 0.8)
        while not client.ended:
            await client.attach(pair[rng.randrange(2)].http, limit=rng.choice([0, 1, 2, 5, 11]))
        return client

    async def speak() -> None:
        for drip in drips:
            await drip.flow(0.004)

    _, *observers = await asyncio.gather(speak(), *(observe() for _ in range(40)))
    await started
    stored = rows(await transcript(pair.first.http, first.session))
    for client in [first, *observers]:
        assert whole_texts(client.frames) == stored


async def _known(client: Client) -> str | None:
    return client.run or None


async def test_a_reader_on_another_replica_keeps_a_run_alive(
    pair: Pair, vendor: FakeVendor
) -> None:
    words = [f"{n} " for n in range(45)]
    drip = Drip(reply("anthropic", *words))
    vendor.script(drip.reply)
    client, observer = Client(), Client()
    flowing = asyncio.create_task(drip.flow(0.06))
    body = {"agent": "speaker", "prompt": "go"}
    leaves_late = asyncio.create_task(client.start(pair.first.http, body, limit=8))
    observer.run = await until(lambda: _known(client))
    await observer.attach(pair.second.http)
    await asyncio.gather(leaves_late, flowing)
    assert ended_with(observer.frames) == "done"
    assert text_of(observer.frames) == "".join(words)


@pytest.mark.parametrize("home", [0, 1])
async def test_a_run_that_nobody_reads_any_more_is_cancelled_wherever_it_runs(
    pair: Pair, vendor: FakeVendor, home: int
) -> None:
    vendor.script(*(reply("anthropic", "one ", asyncio.Event()) for _ in range(6)))
    handles = [f"a_{home}_{n}" for n in range(6)]
    await asyncio.gather(
        *(
            Client().start(
                pair[home].http, {"agent": "speaker", "prompt": "go", "agent_id": handle}, limit=2
            )
            for handle in handles
        )
    )
    for handle in handles:
        row = await pair[1 - home].ended(handle)
        assert (row["status"], row["stop_reason"]) == ("cancelled", "client disconnected")
