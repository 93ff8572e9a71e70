"""A credential of a run in whatever a caller may say of it or to it: never in the log or a view.

Specification: secrets.md 1 and 5, kernel.md 9.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.proofs import prove_everything
from tests.e2e.secrets import assert_absent, assert_not_in_streams, assert_not_on_disk
from tests.e2e.turns import Call, reply
from tests.wire.gateway import GatewayUnderTest, Json, StreamReader, open_stream, serving
from tests.wire.vendors import FakeVendor, environment

pytestmark = pytest.mark.integration

SECRET = "Tb6yQz-of-the-run-9021"
BEARER = "Nc4wRx-of-the-run-0123456789"
EVERYTHING = f"{SECRET} and {BEARER}"

IDENTITY = {
    "user_bearer": BEARER,
    "user_credentials": {"default": "another-one-entirely", "own": SECRET},
}

CONFIG = """
concurrency: {max_concurrent_runs: 4}
runtime: {reader_grace_ms: 50}
agents:
  asker:
    provider: openai
    model: gpt-fake-1
    allowed_tools: [Interruption, Evaluation, Agent]
    interruption: {enabled: true}
    evaluation_scopes: [submit_self]
"""


def said(text: str = EVERYTHING, **fields: Any) -> Json:
    """A start that says ``text`` wherever words may stand."""
    context = {"root_agent_run_id": text, "function_key": text, "tier_at_run": text}
    content = [{"type": kind, "text": text} for kind in ("trusted-text", "untrusted-block")]
    return {
        "agent": "asker",
        "user_id": "u",
        "segments": [{"role": role, "content": content} for role in ("system", "user")],
        "metadata": {"note": text, "list": [text]},
        "parent_context": context,
        "web_search_filter": text,
        **IDENTITY,
        **fields,
    }


def asks(**fields: Any) -> Call:
    given = {"op": "ask", "question": EVERYTHING, "context": EVERYTHING, **fields}
    return Call("call_1", "Interruption", given)


async def question(stream: StreamReader) -> str:
    shown = (await stream.until("interruption_pending")).data["interruption"]
    assert_absent([SECRET, BEARER], repr(shown), "question")
    ident: str = shown["interrupt_id"]
    return ident


async def resolve(gateway: GatewayUnderTest, run: str, ident: str) -> None:
    body = {"answer": EVERYTHING, "resolved_by": EVERYTHING}
    response = await gateway.http.post(f"/v1/runs/{run}/interrupts/{ident}/resolve", json=body)
    assert response.status_code == 200, response.text


async def test_what_callers_say_is_masked_in_every_stream_view_and_answer(tmp_path: Path) -> None:
    async with (
        FakeVendor() as vendor,
        serving(tmp_path, CONFIG, environment(vendor)) as gateway,
    ):
        notes = Call("call_2", "Interruption", {"op": "notify", "message": EVERYTHING})
        judged = {"op": "submit", "score": 0.5, "rationale": EVERYTHING, "judgement": [EVERYTHING]}
        judges = Call("call_3", "Evaluation", judged)
        spawns = Call("call_4", "Agent", {"name": "asker", "prompt": EVERYTHING})
        vendor.script(
            reply("openai", EVERYTHING, calls=[asks(), notes, judges, spawns]),
            reply("openai", EVERYTHING),
            reply("openai", EVERYTHING),
            reply("openai", EVERYTHING, calls=[asks(options=[EVERYTHING, "no"])]),
        )
        frames: list[Any] = []
        async with open_stream(
            gateway, "POST", "/v1/runs", json=said(interactive=True, agent_id="a_said")
        ) as stream:
            run = (await stream.until("agent")).data
            frames.append(run)
            await resolve(gateway, run["run_id"], await question(stream))
            await stream.until("awaiting_input")
            path = f"/v1/runs/{run['run_id']}/input"
            assert (await gateway.http.post(path, json={"text": EVERYTHING})).is_success
            await question(stream)
            cancel = {"reason": EVERYTHING}
            cancelled = await gateway.http.post("/v1/agents/a_said/cancel", json=cancel)
            assert cancelled.json()["cancelled"]
            frames += [cancelled.text, await stream.rest()]
        status = await gateway.ended("a_said")
        assert status["stop_reason"] == "[redacted:credential] and [redacted:credential]"

        vendor.script(reply("openai", EVERYTHING), reply("openai", EVERYTHING))
        session = f"/v1/sessions/{run['session_id']}"
        again = {k: v for k, v in said().items() if k not in ("agent", "user_id")}
        frames.append((await gateway.http.post(f"{session}/messages", json=again)).text)
        batch = {"spawns": [said()]}
        batched = await gateway.http.post("/v1/runs:batch", json=batch)
        frames.append(batched.text)
        assert not vendor.replies, batched.text

        for path in (
            f"{session}/transcript",
            f"/v1/runs/{run['run_id']}/stream",
            f"/v1/runs/{run['run_id']}/interrupts",
            "/v1/agents/a_said",
            "/v1/users/u/agents?status=all",
            "/v1/users/u/interrupts?status=all",
        ):
            response = await gateway.http.get(path)
            assert response.status_code == 200, (path, response.text)
            frames.append(response.text)
        assert_absent([SECRET, BEARER], repr(frames), "answers")
        store = gateway.runtime.store
        await prove_everything(store)
        assert await assert_not_in_streams([SECRET, BEARER], store)
    assert assert_not_on_disk([SECRET, BEARER], tmp_path / "data") > 5


async def test_the_reason_of_a_cancel_is_masked_for_descendants_too(tmp_path: Path) -> None:
    async with (
        FakeVendor() as vendor,
        serving(tmp_path, CONFIG, environment(vendor)) as gateway,
    ):
        spawns = Call("call_4", "Agent", {"name": "asker", "prompt": "ask"})
        vendor.script(reply("openai", calls=[spawns]), reply("openai", calls=[asks()]))
        body = said(agent_id="a_top")
        async with open_stream(gateway, "POST", "/v1/runs", json=body) as stream:
            await stream.until("tool_call")
            await vendor.wait_for(lambda vendor: not vendor.replies)
            reply_ = await gateway.http.post("/v1/agents/a_top/cancel", json={"reason": EVERYTHING})
            assert_absent([SECRET, BEARER], reply_.text, "reply")
            assert len(reply_.json()["cascaded"]) == 1
            await stream.rest()
        (child,) = reply_.json()["cascaded"]
        reason = "[redacted:credential] and [redacted:credential]"
        assert (await gateway.ended(child))["stop_reason"] == reason
        await assert_not_in_streams([SECRET, BEARER], gateway.runtime.store)
