"""What hooks are sent, what their answers mean, and in which order they are asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from events.hooks import HookRegistered
from events.log import EventStore
from events.memory_store import MemoryServer
from events.vocabulary import CallReviewed
from loomcycle.hooks.chain import HookChain, HookedCall
from loomcycle.hooks.client import MAX_ANSWER, HookClient
from loomcycle.hooks.registry import HookRegistry
from loomcycle.tools.base import ToolOutput
from tests.wire.vendors import Cut, FakeVendor, Json, Reply, Stall, json_reply

CALL = HookedCall(
    tenant="acme",
    agent="writer",
    user_id="u1",
    agent_id="a_1",
    tool_use_id="call_1",
    tool="WebFetch",
    input=b'{"url":"https://x"}',
)
NOTHING = Reply([], status=200)
DENIED = "tool_call denied: hook app/guard unavailable"
DISCARDED = "tool_result discarded: hook app/audit unavailable"


class World:
    """Hooks of one deployment; all callbacks go to ``app``."""

    def __init__(self, app: FakeVendor, client: HookClient) -> None:
        self.app = app
        self.store: EventStore = MemoryServer().connect("p_1")
        self.registry = HookRegistry(self.store)
        self.client = client
        self.permitted: tuple[str, ...] = ()

    async def hook(self, name: str, phase: str = "pre", **fields: Any) -> None:
        given = {
            "id": f"hook_{name}",
            "owner": "app",
            "callback_url": f"{self.app.url}/{name}",
            "registered_at_ns": 1,
        }
        await self.registry.register(
            HookRegistered(name=name, phase=phase, **given | fields)  # type: ignore[arg-type]
        )

    def answers(self, name: str, answer: Reply | Json) -> None:
        reply = answer if isinstance(answer, Reply) else json_reply(answer)
        self.app.route("POST", f"/{name}", reply)

    @property
    def chain(self) -> HookChain:
        return HookChain(self.registry, self.client, self.permitted)

    @property
    def asked(self) -> list[str]:
        return [request.target.removeprefix("/") for request in self.app.requests]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    client = HookClient()
    async with FakeVendor() as app:
        yield World(app, client)
        await client.close()


async def test_a_hook_before_a_call_is_sent_who_calls_what(world: World) -> None:
    await world.hook("guard")
    world.answers("guard", NOTHING)
    verdict = await world.chain.before(CALL)
    assert (verdict.input, verdict.denied, verdict.hosts, verdict.notes) == (None, None, (), [])
    request = world.app.last
    assert request.headers["content-type"] == request.headers["accept"] == "application/json"
    assert "authorization" not in request.headers
    assert request.json == {
        "phase": "pre",
        "owner": "app",
        "hook_name": "guard",
        "agent": "writer",
        "user_id": "u1",
        "agent_id": "a_1",
        "tool_call": {"id": "call_1", "name": "WebFetch", "input": {"url": "https://x"}},
    }


async def test_an_unknown_user_is_left_out(world: World) -> None:
    await world.hook("guard")
    world.answers("guard", NOTHING)
    await world.chain.before(replace(CALL, user_id=""))
    assert "user_id" not in world.app.last.json


async def test_a_rewritten_input_is_what_later_hooks_see(world: World) -> None:
    for name in ("one", "two", "three"):
        await world.hook(name)
    world.answers("one", {"input": {"n": 1}})
    world.answers("two", {"input": None})
    world.answers("three", {"input": [1, 2], "unknown": True})
    verdict = await world.chain.before(CALL)
    inputs = [request.json["tool_call"]["input"] for request in world.app.requests]
    assert inputs == [{"url": "https://x"}, {"n": 1}, {"n": 1}]
    assert verdict.input is not None
    assert json.loads(bytes(verdict.input)) == [1, 2]


async def test_a_deny_ends_the_chain_and_drops_the_grants(world: World) -> None:
    world.permitted = ("app",)
    for name in ("one", "two", "three"):
        await world.hook(name)
    world.answers("one", {"allow_hosts": ["a.com"]})
    world.answers("two", {"deny": {"text": "cached"}, "input": {"n": 1}})
    world.answers("three", NOTHING)
    verdict = await world.chain.before(CALL)
    assert verdict.denied == ToolOutput("cached", False)
    assert (verdict.input, verdict.hosts) == (None, ())
    assert world.asked == ["one", "two"]


@pytest.mark.parametrize(
    "answer",
    [
        Reply([b"{}"], status=500),
        Reply([b"not json"]),
        Reply([b'{"deny": "no object"}']),
        Reply([b'{"input": "\xff"}']),
        Reply([b"[" * 20_000 + b"]" * 20_000]),
        Reply([b" " * (MAX_ANSWER + 1)]),
        Reply([b'{"in', Cut()]),
        Reply(cut_headers=True),
        Reply([Stall()]),
        Reply(stall_headers=True),
        Reply(status=302, headers={"Location": "/one"}),
    ],
    ids=[
        "status",
        "no-json",
        "wrong-type",
        "no-utf-8",
        "deep",
        "too-long",
        "cut",
        "hung-up",
        "stalled-body",
        "stalled",
        "redirects-for-ever",
    ],
)
async def test_a_failing_guard_lets_the_call_pass_or_not_as_it_was_registered(
    world: World, answer: Reply
) -> None:
    await world.hook("one", timeout_ms=300)
    world.answers("one", answer)
    world.app.route("GET", "/one", answer)
    verdict = await world.chain.before(CALL)
    assert verdict.denied is None
    assert verdict.notes[0].startswith("app/one failed and was passed over: ")
    await world.hook("guard", fail_mode="closed", timeout_ms=300)
    await world.hook("last")
    world.answers("guard", answer)
    world.app.route("GET", "/guard", answer)
    verdict = await world.chain.before(CALL)
    assert verdict.denied == ToolOutput(DENIED, True)
    assert "last" not in world.asked
    assert world.app.url not in " ".join(verdict.notes)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[", "https://\0", "http://"])
async def test_an_address_that_leads_nowhere_is_a_failure(world: World, url: str) -> None:
    await world.hook("guard", fail_mode="closed", callback_url=url)
    assert (await world.chain.before(CALL)).denied == ToolOutput(DENIED, True)


@pytest.mark.parametrize("body", [b"", b" \n ", b"{}", b"null", b'{"other": 1}'])
async def test_an_empty_answer_changes_nothing(world: World, body: bytes) -> None:
    await world.hook("guard", fail_mode="closed")
    await world.hook("audit", "post", fail_mode="closed")
    world.answers("guard", Reply([body]))
    world.answers("audit", Reply([body]))
    verdict = await world.chain.before(CALL)
    assert (verdict.input, verdict.denied, verdict.notes) == (None, None, [])
    output = ToolOutput("text")
    assert await world.chain.after(CALL, output) is output


async def test_no_content_changes_nothing(world: World) -> None:
    await world.hook("guard", fail_mode="closed")
    world.answers("guard", Reply(status=204, close_delimited=True))
    assert (await world.chain.before(CALL)).denied is None


async def test_redirects_are_followed_as_browsers_do(world: World) -> None:
    await world.hook("guard", fail_mode="closed")
    world.answers("guard", Reply(status=307, headers={"Location": "/same"}))
    world.answers("same", Reply(status=303, headers={"Location": "/got"}))
    world.app.route("GET", "/got", json_reply({"input": {"n": 7}}))
    verdict = await world.chain.before(CALL)
    assert verdict.input is not None
    assert [r.method for r in world.app.requests] == ["POST", "POST", "GET"]
    assert world.app.requests[1].json == world.app.requests[0].json


async def test_cookies_are_forgotten(world: World) -> None:
    await world.hook("guard")
    world.answers("guard", Reply([b"{}"], headers={"Set-Cookie": "a=b; Path=/"}))
    await world.chain.before(CALL)
    await world.chain.before(CALL)
    assert "cookie" not in world.app.last.headers


async def test_hooks_after_a_call_are_asked_in_reverse(world: World) -> None:
    for name in ("one", "two", "three"):
        await world.hook(name, "post")
    world.answers("three", {"result": {"text": "third", "is_error": True}})
    world.answers("two", Reply(status=500))
    world.answers("one", NOTHING)
    output = await world.chain.after(CALL, ToolOutput("tool"))
    assert world.asked == ["three", "two", "one"]
    assert (output.text, output.is_error) == ("third", True)
    told = [request.json["tool_result"] for request in world.app.requests]
    assert told == [{"text": "tool"}, *[{"text": "third", "is_error": True}] * 2]
    assert world.app.last.json["tool_call"]["input"] == {"url": "https://x"}
    (note,) = output.events
    assert isinstance(note, CallReviewed)
    assert note.notes == (
        "app/three replaced the result",
        "app/two failed and was passed over: status 500",
    )


async def test_an_absent_error_flag_makes_a_result_a_success(world: World) -> None:
    await world.hook("audit", "post")
    world.answers("audit", {"result": {"text": "fine"}})
    output = await world.chain.after(CALL, ToolOutput("broken", True))
    assert (output.text, output.is_error) == ("fine", False)


async def test_a_closed_hook_behind_a_call_withholds_its_result(world: World) -> None:
    await world.hook("never", "post")
    await world.hook("audit", "post", fail_mode="closed")
    world.answers("audit", Reply(status=502))
    output = await world.chain.after(CALL, ToolOutput("secret"))
    assert (output.text, output.is_error) == (DISCARDED, True)
    assert world.asked == ["audit"]


async def test_only_permitted_owners_grant_hosts(world: World) -> None:
    world.permitted = ("app", "acme:inner", "other:inner")
    await world.hook("first")
    await world.hook("tenants", owner="inner", tenant="acme")
    await world.hook("worlds", owner="inner", tenant="")
    await world.hook("stranger", owner="x", tenant="acme")
    world.answers("first", {"allow_hosts": [" A.com ", "", ".", None, ".b.com"]})
    world.answers("tenants", {"allow_hosts": ["c.com", "a.com"]})
    world.answers("worlds", {"allow_hosts": ["d.com"], "input": {"n": 1}})
    world.answers("stranger", {"allow_hosts": ["e.com"]})
    verdict = await world.chain.before(CALL)
    assert verdict.hosts == ("a.com", ".b.com", "c.com")
    assert verdict.granted_by == ("inner", "tenants")
    assert verdict.input is not None


async def test_a_hook_fires_for_its_tenant_agents_and_tools_only(world: World) -> None:
    await world.hook("all")
    await world.hook("none-given", agents=(), tools=())
    await world.hook("matches", tenant="acme", agents=("x", "wri*"), tools=("Web*",))
    await world.hook("other-tenant", tenant="b")
    await world.hook("other-agent", agents=("Writer", "writ"))
    await world.hook("other-tool", tools=("*Fetch",))
    await world.hook("both-must-match", agents=("writer",), tools=("Read",))
    await world.hook("later", "post")
    for name in ("all", "none-given", "matches"):
        world.answers(name, NOTHING)
    await world.chain.before(CALL)
    assert world.asked == ["all", "none-given", "matches"]


async def test_a_deployment_without_hooks_says_so(world: World) -> None:
    assert not world.chain.any
    await world.hook("guard")
    assert world.chain.any
    assert world.chain.guards("acme", "writer", "Read")
