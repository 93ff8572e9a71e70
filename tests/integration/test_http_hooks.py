"""Hooks through HTTP: registered, listed, deleted, and around the calls of real runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from events.embedded import EmbeddedServer
from events.nats_api import Api
from loomcycle.auth import Principal
from loomcycle.commands.hooks import HookRequest
from loomcycle.errors import HookNotFound
from loomcycle.wakes import wake_data
from tests.e2e.proofs import prove_everything, rows, whole_texts
from tests.e2e.turns import Call, asked, conversation, reply
from tests.wire.gateway import (
    GatewayUnderTest,
    Json,
    SseFrame,
    open_stream,
    serving,
    sse_frames,
    until,
)
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, json_reply
from tests.wire.witness import Pay

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECRET = "sesame-of-the-hooks-7781"

CONFIG = """
concurrency: {max_concurrent_runs: 4}
runtime: {reader_grace_ms: 50}
hooks: {permit_host_widen: {owners: [app]}}
interruption: {}
agents:
  writer: {provider: openai, model: gpt-fake-1, allowed_tools: [Pay, Memory], memory_scopes: [user]}
  counter:
    provider: code-js
    allowed_tools: [Memory]
    memory_scopes: [user]
    code: |
      function run(input) {
        try {
          return JSON.stringify(Memory.set({scope: "user", key: "k", value: 1}));
        } catch (refused) { return "refused: " + refused.message; }
      }
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption]
    interruption: {enabled: true, kinds: [question]}
