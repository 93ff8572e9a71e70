"""Calls that run only with a person's leave: asked for, given, edited, refused, expired."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from events.embedded import EmbeddedServer
from tests.e2e.proofs import prove_everything, rows, whole_texts
from tests.e2e.turns import Call, asked, conversation, reply
from tests.wire.gateway import (
    GatewayUnderTest,
    Json,
    SseFrame,
    StreamReader,
    open_stream,
    serving,
    until,
)
from tests.wire.vendors import FakeVendor, Reply, environment, json_reply
from tests.wire.witness import Pay

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECRET = "sesame-of-the-approvals-7781"
SHAPED = "sk-Lm3pQxZtVbNhJkRwYuIo"

CONFIG = """
concurrency: {max_concurrent_runs: 4}
runtime: {reader_grace_ms: 50}
interruption: {default_timeout_ms: TIMEOUT}
agents:
  payer:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Pay, Memory]
    memory_scopes: [user]
    require_approval: ["Pa*"]
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true, kinds: [question]}
    require_approval: [Interruption]
  program:
    provider: code-js
    allowed_tools: [Memory]
    memory_scopes: [user]
    require_approval: [Memory]
    code: |
      function run(input) {
        const seen = [];
        for (const value of ["one", "two"]) {
          try {
            seen.push(JSON.stringify(Memory.set({scope: "user", key: value, value: value})));
          } catch (refused) { seen.push("refused: " + refused.message); }
        }
        return seen.join("; ");
      }
  boss:
    provider: code-js
    allowed_tools: [Agent]
    require_approval: [Agent]
    code: |
      function run(input) { return Agent.spawn({name: "payer", prompt: "pay"}); }
