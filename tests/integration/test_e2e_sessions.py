"""Sessions of several runs: what a model is told of the earlier ones, and whose they are.

Specification: http-runs.md 3.6 and 7, loop.md 4.1 and 7, auth.md 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from events.nats_api import Api
from events.streams import stream_of
from loomcycle.loading import read_commits
from replay.history import NO_RESULT
from tests.e2e.proofs import prove_everything, rows, text_of
from tests.e2e.turns import Call, Told, asked, conversation, reply
from tests.wire.gateway import GatewayUnderTest, SseFrame, open_stream, serving, sse_frames
from tests.wire.journals import runs_in
from tests.wire.vendors import Cut, FakeVendor, environment

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONFIG = """
concurrency: {max_concurrent_runs: 8, queue_timeout_ms: 20000}
agents:
  anthropic: {provider: anthropic, model: m-1, system_prompt: Be brief., allowed_tools: [Memory],
    memory_scopes: [user]}
  openai: {provider: openai, model: m-1, system_prompt: Be brief., allowed_tools: [Memory],
    memory_scopes: [user]}
  gemini: {provider: gemini, model: m-1, system_prompt: Be brief., allowed_tools: [Memory],
    memory_scopes: [user]}
"""

QUEUE_TIMEOUT_S = 20.0

COUNT = {"op": "incr", "scope": "user", "key": "n"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    directory = tmp_path_factory.mktemp("sessions")
    async with serving(directory, CONFIG, environment(vendor)) as gateway:
        yield gateway
        await prove_everything(gateway.runtime.store)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def script_played(vendor: FakeVendor) -> AsyncIterator[None]:
    vendor.requests.clear()
    yield
    assert not vendor.replies


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "trusted-text", "text": text}]}]


async def go_on(
    gateway: GatewayUnderTest, session: str, text: str, **fields: Any
) -> list[SseFrame]:
    body = {"segments": user(text) if text else [], **fields}
    response = await gateway.http.post(f"/v1/sessions/{session}/messages", json=body)
    assert response.status_code == 200, response.text
    return sse_frames(response.text)


@pytest.mark.parametrize("name", ["anthropic", "openai", "gemini"])
async def test_a_continuation_is_told_everything_that_was_said_and_done(
    gateway: GatewayUnderTest, vendor: FakeVendor, name: str
) -> None:
    call = Call("call_1", "Memory", COUNT)
    cut_short = {"anthropic": "max_tokens", "openai": "length", "gemini": "MAX_TOKENS"}[name]
    vendor.script(
        reply(name, "Counting.", calls=[call, call._replace(id="call_2", name="Nope")]),
        reply(name, "One."),
        reply(name, "I will\n", Cut()),
        reply(name, "", calls=[call], stop=cut_short),
        reply(name, "Yes."),
    )
    first = await gateway.run(name, "count", user_id=f"u-{name}")
    session = first[0].data["text"]
    failed = await go_on(gateway, session, "again")
    assert failed[-1].event == "error"
    assert failed[0].data["text"] == session
    await go_on(gateway, session, "and again", metadata={"not": "told"})
    last = await go_on(gateway, session, "are you there?")
    assert text_of(last) == "Yes."

    wanted = ("Memory", COUNT)
    results = conversation(name, asked(vendor)[1])[2].results
    assert results == ('{"value":1}', "tool not found: Nope")
    assert conversation(name, asked(vendor)[-1]) == [
        Told("user", "count"),
        Told("assistant", "Counting.", (wanted, ("Nope", COUNT))),
        Told("user", results=results),
        Told("assistant", "One."),
        Told("user", "again"),
        Told("assistant", "I will\n"),
        Told("user", "and again"),
        Told("assistant", "", (wanted,)),
        Told("user", results=(NO_RESULT,)),
        Told("user", "are you there?"),
    ]
    transcript = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
    kinds = [row["type"] for row in transcript["events"]]
    assert kinds.count("user_input") == kinds.count("system_prompt") == 4
    seqs = [row["seq"] for row in transcript["events"]]
    assert seqs == sorted(set(seqs))
    assert len({row["run_id"] for row in transcript["events"]}) == 4
    assert rows(transcript)[-1] == ("done", last[-1].data)


async def test_a_continuation_may_bring_no_input(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", "One."), reply("openai", "Two."))
    first = await gateway.run("openai", "count")
    second = await go_on(gateway, first[0].data["text"], "")
    assert text_of(second) == "Two."
    assert conversation("openai", asked(vendor)[1]) == [
        Told("user", "count"),
        Told("assistant", "One."),
    ]


async def test_fenced_input_is_fenced_again_and_system_segments_are_not_history(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("anthropic", "Fine."), reply("anthropic", "Still fine."))
    blocks = [
        {"type": "trusted-text", "text": "Look: "},
        {"type": "untrusted-block", "kind": "web_content", "text": "<b>obey</b>"},
    ]
    segments = [
        {"role": "system", "content": [{"type": "trusted-text", "text": "Only once."}]},
        {"role": "user", "content": blocks},
        {"role": "tool", "content": blocks},
    ]
    response = await gateway.http.post(
        "/v1/runs", json={"agent": "anthropic", "segments": segments, "metadata": {"a": 1}}
    )
    session = sse_frames(response.text)[0].data["text"]
    await go_on(gateway, session, "And now?")
    fenced = "Look: <web_content>\n&lt;b>obey&lt;/b>\n</web_content>"
    before, after = asked(vendor)
    assert conversation("anthropic", before) == [Told("user", fenced)]
    assert b"Only once." in before.body
    assert conversation("anthropic", after) == [
        Told("user", fenced),
        Told("assistant", "Fine."),
        Told("user", "And now?"),
    ]
    assert b"Only once." not in after.body
    assert after.json["system"][0]["text"] == "Be brief."
    assert len(before.json["system"]) == 3
    assert len(after.json["system"]) == 1


async def test_a_run_that_joins_a_session_is_told_nothing_but_told_of_later(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(*(reply("openai", f"{n}.") for n in ("One", "Two", "Three")))
    first = await gateway.run("openai", "first")
    session = first[0].data["text"]
    joined = await gateway.run("openai", "second", session_id=session)
    assert joined[0].data["text"] == session
    await go_on(gateway, session, "third")
    assert conversation("openai", asked(vendor)[1]) == [Told("user", "second")]
    assert conversation("openai", asked(vendor)[2]) == [
        Told("user", "first"),
        Told("assistant", "One."),
        Told("user", "second"),
        Told("assistant", "Two."),
        Told("user", "third"),
    ]


async def test_a_session_takes_one_continuation_at_a_time(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(
        reply("openai", "One."), reply("openai", "Two\n", hold), reply("openai", "Three.")
    )
    session = (await gateway.run("openai", "first"))[0].data["text"]
    path = f"/v1/sessions/{session}/messages"
    racing = [
        asyncio.create_task(gateway.http.post(path, json={"segments": user("next")}))
        for _ in range(4)
    ]
    while sum(task.done() for task in racing) < 3:
        pending = [task for task in racing if not task.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    refused = [task.result() for task in racing if task.done()]
    assert [r.json()["code"] for r in refused] == ["session_busy"] * 3
    winner = next(task for task in racing if not task.done())
    hold.set()
    assert text_of(sse_frames((await winner).text)) == "Two\n"
    assert text_of(await go_on(gateway, session, "after")) == "Three."


async def test_a_handle_names_the_latest_run_and_is_free_after_it(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    vendor.script(reply("openai", "One."), reply("openai", "Two."))
    runs = [
        (await gateway.run("openai", "x", agent_id="a_again"))[1].data["run_id"] for _ in range(2)
    ]
    assert runs[0] != runs[1]
    assert (await gateway.status("a_again"))["run_id"] == runs[1]


async def test_a_refused_handle_does_not_hide_its_holder(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(reply("openai", "One\n", hold))
    body = {"agent": "openai", "prompt": "x", "agent_id": "a_held"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        run = (await stream.until("agent")).data["run_id"]
        await stream.until("text")
        refused = await gateway.http.post("/v1/runs", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "agent_id_in_use")
        try:
            assert (await gateway.status("a_held"))["run_id"] == run
        finally:
            hold.set()
        await stream.rest()
    status = await gateway.ended("a_held")
    assert (status["run_id"], status["status"]) == (run, "completed")
    cancelled = (await gateway.http.post("/v1/agents/a_held/cancel")).json()
    assert (cancelled["cancelled"], cancelled["status"]) == (False, "completed")


async def test_a_refused_continuation_is_no_part_of_its_session(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(reply("openai", "One."), reply("openai", "Busy\n", hold), reply("openai", "Two."))
    session = (await gateway.run("openai", "first"))[0].data["text"]
    path = f"/v1/sessions/{session}"
    body = {"agent": "openai", "prompt": "x", "agent_id": "a_hold"}
    async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
        await stream.until("text")
        for _ in range(2):
            again = {"segments": user("never to be heard"), "agent_id": "a_hold"}
            refused = await gateway.http.post(f"{path}/messages", json=again)
            assert (refused.status_code, refused.json()["code"]) == (409, "agent_id_in_use")
        last = await go_on(gateway, session, "second")
        assert text_of(last) == "Two."
        hold.set()
        await stream.rest()
    assert conversation("openai", asked(vendor)[-1]) == [
        Told("user", "first"),
        Told("assistant", "One."),
        Told("user", "second"),
    ]
    transcript = (await gateway.http.get(f"{path}/transcript")).json()
    assert "never to be heard" not in str(transcript)
    events = transcript["events"]
    _, *refusals, _ = dict.fromkeys(row["run_id"] for row in events)
    assert len(refusals) == 2
    for run in refusals:
        assert [row["type"] for row in events if row["run_id"] == run] == ["started", "error"]
        frames = sse_frames((await gateway.http.get(f"/v1/runs/{run}/stream")).text)
        assert [f.event for f in frames] == ["agent", "started", "error"]
        assert "agent_id" in frames[-1].data["error"]


async def test_a_session_whose_log_is_damaged_is_not_continued(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    async with serving(tmp_path, CONFIG, environment(vendor), proven=False) as gateway:
        call = Call("call_1", "Memory", COUNT)
        vendor.script(reply("openai", calls=[call]), reply("openai", "One."))
        frames = await gateway.run("openai", "first", user_id="u1")
        session, run = frames[0].data["text"], frames[1].data["run_id"]
        store = gateway.runtime.store
        _, lost, after, *_ = await store.log.read(store.subjects.journal("", run))
        stream = stream_of(store.subjects, lost.subject).stream("loom")
        link: Any = store.log
        assert await Api(link._link).delete_message(stream, lost.seq)
        path = f"/v1/sessions/{session}/messages"
        async with asyncio.timeout(QUEUE_TIMEOUT_S / 2):
            refused = [
                await gateway.http.post(path, json={"segments": user("go on")}) for _ in range(2)
            ]
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (500, "session_damaged")
            assert f"journal of {run}" in answer.json()["error"]
            assert f"sequence {after.seq}" in answer.json()["error"]
        others = [await read_commits(store, *found) for found in await runs_in(store)][1:]
        assert [[e.type for c in commits for e in c.header.events] for commits in others] == [
            ["run.withdrawn"]
        ] * 2
        stats = (await gateway.http.get("/v1/_concurrency/stats")).json()
        assert (stats["active"], stats["queued"]) == (0, 0)


async def test_a_session_whose_last_commit_cannot_be_read_is_not_continued(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    async with serving(tmp_path, CONFIG, environment(vendor), proven=False) as gateway:
        vendor.script(reply("openai", "One."))
        frames = await gateway.run("openai", "first", user_id="u1")
        session, run = frames[0].data["text"], frames[1].data["run_id"]
        store = gateway.runtime.store
        seq = await store.log.append(store.subjects.journal("", run), b"no commit at all")
        path = f"/v1/sessions/{session}/messages"
        refused = await gateway.http.post(path, json={"segments": user("go on")})
        assert (refused.status_code, refused.json()["code"]) == (500, "session_damaged")
        assert f"sequence {seq}" in refused.json()["error"]


async def test_tenants_of_open_mode_share_nothing(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    call = Call("call_1", "Memory", COUNT)
    tenants = ("north", "south", "")
    for _ in tenants:
        vendor.script(reply("openai", calls=[call]))
    vendor.script(*(reply("openai", "Held\n", hold) for _ in tenants))
    same = {"user_id": "u-same", "agent_id": "a_same"}
    runs = [
        asyncio.create_task(gateway.run("openai", "x", tenant_id=tenant, **same))
        for tenant in tenants
    ]
    await vendor.wait_for(lambda v: len(asked(v)) == 6)
    hold.set()
    for frames, tenant in zip(await asyncio.gather(*runs), tenants, strict=True):
        results = [f.data["text"] for f in frames if f.event == "tool_result"]
        assert results == ['{"value":1}']
        session = frames[0].data["text"]
        found = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()
        assert found["session"]["tenant_id"] == tenant
        await _continues_in_its_tenant(gateway, vendor, session)


async def _continues_in_its_tenant(
    gateway: GatewayUnderTest, vendor: FakeVendor, session: str
) -> None:
    call = Call("call_1", "Memory", COUNT)
    vendor.script(reply("openai", calls=[call]), reply("openai", "Two."))
    frames = await go_on(gateway, session, "more", tenant_id="elsewhere", user_id="somebody")
    assert [f.data["text"] for f in frames if f.event == "tool_result"] == ['{"value":2}']


async def test_the_shared_token_has_one_tenant_and_lets_nobody_else_in(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> None:
    settings = environment(vendor, LOOMCYCLE_AUTH_TOKEN="the-shared-token")
    async with serving(tmp_path_factory.mktemp("legacy"), CONFIG, settings) as gateway:
        body = {"agent": "openai", "prompt": "x", "tenant_id": "north"}
        assert (await gateway.http.post("/v1/runs", json=body)).status_code == 401
        gateway.http.headers["Authorization"] = "Bearer the-shared-token"
        vendor.script(reply("openai", "One."), reply("openai", "Two."))
        frames = await gateway.run("openai", "x", tenant_id="north")
        session = frames[0].data["text"]
        found = (await gateway.http.get(f"/v1/sessions/{session}/transcript")).json()["session"]
        assert (found["tenant_id"], found["user_id"]) == ("default", "default")
        await go_on(gateway, session, "more")
        named = (await gateway.http.get("/v1/users/default/agents?status=all")).json()
        assert len(named["agents"]) == 2
        paths = [
            f"/v1/sessions/{session}/transcript",
            f"/v1/runs/{frames[1].data['run_id']}/stream",
            f"/v1/agents/{frames[1].data['agent_id']}",
        ]
        gateway.http.headers["Authorization"] = "Bearer another-token"
        for path in paths:
            assert (await gateway.http.get(path)).status_code == 401
        await prove_everything(gateway.runtime.store)
