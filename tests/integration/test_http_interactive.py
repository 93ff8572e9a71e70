"""Interactive runs and steering, as people at several replicas see them (http-runs.md 6, 12)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from events.inbox import CancelMessage, encode
from events.streams import RUN_STREAM_NAMES
from loomcycle import ownership
from loomcycle.activation import Activation
from loomcycle.feed import RunFeed
from loomcycle.journal import RunJournal
from loomcycle.run_facts import RunReader
from loomcycle.wakes import wake_data
from tests.e2e.proofs import prove_everything
from tests.e2e.turns import Call, Told, asked, conversation, reply
from tests.wire.gateway import GatewayUnderTest, Json, StreamReader, open_stream, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 4}
runtime: {reader_grace_ms: 50}
agents:
  speaker: {provider: openai, model: gpt-fake-1}
  counted: {provider: openai, model: gpt-fake-1, max_iterations: 1}
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true}
  parent: {provider: openai, model: gpt-fake-1, allowed_tools: [Agent]}
"""

TALK = {"agent": "speaker", "prompt": "hi", "interactive": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("interactive")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        yield gateway
        await cancel_all(gateway)
        await prove_everything(gateway.runtime.store)


@pytest.fixture(autouse=True)
def nothing_scripted(vendor: FakeVendor) -> None:
    vendor.replies.clear()
    vendor.requests.clear()


async def cancel_all(gateway: GatewayUnderTest) -> None:
    """No run goes on, and its journal is whole."""
    runtime = gateway.runtime
    await runtime.views.barrier(await runtime.store.log.ends(RUN_STREAM_NAMES))
    runs = await runtime.views.queries.running_runs()
    for run in runs:
        await gateway.http.post(f"/v1/agents/{run.agent_id}/cancel")
    for run in runs:
        await gateway.ended(run.agent_id)


def says(*texts: str | asyncio.Event) -> Any:
    return reply("openai", *texts)


async def opened(stream: StreamReader) -> Json:
    """What the ``agent`` frame says."""
    data: Json = (await stream.until("agent")).data
    return data


async def say(gateway: GatewayUnderTest, run_id: str, text: str, **options: Any) -> None:
    response = await gateway.http.post(f"/v1/runs/{run_id}/input", json={"text": text}, **options)
    assert response.status_code == 200, response.text
    assert response.json() == {"run_id": run_id, "delivered": True}


def told(vendor: FakeVendor, index: int = -1) -> list[Told]:
    return conversation("openai", asked(vendor)[index])


def people(*texts: str) -> list[Told]:
    return [Told("user", text) for text in texts]


async def parked(gateway: GatewayUnderTest, run_id: str) -> None:
    async def is_parked() -> bool | None:
        run = await gateway.runtime.views.queries.run(run_id)
        return True if run is not None and run.parked else None

    await until(is_parked)


async def test_an_interactive_run_waits_for_input_and_goes_on(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("hello"), says("fine"))
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run = await opened(stream)
        opening = await stream.next()
        assert opening.event == "steer"
        assert opening.data["user_input"] == {"text": "hi", "source": "replay"}
        waits = await stream.until("awaiting_input")
        assert waits.data == {"type": "awaiting_input", "awaiting_input": {"since_turn": 0}}
        await say(gateway, run["run_id"], "  how are you?\n")
        said = await stream.until("steer")
        assert said.data["user_input"] == {"text": "how are you?", "source": "replay"}
        assert (await stream.until("text")).data["text"] == "fine"
        waits = await stream.until("awaiting_input")
        assert waits.data["awaiting_input"] == {"since_turn": 1}
        assert told(vendor) == [*people("hi"), Told("assistant", "hello"), *people("how are you?")]
        status = await gateway.status(run["agent_id"])
        assert (status["status"], status["interactive"]) == ("running", True)
        assert (status["usage"]["model"], status["usage"]["provider"]) == ("gpt-fake-1", "openai")
        await gateway.http.post(f"/v1/agents/{run['agent_id']}/cancel", json={"reason": "bye"})
        await stream.rest()
    ended = await gateway.ended(run["agent_id"])
    assert (ended["status"], ended["stop_reason"]) == ("cancelled", "bye")


async def test_a_parked_run_without_readers_holds_nothing(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("hello"), says("again"))
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run = await opened(stream)
        await stream.until("awaiting_input")
    runtime = gateway.runtime

    async def let_go() -> bool | None:
        gc.collect()
        kept = [type(o) for o in gc.get_objects() if isinstance(o, Activation | RunFeed)]
        idle = runtime.worker.active == 0 and not runtime.services.live._topics
        return True if idle and not kept else None

    await until(let_go)
    assert not runtime.worker.owns(run["run_id"])
    assert (await gateway.http.get("/v1/_concurrency/stats")).json()["active"] == 0
    await say(gateway, run["run_id"], "still there?")
    async with open_stream(gateway, "GET", f"/v1/runs/{run['run_id']}/stream") as stream:
        while (await stream.until("awaiting_input")).data["awaiting_input"]["since_turn"] != 1:
            pass


async def test_no_more_than_a_few_parked_runs_are_kept_warm(
    gateway: GatewayUnderTest, vendor: FakeVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "WARM", 2)
    vendor.script(*(says("hello") for _ in range(6)))
    for _ in range(6):
        async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
            await stream.until("awaiting_input")

    async def two() -> bool | None:
        gc.collect()
        return sum(isinstance(o, RunJournal) for o in gc.get_objects()) == 2 or None

    await until(two)


async def test_an_interactive_run_ends_with_its_last_turn(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("only once"))
    frames = await gateway.run("counted", interactive=True)
    assert [f.event for f in frames][-2:] == ["usage", "done"]
    assert frames[-1].data["stop_reason"] == "max_iterations"
    path = f"/v1/runs/{frames[1].data['run_id']}/input"
    assert (await gateway.http.post(path, json={"text": "more"})).status_code == 404


@pytest.mark.parametrize(("interactive", "stop"), [(False, "end_turn"), (True, "max_iterations")])
async def test_input_during_the_last_permitted_turn_is_answered(
    gateway: GatewayUnderTest, vendor: FakeVendor, interactive: bool, stop: str
) -> None:
    go_on = asyncio.Event()
    vendor.script(says("one\n", go_on), says("two"))
    body = TALK | {"agent": "counted", "interactive": interactive}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = await opened(stream)
        await stream.until("text")
        await say(gateway, run["run_id"], "please also")
        go_on.set()
        assert (await stream.until("steer")).data["user_input"]["text"] == "please also"
        frames = await stream.rest()
    assert [f.event for f in frames] == ["text", "usage", "done"]
    assert frames[-1].data["stop_reason"] == stop
    assert told(vendor) == [*people("hi"), Told("assistant", "one\n"), *people("please also")]


async def test_input_during_a_turn_gives_a_plain_run_another(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    vendor.script(says("thinking\n", go_on), says("done"))
    body = {"agent": "speaker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = await opened(stream)
        await stream.until("text")
        cookie = {"Cookie": "loomcycle_session=x"}
        await say(gateway, run["run_id"], "one", headers=cookie)
        await say(gateway, run["run_id"], "two")
        go_on.set()
        steers = [(await stream.until("steer")).data["user_input"] for _ in range(2)]
        frames = await stream.rest()
    assert [(s["text"], s["source"]) for s in steers] == [("one", "webui"), ("two", "api")]
    assert all(s["seen_at"].endswith("Z") for s in steers)
    assert [f.event for f in frames] == ["text", "usage", "done"]
    assert told(vendor) == [*people("hi"), Told("assistant", "thinking\n"), *people("one", "two")]


async def test_input_never_stands_between_a_call_and_its_result(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    question = Call("call_1", "Interruption", {"op": "ask", "question": "Which?"})
    vendor.script(reply("openai", calls=[question]), says("thanks"))
    body = {"agent": "asker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = await opened(stream)
        asking = (await stream.until("interruption_pending")).data["interruption"]
        await say(gateway, run["run_id"], "meanwhile")
        path = f"/v1/runs/{run['run_id']}/interrupts/{asking['interrupt_id']}/resolve"
        answer = await gateway.http.post(path, json={"answer": "the red one"})
        assert answer.status_code == 200, answer.text
        events = [frame.event for frame in await stream.rest()]
    assert events == ["tool_result", "steer", "text", "usage", "done"]
    first, call, result, steer = told(vendor)
    assert (first.text, steer) == ("hi", Told("user", "meanwhile"))
    assert call.calls
    assert "the red one" in result.results[0]


async def test_a_failed_run_takes_no_more_input(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    broken = says("hm\n", go_on)
    broken.parts[-1] = b'data: {"error": {"message": "it broke", "code": 400}}\n\n'
    vendor.script(broken)
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run = await opened(stream)
        await stream.until("text")
        await say(gateway, run["run_id"], "too late")
        go_on.set()
        await stream.until("error")
    assert (await gateway.ended(run["agent_id"]))["status"] == "failed"
    assert len(asked(vendor)) == 1


async def test_the_seventeenth_unread_input_is_refused(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    texts = [f"input {i}" for i in range(16)]
    for turn in range(3):
        go_on = asyncio.Event()
        vendor.script(says("wait\n", go_on), says("listening"))
        if turn == 0:
            context = open_stream(gateway, "POST", "/v1/runs", json=TALK)
            stream = await context.__aenter__()
            run_id = (await opened(stream))["run_id"]
        else:
            await say(gateway, run_id, "start")
        await stream.until("text")
        for text in texts:
            await say(gateway, run_id, text)
        refused = await gateway.http.post(f"/v1/runs/{run_id}/input", json={"text": "no"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["content-type"].startswith("text/plain")
        go_on.set()
        for text in texts:
            assert (await stream.until("steer")).data["user_input"]["text"] == text
        await stream.until("awaiting_input")
        assert told(vendor)[-16:] == people(*texts)
    await context.__aexit__(None, None, None)


REFUSALS: list[tuple[str, str, Any, int, str]] = [
    ("blank", "r_0123456789abcdef", {"text": " \n"}, 422, "text is required\n"),
    ("no text", "r_0123456789abcdef", {}, 422, "text is required\n"),
    ("unknown", "r_0123456789abcdef", {"text": "x"}, 404, "no in-flight run for that run_id\n"),
    ("charset", "r é", {"text": "x"}, 400, "run_id must match [A-Za-z0-9_-]{1,128}\n"),
    ("type", "r_0123456789abcdef", {"text": 1}, 400, "bad json"),
]


@pytest.mark.parametrize(
    ("run_id", "body", "status", "text"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
async def test_refused_input(
    gateway: GatewayUnderTest, run_id: str, body: Any, status: int, text: str
) -> None:
    response = await gateway.http.post(f"/v1/runs/{run_id}/input", json=body)
    assert response.status_code == status
    assert response.text.startswith(text)


async def test_behind_an_accepted_cancel_nothing_is_heard(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("hello"))
    async with open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream:
        run = await opened(stream)
        await stream.until("awaiting_input")
        store = gateway.runtime.store
        standing = await RunReader(store).standing(run["run_id"])
        assert standing is not None
        tenant = standing.facts.tenant
        subject = store.subjects.inbox(tenant, run["run_id"])
        await store.log.append(subject, encode(CancelMessage(id="i_enough", reason="enough")))
        path = f"/v1/runs/{run['run_id']}/input"  # nobody has told the run's owner yet
        response = await gateway.http.post(path, json={"text": "x"})
        assert (response.status_code, response.text) == (404, "no in-flight run for that run_id\n")
        assert len(await store.log.read(subject)) == 1
        store.live.poke(run["run_id"], b"inbox")
        await store.wakes.post(run["run_id"], "i_enough", wake_data(tenant))
        await stream.rest()
    assert (await gateway.ended(run["agent_id"]))["stop_reason"] == "enough"


async def test_an_ended_run_takes_no_input(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    vendor.script(says("done"))
    frames = await gateway.run("speaker")
    path = f"/v1/runs/{frames[1].data['run_id']}/input"
    response = await gateway.http.post(path, json={"text": "x"})
    assert (response.status_code, response.text) == (404, "no in-flight run for that run_id\n")


async def test_a_sub_agent_takes_no_input(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    go_on = asyncio.Event()
    spawn = Call("call_1", "Agent", {"name": "speaker", "prompt": "hi"})
    vendor.script(reply("openai", calls=[spawn]), says("hm\n", go_on), says("done"))
    async with open_stream(
        gateway, "POST", "/v1/runs", json={"agent": "parent", "prompt": "hi"}
    ) as stream:
        run = await opened(stream)
        await vendor.wait_for(lambda vendor: len(asked(vendor)) == 2)
        await stream.until("tool_call")
        runtime = gateway.runtime
        await runtime.views.barrier(await runtime.store.log.ends(RUN_STREAM_NAMES))
        (child,) = await runtime.views.queries.descendants("", run["agent_id"])
        response = await gateway.http.post(f"/v1/runs/{child.id}/input", json={"text": "x"})
        assert (response.status_code, response.text) == (404, "no in-flight run for that run_id\n")
        go_on.set()
        await stream.until("done")


async def test_a_continued_session_can_be_interactive_while_its_client_stays(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(says("first"), says("second"), says("third"))
    session = (await gateway.run("speaker"))[0].data["text"]
    body = {
        "segments": [{"role": "user", "content": [{"type": "trusted-text", "text": "and"}]}],
        "interactive": True,
    }
    path = f"/v1/sessions/{session}/messages"
    async with open_stream(gateway, "POST", path, json=body) as stream:
        run = await opened(stream)
        assert (await stream.next()).event == "started"
        await stream.until("awaiting_input")
        await say(gateway, run["run_id"], "more")
        steer = (await stream.until("steer")).data["user_input"]
        assert (steer["text"], steer["source"]) == ("more", "api")
        await stream.until("awaiting_input")
        busy = await gateway.http.post(path, json=body)
        assert (busy.status_code, busy.json()["code"]) == (409, "session_busy")
        assert "interactive" not in await gateway.status(run["agent_id"])
    ended = await gateway.ended(run["agent_id"])
    assert (ended["status"], ended["stop_reason"]) == ("cancelled", "client disconnected")


async def test_secrets_in_input_are_masked_in_the_log_and_known_to_the_model(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    secret = "hunter2-hunter2-hunter2"
    vendor.script(says("hello"), says("noted"))
    async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
        body = TALK | {"user_credentials": {"db": secret}}
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
            run = await opened(stream)
            await stream.until("awaiting_input")
            await say(gateway, run["run_id"], f"it is {secret}")
            steer = await stream.until("steer")
            assert secret not in steer.data["user_input"]["text"]
            await stream.until("awaiting_input")
        assert told(vendor)[-1] == Told("user", f"it is {secret}")
        await cancel_all(gateway)
        store = gateway.runtime.store
        for stored in await store.log.read(store.subjects.run("default", run["run_id"])):
            assert secret.encode() not in stored.data
        for stored in await store.log.read(store.subjects.run("", run["run_id"])):
            assert secret.encode() not in stored.data
        await prove_everything(store)


@asynccontextmanager
async def two_replicas(
    directory: Path, vendor: FakeVendor
) -> AsyncIterator[tuple[GatewayUnderTest, GatewayUnderTest]]:
    async with (
        serving(directory, CONFIG, environment(vendor)) as one,
        serving(directory, CONFIG, environment(vendor)) as other,
    ):
        yield one, other
        await cancel_all(one)
        await prove_everything(one.runtime.store)


async def test_streams_of_all_replicas_go_on_after_input_at_any(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(*(says(f"answer {i}") for i in range(9)))
    async with (
        two_replicas(tmp_path, vendor) as (one, other),
        open_stream(one, "POST", "/v1/runs", json=TALK) as stream,
    ):
        run_id = (await opened(stream))["run_id"]
        await stream.until("awaiting_input")
        path = f"/v1/runs/{run_id}/stream"
        async with open_stream(other, "GET", path) as observer:
            await observer.until("awaiting_input")
            for turn in range(1, 9):
                await say(one if turn % 2 else other, run_id, f"question {turn}")
                for reader in (stream, observer):
                    steer = await reader.until("steer")
                    assert steer.data["user_input"]["text"] == f"question {turn}"
                    assert (await reader.until("text")).data["text"] == f"answer {turn}"
                    await reader.until("awaiting_input")


async def test_no_two_replicas_both_accept_the_last_input_that_fits(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    go_on = asyncio.Event()
    vendor.script(says("wait\n", go_on), says("listening"))
    async with (
        two_replicas(tmp_path, vendor) as replicas,
        open_stream(replicas[0], "POST", "/v1/runs", json=TALK) as stream,
    ):
        path = f"/v1/runs/{(await opened(stream))['run_id']}/input"
        await stream.until("text")
        answers = await asyncio.gather(
            *(replicas[i % 2].http.post(path, json={"text": f"{i}"}) for i in range(24))
        )
        codes = [answer.status_code for answer in answers]
        assert (codes.count(200), codes.count(429)) == (16, 8)
        go_on.set()
        await stream.until("awaiting_input")
        assert len(told(vendor)) == 2 + 16


async def test_a_parked_run_survives_a_restart_of_everything(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(says("hello"), says("fine"))
    async with (
        serving(tmp_path, CONFIG, environment(vendor)) as gateway,
        open_stream(gateway, "POST", "/v1/runs", json=TALK) as stream,
    ):
        run = await opened(stream)
        last = await stream.until("awaiting_input")
    async with serving(tmp_path, CONFIG, environment(vendor)) as gateway:
        path = f"/v1/runs/{run['run_id']}/stream?after={last.id}"
        async with open_stream(gateway, "GET", path) as stream:
            await stream.until("agent")
            await say(gateway, run["run_id"], "how are you?")
            assert (await stream.until("text")).data["text"] == "fine"
            await stream.until("awaiting_input")
        assert told(vendor) == [*people("hi"), Told("assistant", "hello"), *people("how are you?")]
        await cancel_all(gateway)
        await prove_everything(gateway.runtime.store)