"""


def config(timeout_ms: int = 0) -> str:
    return CONFIG.replace("TIMEOUT", str(timeout_ms))


def settings(vendor: FakeVendor) -> dict[str, str]:
    return environment(vendor, APP_TOKEN=SECRET, LOOMCYCLE_CODE_AGENTS_ENABLED="1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("approvals")
    async with serving(directory, config(), settings(vendor)) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)
        report = await gateway.runtime.views.verify()
        assert report.equal, report


@pytest.fixture
def pay(gateway: GatewayUnderTest, vendor: FakeVendor) -> Pay:
    vendor.replies.clear()
    vendor.requests.clear()
    return installed(gateway, Pay())


def installed(gateway: GatewayUnderTest, pay: Pay) -> Pay:
    tools = gateway.runtime.services.tools
    assert isinstance(tools, dict)
    tools[Pay.name] = pay
    return pay


def calls(*inputs: Json) -> Reply:
    return reply(
        "openai", calls=[Call(f"call_{i}", "Pay", given) for i, given in enumerate(inputs)]
    )


@asynccontextmanager
async def running(
    gateway: GatewayUnderTest, agent: str = "payer", **body: Any
) -> AsyncIterator[tuple[str, StreamReader]]:
    request = {"agent": agent, "prompt": "hi", **body}
    async with open_stream(gateway, "POST", "/v1/runs", json=request) as stream:
        yield (await stream.until("agent")).data["run_id"], stream


async def question(stream: StreamReader) -> Json:
    body: Json = (await stream.until("interruption_pending")).data["interruption"]
    return body


async def answer(gateway: GatewayUnderTest, run: str, ident: str, text: str) -> None:
    path = f"/v1/runs/{run}/interrupts/{ident}/resolve"
    response = await gateway.http.post(path, json={"answer": text})
    assert response.status_code == 200, response.text


def told(vendor: FakeVendor) -> Sequence[str]:
    """What the model was told of its calls."""
    return conversation("openai", asked(vendor)[-1])[-1].results


def results(frames: list[SseFrame]) -> list[tuple[str, bool]]:
    return [
        (f.data["text"], f.data.get("is_error", False)) for f in frames if f.event == "tool_result"
    ]


async def journal(gateway: GatewayUnderTest, run: str) -> str:
    store = gateway.runtime.store
    messages = await store.log.read(store.subjects.journals(run))
    return b"\n".join(message.data for message in messages).decode()


async def inbox(gateway: GatewayUnderTest, run: str) -> str:
    store = gateway.runtime.store
    messages = await store.log.read(store.subjects.inbox("default", run))
    messages += await store.log.read(store.subjects.inbox("", run))
    assert messages
    return b"\n".join(message.data for message in messages).decode()


async def test_a_call_waits_for_leave_and_then_runs_once(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
    request = {"agent": "payer", "prompt": "hi", "user_id": "u_leave"}
    async with open_stream(gateway, "POST", "/v1/runs", json=request) as stream:
        frames = [await stream.next()]
        while frames[-1].event != "interruption_pending":
            frames.append(await stream.next())
        shown = dict(frames[-1].data["interruption"])
        run = next(f.data["run_id"] for f in frames if f.event == "agent")
        assert json.loads(shown.pop("context")) == {"tool": "Pay", "arguments": {"sum": 1}}
        ident = shown.pop("interrupt_id")
        assert len(ident) == len("intr_") + 24
        assert shown == {
            "kind": "question",
            "question": "May the tool Pay run with these arguments?",
            "options": ["approve", "deny"],
            "priority": "normal",
        }
        listed = (await gateway.http.get("/v1/users/u_leave/interrupts")).json()["interrupts"]
        assert [row["interrupt_id"] for row in listed] == [ident]
        assert pay.paid == []
        path = f"/v1/runs/{run}/interrupts/{ident}/resolve"
        refused = await gateway.http.post(path, json={"answer": "whatever"})
        assert refused.status_code == 422
        await answer(gateway, run, ident, "approve")
        frames += await stream.rest()
    assert frames[-1].event == "done"
    assert pay.paid == [{"sum": 1}]
    assert results(frames) == [('paid {"sum":1}', False)]
    session = next(f.data["text"] for f in frames if f.event == "session")
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    assert rows(transcript) == whole_texts(frames)


async def test_a_denied_call_is_told_to_the_model(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "a pity"))
    async with running(gateway) as (run, stream):
        await answer(gateway, run, (await question(stream))["interrupt_id"], "deny")
        assert results(await stream.rest()) == [("Pay was not run: denied", True)]
    assert told(vendor) == ("Pay was not run: denied",)
    assert pay.paid == []


async def test_edited_arguments_are_what_runs(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 100}), reply("openai", "thanks"))
    async with running(gateway) as (run, stream):
        ident = (await question(stream))["interrupt_id"]
        await answer(gateway, run, ident, '{"sum": 5,\n "to": "amy"}')
        frames = await stream.rest()
    assert pay.paid == [{"sum": 5, "to": "amy"}]
    given = [f.data["tool_use"]["input"] for f in frames if f.event == "tool_result"]
    assert given == [{"sum": 100}]


async def test_parallel_calls_are_asked_about_and_answered_one_by_one(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    memory = Call("call_m", "Memory", {"op": "get", "scope": "user", "key": "none"})
    both = [Call(f"call_{i}", "Pay", {"sum": i}) for i in range(3)]
    vendor.script(reply("openai", calls=[*both, memory]), reply("openai", "thanks"))
    async with running(gateway, user_id="u_many") as (run, stream):
        idents = [(await question(stream))["interrupt_id"] for _ in range(3)]
        assert len(set(idents)) == 3
        assert (await stream.until("tool_result")).data["tool_use"]["name"] == "Memory"
        await answer(gateway, run, idents[2], "approve")
        assert (await stream.until("tool_result")).data["text"] == 'paid {"sum":2}'
        await answer(gateway, run, idents[0], "deny")
        await answer(gateway, run, idents[1], '{"sum": 11}')
        await stream.rest()
    assert pay.paid == [{"sum": 2}, {"sum": 11}]
    assert told(vendor)[:3] == ("Pay was not run: denied", 'paid {"sum":11}', 'paid {"sum":2}')


async def test_an_expired_question_leaves_the_call_undone(
    tmp_path: Path, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "a pity"))
    async with serving(tmp_path, config(150), settings(vendor)) as gateway:
        installed(gateway, pay)
        async with running(gateway) as (_, stream):
            assert (await question(stream))["expires_at"].endswith("Z")
            assert results(await stream.rest()) == [("Pay was not run: not approved in time", True)]
        await prove_everything(gateway.runtime.store)
    assert pay.paid == []


async def test_a_program_waits_for_leave_call_by_call(gateway: GatewayUnderTest, pay: Pay) -> None:
    async with running(gateway, "program", user_id="u_program") as (run, stream):
        await answer(gateway, run, (await question(stream))["interrupt_id"], "approve")
        await answer(gateway, run, (await question(stream))["interrupt_id"], "deny")
        said = "".join(f.data["text"] for f in await stream.rest() if f.event == "text")
    assert said.startswith('{"ok":true}; refused: ')
    assert "Memory was not run: denied" in said


async def test_children_ask_for_themselves_and_their_spawn_is_asked_about_too(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))

    async def of_child() -> Json | None:
        listed = (await gateway.http.get("/v1/users/u_boss/interrupts")).json()["interrupts"]
        return next((row for row in listed if row["agent_name"] == "payer"), None)

    async with running(gateway, "boss", user_id="u_boss") as (run, stream):
        asked_of_boss = await question(stream)
        assert json.loads(asked_of_boss["context"])["tool"] == "Agent"
        assert await of_child() is None
        await answer(gateway, run, asked_of_boss["interrupt_id"], "approve")
        waiting = await until(of_child)
        assert pay.paid == []
        await answer(gateway, waiting["run_id"], waiting["interrupt_id"], "approve")
        frames = await stream.rest()
    assert frames[-1].event == "done"
    assert pay.paid == [{"sum": 1}]
    assert results(frames)[0][0].endswith("thanks")


async def test_leave_to_ask_is_not_the_answer_to_what_is_asked(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    asks = Call("call_0", "Interruption", {"op": "ask", "question": "Which?"})
    vendor.script(reply("openai", calls=[asks]), reply("openai", "thanks"))
    async with running(gateway, "asker") as (run, stream):
        first = await question(stream)
        await answer(gateway, run, first["interrupt_id"], "approve")
        second = await question(stream)
        assert second["interrupt_id"] != first["interrupt_id"]
        assert second["question"] == "Which?"
        await answer(gateway, run, second["interrupt_id"], "that")
        (only,) = results(await stream.rest())
    assert json.loads(only[0])["answer"] == "that"


async def test_a_question_shows_masks_and_an_edit_that_keeps_them_gets_the_values(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"key": SECRET, "sum": 1}), reply("openai", "thanks"))
    async with running(gateway) as (run, stream):
        shown = await question(stream)
        assert SECRET not in shown["context"]
        arguments = json.loads(shown["context"])["arguments"]
        assert "redacted" in arguments["key"]
        edited = json.dumps({**arguments, "sum": 2})
        await answer(gateway, run, shown["interrupt_id"], edited)
        frames = await stream.rest()
    assert pay.paid == [{"key": SECRET, "sum": 2}]
    assert SECRET not in str(frames)
    assert SECRET not in await journal(gateway, run)


async def test_a_secret_that_a_person_puts_into_an_edit_reaches_the_tool(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    own = "own-credential-of-the-run-5512"
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
    async with running(gateway, user_credentials={"bank": own}) as (run, stream):
        shown = await question(stream)
        edited = {"key": SECRET, "own": own, "shaped": SHAPED, "sum": 2}
        await answer(gateway, run, shown["interrupt_id"], json.dumps(edited))
        frames = await stream.rest()
    assert pay.paid == [edited]
    everything = await gateway.http.get(f"/v1/runs/{run}/interrupts")
    kept = [str(frames), await journal(gateway, run), await inbox(gateway, run), everything.text]
    for secret in (SECRET, own, SHAPED):
        assert not [text for text in kept if secret in text]


async def test_a_secret_that_a_person_puts_into_a_spawn_reaches_the_child(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(reply("openai", "thanks"))
    async with running(gateway, "boss") as (run, stream):
        edited = json.dumps({"name": "payer", "prompt": f"use {SECRET}"})
        await answer(gateway, run, (await question(stream))["interrupt_id"], edited)
        await stream.rest()
    assert conversation("openai", asked(vendor)[0])[-1].text == f"use {SECRET}"
    assert SECRET not in await journal(gateway, run)


async def test_white_space_around_an_answer_is_no_part_of_it(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
    async with running(gateway) as (run, stream):
        await answer(gateway, run, (await question(stream))["interrupt_id"], " approve \n")
        await stream.rest()
    assert pay.paid == [{"sum": 1}]


async def test_leave_given_in_a_pause_that_outlasts_it_is_asked_for_again(
    tmp_path: Path, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
    async with serving(tmp_path, config(1500), settings(vendor)) as gateway:
        installed(gateway, pay)
        async with running(gateway, interactive=True) as (run, stream):
            first = await question(stream)
            assert (await gateway.http.post("/v1/_pause", json={})).is_success
            await answer(gateway, run, first["interrupt_id"], "approve")
            await until(lambda: past(first["expires_at"]))
            assert (await gateway.http.post("/v1/_resume", json={})).is_success
            second = await question(stream)
            assert second["interrupt_id"] != first["interrupt_id"]
            assert second["expires_at"] > first["expires_at"]
            assert pay.paid == []
            await answer(gateway, run, second["interrupt_id"], "approve")
            await stream.until("awaiting_input")
            assert pay.paid == [{"sum": 1}]
        await gateway.http.post(f"/v1/agents/a_{run[2:]}/cancel")
        await gateway.ended(f"a_{run[2:]}")
        await prove_everything(gateway.runtime.store)


async def past(time: str) -> bool | None:
    """Whether an RFC 3339 time is over."""
    return datetime.now(UTC) > datetime.fromisoformat(time) or None


# --- with hooks -----------------------------------------------------------------------------------


@asynccontextmanager
async def guarded(gateway: GatewayUnderTest) -> AsyncIterator[FakeVendor]:
    """An application with a hook before each payment."""
    async with FakeVendor() as app:
        body = {"owner": "app", "name": "g", "phase": "pre", "tools": ["Pay"]}
        hook = {**body, "callback_url": f"{app.url}/g", "fail_mode": "closed"}
        ident = (await gateway.http.post("/v1/hooks", json=hook)).json()["id"]
        yield app
        await gateway.http.delete(f"/v1/hooks/{ident}")


async def test_people_are_asked_about_what_hooks_made_of_a_call(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    async with guarded(gateway) as app:
        app.script(json_reply({"input": {"sum": 9}}))
        vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
        async with running(gateway) as (run, stream):
            shown = await question(stream)
            assert json.loads(shown["context"])["arguments"] == {"sum": 9}
            await answer(gateway, run, shown["interrupt_id"], "approve")
            await stream.rest()
        assert pay.paid == [{"sum": 9}]
        assert len(app.requests) == 1


async def test_a_call_that_hooks_deny_asks_nobody(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    async with guarded(gateway) as app:
        app.script(json_reply({"deny": {"text": "no"}}))
        vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
        async with running(gateway) as (_, stream):
            frames = await stream.rest()
    assert results(frames) == [("no", False)]
    assert "interruption_pending" not in [f.event for f in frames]


async def test_hooks_see_an_edit_and_what_they_change_of_it_is_asked_about_again(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    async with guarded(gateway) as app:
        app.script(Reply([b"{}"]), json_reply({"input": {"sum": 3, "fee": 1}}), Reply(status=500))
        vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
        async with running(gateway) as (run, stream):
            await answer(gateway, run, (await question(stream))["interrupt_id"], '{"sum": 2}')
            again = await question(stream)
            assert json.loads(again["context"])["arguments"] == {"sum": 3, "fee": 1}
            assert pay.paid == []
            await answer(gateway, run, again["interrupt_id"], "approve")
            await stream.rest()
        assert [r.json["tool_call"]["input"] for r in app.requests] == [{"sum": 1}, {"sum": 2}]
    assert pay.paid == [{"sum": 3, "fee": 1}]


async def test_a_hook_that_comes_after_the_leave_was_asked_for_asks_again_if_it_rewrites(
    gateway: GatewayUnderTest, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
    async with running(gateway) as (run, stream):
        first = await question(stream)
        async with guarded(gateway) as app:
            app.script(json_reply({"input": {"sum": 1000}}))
            await answer(gateway, run, first["interrupt_id"], "approve")
            second = await question(stream)
            assert json.loads(second["context"])["arguments"] == {"sum": 1000}
            await answer(gateway, run, second["interrupt_id"], "deny")
            await stream.rest()
    assert pay.paid == []


# --- several processes ----------------------------------------------------------------------------


async def test_leave_is_given_on_another_replica_after_a_restart_of_everything(
    tmp_path: Path, vendor: FakeVendor, pay: Pay
) -> None:
    vendor.script(calls({"key": SECRET, "sum": 1}), reply("openai", "thanks"))
    request = {"agent": "payer", "prompt": "hi", "agent_id": "a_days", "interactive": True}
    async with serving(tmp_path, config(), settings(vendor)) as before:
        installed(before, pay)
        async with open_stream(before, "POST", "/v1/runs", json=request) as stream:
            run = (await stream.until("agent")).data["run_id"]
            ident = (await question(stream))["interrupt_id"]
    server = await EmbeddedServer.start(tmp_path / "data")
    try:
        async with (
            serving(tmp_path, config(), settings(vendor)) as one,
            serving(tmp_path, config(), settings(vendor)) as two,
        ):
            for replica in (one, two):
                installed(replica, pay)
            path = f"/v1/runs/{run}/interrupts/{ident}/resolve"
            both = await asyncio.gather(
                *(r.http.post(path, json={"answer": "approve"}) for r in (one, two))
            )
            assert sorted(r.status_code for r in both) == [200, 409]
            async with open_stream(two, "GET", f"/v1/runs/{run}/stream") as stream:
                assert (await stream.until("tool_result")).data["text"].startswith("paid")
                await stream.until("awaiting_input")
            await one.http.post("/v1/agents/a_days/cancel")
            await two.ended("a_days")
            await prove_everything(one.runtime.store)
    finally:
        await server.stop()
    assert pay.paid == [{"key": SECRET, "sum": 1}]