"""


def settings(vendor: FakeVendor) -> dict[str, str]:
    return environment(vendor, APP_TOKEN=SECRET, LOOMCYCLE_CODE_AGENTS_ENABLED="1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[FakeVendor]:
    """The application that registers hooks."""
    async with FakeVendor() as app:
        yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    environ = settings(vendor)
    async with serving(tmp_path_factory.mktemp("hooks"), CONFIG, environ) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)
        report = await gateway.runtime.views.verify()
        assert report.equal, report


@pytest_asyncio.fixture(loop_scope="module")
async def pay(gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor) -> Pay:
    """The tool, in a deployment without hooks."""
    for fake in (vendor, app):
        fake.replies.clear()
        fake.requests.clear()
        fake.routes.clear()
    pay = Pay()
    install(gateway, pay)
    for hook in await listed(gateway):
        assert (await gateway.http.delete(f"/v1/hooks/{hook['id']}")).status_code == 200
    return pay


def install(gateway: GatewayUnderTest, pay: Pay) -> None:
    tools = gateway.runtime.services.tools
    assert isinstance(tools, dict)
    tools[Pay.name] = pay


async def listed(gateway: GatewayUnderTest) -> list[Json]:
    response = await gateway.http.get("/v1/hooks")
    assert response.status_code == 200, response.text
    hooks: list[Json] = response.json()["hooks"]
    return hooks


async def register(gateway: GatewayUnderTest, app: FakeVendor, name: str, **fields: Any) -> str:
    given = {"owner": "app", "phase": "pre", "callback_url": f"{app.url}/{name}"}
    response = await gateway.http.post("/v1/hooks", json={"name": name, **given, **fields})
    assert response.status_code == 200, response.text
    ident: str = response.json()["id"]
    return ident


def calls(*inputs: Json) -> Reply:
    return reply(
        "openai", calls=[Call(f"call_{i}", "Pay", given) for i, given in enumerate(inputs)]
    )


async def ran(gateway: GatewayUnderTest, vendor: FakeVendor, *inputs: Json) -> list[SseFrame]:
    """A whole run whose first turn makes these calls; its stream, and the transcript, agree."""
    vendor.script(calls(*inputs), reply("openai", "thanks"))
    frames = await gateway.run(user_id="u1")
    session = next(f.data["text"] for f in frames if f.event == "session")
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    assert rows(transcript) == whole_texts(frames)
    again = await gateway.http.get(f"/v1/runs/{run_of(frames)}/stream")
    assert whole_texts(sse_frames(again.text))[1:] == whole_texts(frames)
    return frames


def run_of(frames: list[SseFrame]) -> str:
    run: str = next(f.data["run_id"] for f in frames if f.event == "agent")
    return run


def told(vendor: FakeVendor) -> tuple[str, ...]:
    """What the model was told of its calls."""
    return conversation("openai", asked(vendor)[-1])[-1].results


def results(frames: list[SseFrame]) -> list[tuple[str, bool]]:
    return [
        (f.data["text"], f.data.get("is_error", False)) for f in frames if f.event == "tool_result"
    ]


# --- the registry ---------------------------------------------------------------------------------


async def test_hooks_are_listed_in_the_order_of_their_chain(
    gateway: GatewayUnderTest, app: FakeVendor, pay: Pay
) -> None:
    first = await register(gateway, app, "one")
    await register(gateway, app, "two", tools=["Web*"], agents=[], timeout_ms=99_000_000)
    assert len(first) == len("hook_") + 16
    again = await register(gateway, app, "one", phase="post", fail_mode="closed")
    one, two = await listed(gateway)
    registered_at = one.pop("registered_at")
    assert registered_at.endswith("Z")
    assert "." in registered_at
    assert one == {
        "id": again,
        "tenant": "",
        "owner": "app",
        "name": "one",
        "phase": "post",
        "agents": None,
        "tools": None,
        "callback_url": f"{app.url}/one",
        "fail_mode": "closed",
        "timeout_ms": 0,
    }
    assert (two["name"], two["agents"], two["tools"]) == ("two", [], ["Web*"])
    assert (two["fail_mode"], two["timeout_ms"]) == ("open", 99_000_000)
    gone = await gateway.http.delete(f"/v1/hooks/{first}")
    assert gone.status_code == 404
    assert gone.json() == {"code": "not_found", "error": f'no hook with id "{first}"'}
    assert (await gateway.http.delete(f"/v1/hooks/{again}")).json() == {"deleted": again}
    assert [hook["name"] for hook in await listed(gateway)] == ["two"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"owner": " "}, "owner required"),
        ({"owner": None, "name": ""}, "owner required"),
        ({"name": "\t"}, "name required"),
        ({"phase": "during"}, "phase must be"),
        ({"phase": ""}, "phase must be"),
        ({"callback_url": ""}, "callback_url required"),
        ({"callback_url": "HTTP://x"}, "callback_url must begin with"),
        ({"callback_url": "ftp://x", "fail_mode": "x"}, "callback_url must begin with"),
        ({"fail_mode": "shut", "timeout_ms": -1}, "fail_mode must be"),
        ({"timeout_ms": -1}, "timeout_ms must not be negative"),
        ({"callback_url": f"http://x/?t={SECRET}"}, "callback_url holds a secret"),
    ],
)
async def test_a_wrong_registration_is_refused_with_the_first_reason(
    gateway: GatewayUnderTest, pay: Pay, fields: Json, reason: str
) -> None:
    right = {"owner": "app", "name": "n", "phase": "pre", "callback_url": "http://x"}
    response = await gateway.http.post("/v1/hooks", json=right | fields)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_registration"
    error = response.json()["error"]
    assert error.startswith(f"connector: invalid hook registration: {reason}")
    assert SECRET not in error
    assert await listed(gateway) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"owner": 1}', b" " * ((1 << 20) + 1)])
async def test_what_is_no_json_of_a_registration_is_refused(
    gateway: GatewayUnderTest, pay: Pay, body: bytes
) -> None:
    response = await gateway.http.post("/v1/hooks", content=body)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_json"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
async def test_a_registration_may_call_its_json_anything(
    gateway: GatewayUnderTest, pay: Pay, content_type: str
) -> None:
    hook = {"owner": "app", "name": "n", "phase": "pre", "callback_url": "http://127.0.0.1:9/"}
    headers = {"Content-Type": content_type}
    response = await gateway.http.post("/v1/hooks", content=json.dumps(hook), headers=headers)
    assert response.status_code == 200, response.text


async def test_a_deletion_needs_an_id(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.delete("/v1/hooks/")
    assert (response.status_code, response.json()["code"]) == (400, "missing_id")


async def test_tenants_see_and_delete_their_own_hooks_only(
    gateway: GatewayUnderTest, app: FakeVendor, pay: Pay
) -> None:
    commands = gateway.runtime.hooks
    wanted = HookRequest(owner="app", name="n", phase="pre", callback_url=f"{app.url}/n")
    scopes = ("substrate:tenant",)
    acme = Principal(tenant="acme", subject="a", scopes=scopes)
    other = Principal(tenant="other", subject="b", scopes=scopes)
    everybodys = await register(gateway, app, "n")
    own = await commands.register(wanted, acme)
    assert [hook.id for hook in await commands.hooks(acme)] == [own]
    assert await commands.hooks(other) == []
    assert [hook["id"] for hook in await listed(gateway)] == [everybodys, own]
    for ident in (everybodys, own):
        with pytest.raises(HookNotFound):
            await commands.delete(ident, other)
    await commands.delete(own, acme)
    assert [hook["id"] for hook in await listed(gateway)] == [everybodys]


# --- around calls ---------------------------------------------------------------------------------


async def test_a_run_without_hooks_commits_what_it_always_did(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    frames = await ran(gateway, vendor, {"sum": 1})
    assert results(frames) == [('paid {"sum":1}', False)]
    assert not app.requests
    assert "call.prepared" not in await journal(gateway, run_of(frames))


async def journal(gateway: GatewayUnderTest, run: str) -> str:
    store = gateway.runtime.store
    messages = await store.log.read(store.subjects.journals(run))
    return b"\n".join(message.data for message in messages).decode()


async def test_hooks_wrap_each_other_around_a_call(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    for name, phase in [("p1", "pre"), ("p2", "pre"), ("q1", "post"), ("q2", "post")]:
        await register(gateway, app, name, phase=phase)
    app.route("POST", "/p1", json_reply({"input": {"sum": 2}}))
    app.route("POST", "/p2", Reply())
    app.route("POST", "/q2", json_reply({"result": {"text": "seen"}}))
    app.route("POST", "/q1", Reply(status=500))
    frames = await ran(gateway, vendor, {"sum": 1})
    assert [r.target for r in app.requests] == ["/p1", "/p2", "/q2", "/q1"]
    assert [r.json["tool_call"]["input"]["sum"] for r in app.requests] == [1, 2, 1, 1]
    assert app.requests[2].json["tool_result"] == {"text": 'paid {"sum":2}'}
    assert app.requests[0].json["agent_id"] == next(
        f.data["agent_id"] for f in frames if f.event == "agent"
    )
    assert pay.paid == [{"sum": 2}]
    assert results(frames) == [("seen", False)]
    assert told(vendor) == ("seen",)
    (shown,) = [f.data for f in frames if f.event == "tool_call"]
    assert shown["tool_use"]["input"] == {"sum": 1}
    given = [f.data["tool_use"]["input"] for f in frames if f.event == "tool_result"]
    assert given == [{"sum": 1}]


async def test_a_denied_call_does_not_run_and_is_reviewed_all_the_same(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "guard")
    await register(gateway, app, "audit", phase="post")
    app.route("POST", "/guard", json_reply({"deny": {"text": "too much", "is_error": True}}))
    app.route("POST", "/audit", Reply())
    frames = await ran(gateway, vendor, {"sum": 1})
    assert results(frames) == [("too much", True)]
    assert pay.paid == []
    assert app.last.json["tool_result"] == {"text": "too much", "is_error": True}


async def test_a_guard_that_is_away_closes_if_it_was_told_to(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "guard", fail_mode="closed")
    app.route("POST", "/guard", Reply(status=503))
    frames = await ran(gateway, vendor, {"sum": 1})
    assert results(frames) == [("tool_call denied: hook app/guard unavailable", True)]
    await register(gateway, app, "guard", fail_mode="open")
    frames = await ran(gateway, vendor, {"sum": 2})
    assert results(frames) == [('paid {"sum":2}', False)]


async def test_hosts_are_granted_to_one_call_and_told_before_its_result(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "widen")
    await register(gateway, app, "stranger", owner="stranger")
    app.route(
        "POST", "/widen", json_reply({"allow_hosts": ["API.x"], "input": {"url": "http://y"}})
    )
    app.route("POST", "/stranger", json_reply({"allow_hosts": ["z"]}))
    frames = await ran(gateway, vendor, {"url": "http://x"})
    assert pay.hosts == [("api.x",)]
    kinds = [f.event for f in frames if f.event in ("tool_call", "host_widened", "tool_result")]
    assert kinds == ["tool_call", "host_widened", "tool_result"]
    (widened,) = [f.data for f in frames if f.event == "host_widened"]
    assert widened == {
        "type": "host_widened",
        "host_widening": {
            "tool_call_id": "call_0",
            "tool_name": "Pay",
            "url": "http://y",
            "hook_owner": "app",
            "hook_name": "widen",
            "hosts_added": ["api.x"],
        },
    }


async def test_calls_of_one_turn_pass_their_chains_at_the_same_time(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    both = asyncio.Event()
    await register(gateway, app, "guard", fail_mode="closed")
    app.route("POST", "/guard", Reply([Hold(both), b"{}"]))
    running = asyncio.create_task(ran(gateway, vendor, {"sum": 1}, {"sum": 2}, {"sum": 3}))
    await app.wait_for(lambda app: len(app.requests) == 3)
    assert pay.paid == []
    both.set()
    frames = await running
    assert sorted(pay.paid, key=str) == [{"sum": 1}, {"sum": 2}, {"sum": 3}]
    assert [text for text, _ in sorted(results(frames))] == list(told(vendor))


async def test_programs_pass_the_same_chain(
    gateway: GatewayUnderTest, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "guard")
    app.route("POST", "/guard", json_reply({"deny": {"text": "not today", "is_error": True}}))
    frames = await gateway.run("counter", user_id="u1")
    assert results(frames) == [("not today", True)]
    request = app.last.json
    assert (request["agent"], request["tool_call"]["name"]) == ("counter", "Memory")


async def test_the_answer_of_a_person_is_reviewed_too(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "audit", phase="post")
    app.route("POST", "/audit", json_reply({"result": {"text": "42"}}))
    question = Call("call_0", "Interruption", {"op": "ask", "question": "Which?"})
    vendor.script(reply("openai", calls=[question]), reply("openai", "thanks"))
    body = {"agent": "asker", "prompt": "hi"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data["run_id"]
        ident = (await stream.until("interruption_pending")).data["interruption"]["interrupt_id"]
        path = f"/v1/runs/{run}/interrupts/{ident}/resolve"
        assert (await gateway.http.post(path, json={"answer": "41"})).status_code == 200
        frames = await stream.rest()
    assert results(frames) == [("42", False)]
    assert json.loads(app.last.json["tool_result"]["text"])["answer"] == "41"


async def test_hooks_get_what_is_masked_everywhere_else(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "guard")
    await register(gateway, app, "audit", phase="post")
    app.route("POST", "/guard", json_reply({"input": {"key": SECRET, "n": 1}}))
    app.route("POST", "/audit", Reply())
    frames = await ran(gateway, vendor, {"key": SECRET})
    assert app.requests[0].json["tool_call"]["input"] == {"key": SECRET}
    assert pay.paid[0] == {"key": SECRET, "n": 1}
    assert SECRET in app.requests[1].json["tool_result"]["text"]
    assert SECRET not in str(frames)
    assert SECRET not in await journal(gateway, run_of(frames))


async def test_a_cancel_ends_a_run_in_the_middle_of_a_callback(
    gateway: GatewayUnderTest, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    await register(gateway, app, "guard", timeout_ms=60_000)
    app.route("POST", "/guard", Reply(stall_headers=True))
    vendor.script(calls({"sum": 1}))
    body = {"agent": "writer", "prompt": "hi", "agent_id": "a_hooked"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await app.wait_for(lambda app: bool(app.requests))
        response = await gateway.http.post("/v1/agents/a_hooked/cancel", json={"reason": "enough"})
        assert response.status_code == 200
        assert (await stream.rest())[-1].event == "error"
    assert (await gateway.ended("a_hooked"))["status"] == "cancelled"
    await app.wait_for(lambda app: app.dropped > 0)
    assert pay.paid == []


# --- several processes ----------------------------------------------------------------------------


@asynccontextmanager
async def two_replicas(
    directory: Path, vendor: FakeVendor
) -> AsyncIterator[tuple[GatewayUnderTest, GatewayUnderTest]]:
    (directory / "data").mkdir()
    server = await EmbeddedServer.start(directory / "data")
    try:
        async with (
            serving(directory, CONFIG, settings(vendor)) as one,
            serving(directory, CONFIG, settings(vendor)) as two,
        ):
            yield one, two
            await prove_everything(one.runtime.store)
    finally:
        await server.stop()


async def test_a_hook_registered_anywhere_guards_runs_everywhere(
    tmp_path: Path, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    app.route("POST", "/guard", json_reply({"deny": {"text": "no"}}))
    async with two_replicas(tmp_path, vendor) as (one, two):
        for replica in (one, two):
            install(replica, pay)
        ident = await register(one, app, "guard")
        assert [hook["id"] for hook in await listed(two)] == [ident]

        async def guarded() -> bool | None:
            hooks = two.runtime.services.hooks
            return (hooks is not None and hooks.any) or None

        await until(guarded)
        assert results(await ran(two, vendor, {"sum": 1})) == [("no", False)]
        assert (await two.http.delete(f"/v1/hooks/{ident}")).status_code == 200
        assert results(await ran(two, vendor, {"sum": 2})) == [('paid {"sum":2}', False)]


async def test_a_verdict_is_not_asked_for_again_by_the_next_owner(
    tmp_path: Path, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    """The first owner leaves while the tool runs: hooks are not asked, the tool not run again."""
    app.route("POST", "/guard", json_reply({"input": {"sum": 5}}))
    app.route("POST", "/audit", Reply())
    async with two_replicas(tmp_path, vendor) as (one, two):
        pay.held = asyncio.Event()
        install(one, pay)
        install(two, Pay())
        await register(one, app, "guard")
        await register(one, app, "audit", phase="post")
        vendor.script(calls({"sum": 1}), reply("openai", "thanks"))
        body = {"agent": "writer", "prompt": "hi", "agent_id": "a_moves"}
        async with open_stream(one, "POST", "/v1/runs", json=body) as stream:
            await stream.until("tool_call")
            await until(lambda: asyncio.sleep(0, bool(pay.paid) or None))
            for owned in list(one.runtime.worker.held._held.values()):
                owned.activation.leave()
                owned.activation.interrupt()
            assert (await stream.rest())[-1].event == "done"
        assert pay.paid == [{"sum": 5}]
        assert [r.target for r in app.requests if r.target == "/guard"] == ["/guard"]
        assert "interrupted" in app.last.json["tool_result"]["text"]


async def test_a_slow_hook_after_a_call_that_waited_is_asked_once(
    tmp_path: Path, vendor: FakeVendor, app: FakeVendor, pay: Pay
) -> None:
    """While it thinks, both replicas are told to look after the run, as the sweeper would."""
    thinking = asyncio.Event()
    app.route("POST", "/audit", Reply([Hold(thinking)]))
    async with two_replicas(tmp_path, vendor) as (one, two):
        await register(one, app, "audit", phase="post", timeout_ms=60_000)
        question = Call("call_0", "Interruption", {"op": "ask", "question": "Which?"})
        vendor.script(reply("openai", calls=[question]), reply("openai", "thanks"))
        body = {"agent": "asker", "prompt": "hi"}
        async with open_stream(one, "POST", "/v1/runs", json=body) as stream:
            run = (await stream.until("agent")).data["run_id"]
            pending = (await stream.until("interruption_pending")).data["interruption"]
            await until(partial(_is_parked, two, run, parked=True))
            path = f"/v1/runs/{run}/interrupts/{pending['interrupt_id']}/resolve"
            assert (await two.http.post(path, json={"answer": "41"})).status_code == 200
            await app.wait_for(lambda app: bool(app.requests))
            await until(partial(_is_parked, two, run, parked=False))
            wakes = one.runtime.store.wakes
            for n in range(8):
                await wakes.post(run, f"again {n}", wake_data(""))
            await until(partial(_all_but_the_owners_taken, two))
            thinking.set()
            frames = await stream.rest()
        assert frames[-1].event == "done"
        assert [request.target for request in app.requests] == ["/audit"]


async def _is_parked(gateway: GatewayUnderTest, run_id: str, *, parked: bool) -> bool | None:
    row = await gateway.runtime.views.queries.run(run_id)
    return (row is not None and bool(row.parked) == parked) or None


async def _all_but_the_owners_taken(gateway: GatewayUnderTest) -> bool | None:
    """Whether the one wake is left that the run is advanced for."""
    store = gateway.runtime.store
    wakes: Any = store.wakes
    _, left = await Api(wakes._link).counts("loom-WAKES", store.subjects.any("wake"))
    return sum(left.values()) <= 1 or None
