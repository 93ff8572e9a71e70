"""Questions to people: asked by runs, listed, answered, expired (http-runs.md 15.2 and 15.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.proofs import open_log, prove_everything
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.e2e.secrets import assert_no_seals, assert_not_in_streams
from tests.e2e.turns import Call, asked, conversation, reply
from tests.wire.gateway import GatewayUnderTest, Json, StreamReader, open_stream, serving, until
from tests.wire.vendors import FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 4}
runtime: {reader_grace_ms: 50}
interruption: {max_timeout_ms: 3600000}
agents:
  asker: &asker
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true, kinds: [question]}
  few: {<<: *asker, interruption: {enabled: true, max_pending: 2}}
  mute: {<<: *asker, interruption: {enabled: false}}
  other: {<<: *asker, interruption: {enabled: true, kinds: [review]}}
  program:
    provider: code-js
    allowed_tools: [Interruption]
    interruption: {enabled: true}
    code: |
      function run(input) {
        var first = JSON.parse(Interruption({op: "ask", question: "first?"})).answer;
        var second = JSON.parse(Interruption({op: "ask", question: "after " + first})).answer;
        return first + " and " + second;
      }
"""

CODE = {"LOOMCYCLE_CODE_AGENTS_ENABLED": "1"}

SECRET = "hunter2-of-the-answers-4417"
SHAPED = "sk-Kv8rTgYhUjIkOlPzXcVb"

NEVER = "0001-01-01T00:00:00Z"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("interrupts")
    variables = environment(vendor, **CODE)
    async with serving(directory, CONFIG, variables) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)
        report = await gateway.runtime.views.verify()
        assert report.equal, report


@pytest.fixture(autouse=True)
def nothing_scripted(vendor: FakeVendor) -> None:
    vendor.replies.clear()
    vendor.requests.clear()


def calls(*inputs: Json) -> Any:
    return reply(
        "openai",
        calls=[Call(f"call_{i}", "Interruption", value) for i, value in enumerate(inputs)],
    )


def ask(question: str = "Which?", **fields: Any) -> Json:
    return {"op": "ask", "question": question, **fields}


@asynccontextmanager
async def asking(
    gateway: GatewayUnderTest,
    vendor: FakeVendor,
    *inputs: Json,
    thanks: bool = True,
    **body: Any,
) -> AsyncIterator[tuple[Json, StreamReader]]:
    """A run whose first turn makes these calls; the script also says ``thanks`` for the second."""
    vendor.script(calls(*inputs), *([reply("openai", "thanks")] if thanks else []))
    request = {"agent": "asker", "prompt": "hi", **body}
    async with open_stream(gateway, "POST", "/v1/runs", json=request) as stream:
        run = (await stream.until("agent")).data
        yield run, stream


async def resolve(gateway: GatewayUnderTest, run_id: str, ident: str, **body: Any) -> Any:
    path = f"/v1/runs/{run_id}/interrupts/{ident}/resolve"
    return await gateway.http.post(path, json=body)


async def rows(gateway: GatewayUnderTest, path: str, **params: str) -> list[Json]:
    response = await gateway.http.get(path, params=params)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["total"] == len(found["interrupts"])
    listed: list[Json] = found["interrupts"]
    return listed


async def of_run(gateway: GatewayUnderTest, run_id: str, status: str = "") -> list[Json]:
    return await rows(gateway, f"/v1/runs/{run_id}/interrupts", status=status)


async def pending(stream: StreamReader) -> Json:
    body: Json = (await stream.until("interruption_pending")).data["interruption"]
    return body


def results(vendor: FakeVendor) -> Sequence[str]:
    """What the model was told of its calls."""
    return conversation("openai", asked(vendor)[-1])[-1].results


async def test_a_question_is_asked_listed_and_answered(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    question = ask("Red?", options=["yes", "no"], context="the car", priority="urgent")
    async with asking(gateway, vendor, question, user_id="u_asked", agent_id="a_asked") as (
        run,
        stream,
    ):
        shown = await pending(stream)
        ident = shown.pop("interrupt_id")
        assert len(ident) == len("intr_") + 24
        expected = {"kind": "question", "question": "Red?", "options": ["yes", "no"]}
        assert shown == expected | {"context": "the car", "priority": "normal"}
        (row,) = await rows(gateway, "/v1/users/u_asked/interrupts")
        created = row.pop("created_at")
        waiting = {
            "interrupt_id": ident,
            "run_id": run["run_id"],
            "kind": "question",
            "question": "Red?",
            "options": ["yes", "no"],
            "context_data": "the car",
            "priority": "normal",
            "user_id": "u_asked",
            "agent_id": "a_asked",
            "agent_name": "asker",
        }
        assert row == waiting | {"status": "pending", "expires_at": NEVER, "resolved_at": NEVER}
        status = await gateway.status("a_asked")
        assert (status["awaited_state"], status["awaited_on"]) == ("interrupted", "question")

        response = await resolve(gateway, run["run_id"], ident, answer="yes", kind="question")
        assert response.status_code == 200, response.text
        answered = response.json()
        resolved_at = answered.pop("resolved_at")
        assert answered == {"interrupt_id": ident, "status": "resolved"}
        result = await stream.until("tool_result")
        assert "is_error" not in result.data
        assert json.loads(result.data["text"]) == {
            "interrupt_id": ident,
            "answer": "yes",
            "resolved_at": resolved_at,
            "resolved_by": "api",
        }
        await stream.until("done")
    (row,) = await of_run(gateway, run["run_id"])
    assert row == waiting | {
        "status": "resolved",
        "answer": "yes",
        "created_at": created,
        "expires_at": NEVER,
        "resolved_at": resolved_at,
        "resolved_by": "api",
    }
    assert await rows(gateway, "/v1/users/u_asked/interrupts") == []
    assert await rows(gateway, "/v1/users/u_asked/interrupts", status="all") == [row]
    assert await rows(gateway, "/v1/users/u_asked/interrupts", status="answered") == [row]
    assert await of_run(gateway, run["run_id"], "pending") == []
    assert "awaited_state" not in await gateway.status("a_asked")


async def test_a_program_asks_and_goes_on_with_the_answers(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    body = {"agent": "program", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data
        for question, answer in (("first?", "one"), ("after one", "two")):
            shown = await pending(stream)
            assert shown["question"] == question
            ident = shown["interrupt_id"]
            assert (await resolve(gateway, run["run_id"], ident, answer=answer)).is_success
        assert (await stream.until("text")).data["text"] == "one and two"
        await stream.until("done")
    found = await of_run(gateway, run["run_id"])
    assert [row["question"] for row in found] == ["after one", "first?"]


async def test_who_answered_is_noted(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    given: list[tuple[Json, Json, str]] = [
        ({"answer": "a"}, {"Cookie": "loomcycle_session=x"}, "webui"),
        ({"answer": "b", "resolved_by": "client"}, {"Cookie": "loomcycle_session=x"}, "client"),
    ]
    for body, headers, by in given:
        async with asking(gateway, vendor, ask()) as (run, stream):
            ident = (await pending(stream))["interrupt_id"]
            path = f"/v1/runs/{run['run_id']}/interrupts/{ident}/resolve"
            assert (await gateway.http.post(path, json=body, headers=headers)).is_success
            await stream.until("done")
        (row,) = await of_run(gateway, run["run_id"])
        assert (row["answer"], row["resolved_by"]) == (body["answer"], by)


async def test_a_secret_in_an_answer_is_known_to_the_model_and_masked_for_everybody_else(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    credentials = {"db": SECRET}
    async with asking(gateway, vendor, ask(), user_credentials=credentials) as (run, stream):
        ident = (await pending(stream))["interrupt_id"]
        given = {"answer": f"it is {SECRET}", "resolved_by": f"the one who knows {SECRET}"}
        assert (await resolve(gateway, run["run_id"], ident, **given)).is_success
        frames = await stream.rest()
    (told,) = results(vendor)
    assert json.loads(told)["answer"] == f"it is {SECRET}"
    shown = next(json.loads(f.data["text"]) for f in frames if f.event == "tool_result")
    assert shown["answer"] == "it is [redacted:credential]"
    (row,) = await of_run(gateway, run["run_id"])
    assert row["answer"] == "it is [redacted:credential]"
    assert row["resolved_by"] == shown["resolved_by"] == "the one who knows [redacted:credential]"
    await assert_not_in_streams([SECRET], gateway.runtime.store)
    await assert_no_seals(gateway.runtime.store, run["run_id"])


async def test_a_program_sees_the_mask_of_an_answer(gateway: GatewayUnderTest) -> None:
    body = {"agent": "program", "prompt": "hi", "user_credentials": {"db": SECRET}}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data["run_id"]
        for answer in (SECRET, "two"):
            ident = (await pending(stream))["interrupt_id"]
            assert (await resolve(gateway, run, ident, answer=answer)).is_success
        said = (await stream.until("text")).data["text"]
        await stream.until("done")
    assert said == "[redacted:credential] and two"


@pytest.mark.parametrize("option", [f"use {SECRET}", f"use {SHAPED}", " spaced "])
@pytest.mark.parametrize("by_mask", [False, True], ids=["by-text", "by-mask"])
async def test_a_masked_option_is_chosen_by_its_text_or_by_what_is_shown(
    gateway: GatewayUnderTest, vendor: FakeVendor, option: str, by_mask: bool
) -> None:
    question = ask(options=[option, "neither"])
    credentials = {"db": SECRET}
    async with asking(gateway, vendor, question, user_credentials=credentials) as (run, stream):
        shown = await pending(stream)
        path = (gateway, run["run_id"], shown["interrupt_id"])
        assert (await resolve(*path, answer="use another")).status_code == 422
        answer = shown["options"][0] if by_mask else option
        assert (await resolve(*path, answer=answer)).status_code == 200
        await stream.until("done")
    (told,) = results(vendor)
    assert json.loads(told)["answer"] == option.strip()
    (row,) = await of_run(gateway, run["run_id"])
    assert row["answer"] == row["options"][0].strip()


async def test_a_run_that_crashed_behind_an_answer_still_knows_what_was_said(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(calls(ask()), reply("openai", "hm", hold))
    request = {"agent": "asker", "prompt": "hi", "user_credentials": {"db": SECRET}}
    variables = environment(vendor, **CODE)
    async with replicas(tmp_path, CONFIG, settings(tmp_path, **variables), "only") as (replica,):
        client = Client()
        reading = asyncio.create_task(client.start(replica.http, request))
        shown = await until(lambda: _asked(client))
        path = f"/v1/runs/{client.run}/interrupts/{shown['interrupt_id']}/resolve"
        answered = await replica.http.post(path, json={"answer": f"it is {SECRET}"})
        assert answered.is_success
        await vendor.wait_for(lambda v: len(asked(v)) == 2)
        replica.kill()
        await replica.gone()
        await asyncio.gather(reading, return_exceptions=True)
        vendor.script(reply("openai", "thanks"))
        await replica.start(settings(tmp_path, **variables))
        await client.insist(replica.http)
    before, after = asked(vendor)[1:]
    assert json.loads(conversation("openai", after)[-1].results[0])["answer"] == f"it is {SECRET}"
    assert before.body == after.body
    async with open_log(tmp_path / "data") as store:
        await prove_everything(store)
        await assert_not_in_streams([SECRET], store)


async def _asked(client: Client) -> Json | None:
    shown = [f.data["interruption"] for f in client.frames if f.event == "interruption_pending"]
    return shown[0] if shown else None


async def test_refused_answers(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    choice = ask("Red?", options=["yes", "no"])
    async with (
        asking(gateway, vendor, choice, ask("Why?"), thanks=False) as (run, stream),
        asking(gateway, vendor, ask(), thanks=False) as (another, stranger),
    ):
        shown = {
            body["question"]: body["interrupt_id"]
            for body in (await pending(stream), await pending(stream))
        }
        elsewhere = (await pending(stranger))["interrupt_id"]
        run_id = run["run_id"]
        refused: list[tuple[str, Json, int]] = [
            (shown["Red?"], {"answer": "Yes"}, 422),
            (shown["Red?"], {"answer": "{}"}, 422),
            (shown["Red?"], {"answer": "yes", "kind": "review"}, 422),
            (shown["Why?"], {"answer": ""}, 422),
            (shown["Why?"], {"answer": 1}, 400),
            (elsewhere, {"answer": "x"}, 404),
            ("intr_unknown", {"answer": "x"}, 404),
            ("intr é", {"answer": "x"}, 400),
        ]
        for ident, body, status in refused:
            response = await resolve(gateway, run_id, ident, **body)
            assert response.status_code == status, (body, response.text)
            assert response.headers["content-type"].startswith("text/plain")
        unknown = await resolve(gateway, "r_0123456789abcdef", shown["Why?"], answer="x")
        assert unknown.status_code == 404
        vendor.script(reply("openai", "thanks"), reply("openai", "thanks"))
        for ident, answer in ((shown["Red?"], "no"), (shown["Why?"], "because")):
            assert (await resolve(gateway, run_id, ident, answer=answer)).status_code == 200
            again = await resolve(gateway, run_id, ident, answer=answer)
            assert (again.status_code, "pending" in again.text) == (409, False)
        await stream.until("done")
        late = await resolve(gateway, run_id, shown["Why?"], answer="x")
        assert late.status_code == 409
        assert (await resolve(gateway, another["run_id"], elsewhere, answer="x")).is_success
        await stranger.until("done")
    assert await of_run(gateway, "r_0123456789abcdef") == []


@pytest.mark.parametrize("parked", [False, True], ids=["hot", "parked"])
async def test_a_question_without_answer_expires(
    gateway: GatewayUnderTest, vendor: FakeVendor, parked: bool
) -> None:
    timeout_ms = 1400 if parked else 100
    async with asking(gateway, vendor, ask(timeout_ms=timeout_ms)) as (run, stream):
        shown = await pending(stream)
        result = (await stream.until("tool_result")).data
        assert result["is_error"]
        assert "timed_out" in result["text"]
        assert shown["interrupt_id"] in result["text"]
        await stream.until("done")
    late = await resolve(gateway, run["run_id"], shown["interrupt_id"], answer="x")
    assert (late.status_code, late.text) == (410, "interrupt expired\n")
    (row,) = await of_run(gateway, run["run_id"], "expired")
    assert (row["status"], row["resolved_by"]) == ("timed_out", "timeout")
    assert row["expires_at"] == shown["expires_at"] <= row["resolved_at"]


async def test_a_timeout_is_clamped_by_the_operator(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with asking(gateway, vendor, ask(timeout_ms=10**15), agent_id="a_clamped") as (
        run,
        stream,
    ):
        await pending(stream)
        (row,) = await of_run(gateway, run["run_id"])
        assert row["created_at"] < row["expires_at"] != NEVER
        await gateway.http.post("/v1/agents/a_clamped/cancel")
        await stream.rest()
    assert (await gateway.ended("a_clamped"))["status"] == "cancelled"
    (row,) = await of_run(gateway, run["run_id"])
    assert (row["status"], row["resolved_by"]) == ("cancelled", "agent_cancel")
    late = await resolve(gateway, run["run_id"], row["interrupt_id"], answer="x")
    assert late.status_code == 409


async def test_parallel_questions_share_one_cap(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    questions = [ask(""), *(ask(f"{i}?") for i in range(5))]
    async with asking(gateway, vendor, *questions, agent="few") as (run, stream):
        idents = [(await pending(stream))["interrupt_id"] for _ in range(2)]
        assert len(await of_run(gateway, run["run_id"])) == 2
        for ident in idents:
            assert (await resolve(gateway, run["run_id"], ident, answer="ok")).is_success
        await stream.until("done")
    told = results(vendor)
    assert "question" in told[0]
    assert ["ok" in text for text in told[1:3]] == [True, True]
    assert all("max_pending" in text for text in told[3:])


async def test_telling_waits_for_nobody(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    note = {"op": "notify", "message": "half done", "priority": "low"}
    async with asking(gateway, vendor, note) as (run, stream):
        result = json.loads((await stream.until("tool_result")).data["text"])
        await stream.until("done")
    assert result.pop("created_at").endswith("Z")
    (row,) = await of_run(gateway, run["run_id"])
    assert result == {"interrupt_id": row["interrupt_id"], "status": "delivered"}
    assert (row["status"], row["resolved_by"]) == ("cancelled", "agent_cancel")
    assert (row["question"], row["priority"]) == ("half done", "low")
    again = {"op": "cancel", "interruption_id": row["interrupt_id"]}
    async with asking(gateway, vendor, again) as (_, stream):
        await stream.until("done")
    assert json.loads(results(vendor)[0]) == {
        "interrupt_id": row["interrupt_id"],
        "status": "cancelled",
        "was_pending": False,
    }


async def test_another_run_of_the_user_takes_a_question_back(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    async with asking(gateway, vendor, ask(), thanks=False, user_id="u_back") as (_, stream):
        ident = (await pending(stream))["interrupt_id"]
        back = {"op": "cancel", "interruption_id": ident}
        async with asking(gateway, vendor, back, user_id="u_nosy") as (_, nosy):
            assert "not found" in (await nosy.until("tool_result")).data["text"]
            await nosy.until("done")
        vendor.script(calls(back), reply("openai", "thanks"), reply("openai", "thanks"))
        body = {"agent": "asker", "prompt": "hi", "user_id": "u_back"}
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as other:
            text = (await other.until("tool_result")).data["text"]
            await other.until("done")
        assert json.loads(text)["was_pending"] is True
        result = (await stream.until("tool_result")).data
        assert result["is_error"]
        assert "cancelled" in result["text"]
        assert "resolved_by=agent_cancel" in result["text"]
        await stream.until("done")


REFUSED: list[tuple[str, Json, str]] = [
    ("mute", ask(), "not enabled"),
    ("other", ask(), "interruption.kinds"),
    ("other", {"op": "notify", "message": "x"}, "interruption.kinds"),
    ("asker", {"op": "shout"}, 'unknown op "shout"'),
    ("asker", {}, "missing required field: op"),
    ("asker", {"op": "notify"}, "missing required field: message"),
    ("asker", {"op": "cancel"}, "missing required field: interruption_id"),
    ("asker", {"op": "cancel", "interruption_id": "intr_x"}, "not found"),
    ("asker", {"op": "ask", "options": "yes"}, "invalid input"),
]


async def test_refused_operations(gateway: GatewayUnderTest, vendor: FakeVendor) -> None:
    for agent, value, words in REFUSED:
        async with asking(gateway, vendor, value, agent=agent) as (run, stream):
            result = (await stream.until("tool_result")).data
            assert result["is_error"], (agent, value)
            assert words in result["text"]
            await stream.until("done")
        assert await of_run(gateway, run["run_id"]) == []


async def test_backends_of_mcp_servers_are_refused_in_words(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    config = CONFIG.replace("max_timeout_ms: 3600000", "backend: 'mcp_server:desk'")
    async with (
        serving(tmp_path, config, environment(vendor, **CODE)) as gateway,
        asking(gateway, vendor, ask()) as (_, stream),
    ):
        assert "mcp_server:desk" in (await stream.until("tool_result")).data["text"]
        await stream.until("done")


async def test_one_answer_wins_whichever_replica_it_reaches(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    async with (
        serving(tmp_path, CONFIG, environment(vendor, **CODE)) as one,
        serving(tmp_path, CONFIG, environment(vendor, **CODE)) as other,
    ):
        for _ in range(3):
            async with asking(one, vendor, ask()) as (run, stream):
                ident = (await pending(stream))["interrupt_id"]
                answers = await asyncio.gather(
                    *(
                        resolve((one, other)[i % 2], run["run_id"], ident, answer=f"{i}")
                        for i in range(8)
                    )
                )
                codes = [answer.status_code for answer in answers]
                assert sorted(codes) == [200, *[409] * 7]
                result = json.loads((await stream.until("tool_result")).data["text"])
                assert result["answer"] == str(codes.index(200))
                await stream.until("done")
            (row,) = await of_run(other, run["run_id"])
            assert row["answer"] == result["answer"]
        await prove_everything(one.runtime.store)


async def test_an_answer_reaches_a_run_across_a_restart_of_everything(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    async with (
        serving(tmp_path, CONFIG, environment(vendor, **CODE)) as gateway,
        asking(gateway, vendor, ask(), interactive=True, agent_id="a_later") as (run, stream),
    ):
        ident = (await pending(stream))["interrupt_id"]
    async with serving(tmp_path, CONFIG, environment(vendor, **CODE)) as gateway:
        (row,) = await of_run(gateway, run["run_id"], "pending")
        assert row["interrupt_id"] == ident
        assert (await resolve(gateway, run["run_id"], ident, answer="at last")).is_success
        path = f"/v1/runs/{run['run_id']}/stream"
        async with open_stream(gateway, "GET", path) as stream:
            result = await stream.until("tool_result")
            assert "at last" in result.data["text"]
            await stream.until("awaiting_input")
        await gateway.http.post("/v1/agents/a_later/cancel")
        await gateway.ended("a_later")
        async with open_stream(gateway, "GET", path) as stream:
            frames = [frame.event for frame in await stream.rest()]
        assert frames.count("interruption_pending") == frames.count("tool_result") == 1
        await prove_everything(gateway.runtime.store)


async def test_a_parked_run_asks_once_and_takes_one_answer(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    async with serving(tmp_path, CONFIG, environment(vendor, **CODE)) as gateway:
        async with asking(gateway, vendor, ask(), interactive=True, agent_id="a_killed") as (
            run,
            stream,
        ):
            ident = (await pending(stream))["interrupt_id"]
        await until(lambda: _is_let_go(gateway, run["run_id"]))
        store = gateway.runtime.store
        assert (await resolve(gateway, run["run_id"], ident, answer="one")).is_success
        again = await resolve(gateway, run["run_id"], ident, answer="two")
        assert again.status_code == 409
        journal = await store.log.read(store.subjects.journals(run["run_id"]))
        assert sum(message.data.count(b'"interruption_pending"') > 0 for message in journal) == 1
        await gateway.http.post("/v1/agents/a_killed/cancel")
        await gateway.ended("a_killed")


async def test_a_questions_timer_goes_with_its_answer(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    store = gateway.runtime.store
    async with asking(gateway, vendor, ask(timeout_ms=3_600_000)) as (run, stream):
        ident = (await pending(stream))["interrupt_id"]

        async def is_set() -> bool | None:
            return ("park", run["run_id"]) in await store.timers.pending() or None

        async def is_gone() -> bool | None:
            return ("park", run["run_id"]) not in await store.timers.pending() or None

        await until(is_set)
        assert (await resolve(gateway, run["run_id"], ident, answer="ok")).is_success
        await stream.until("done")
        await until(is_gone)


async def _is_let_go(gateway: GatewayUnderTest, run_id: str) -> bool | None:
    return None if gateway.runtime.worker.owns(run_id) else True
