"""Known secrets on their way through a run: masked for everybody but the run's own model and tools.

Specification: secrets.md 1 and 3, design.md 8, kernel.md 9.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.proofs import open_log, prove_everything, rows, text_of, whole_texts
from tests.e2e.readers import Client
from tests.e2e.replicas import replicas, settings
from tests.e2e.secrets import (
    assert_absent,
    assert_no_seals,
    assert_not_in_streams,
    assert_not_on_disk,
)
from tests.e2e.turns import Call, Spoken, asked, conversation, reply
from tests.wire.gateway import GatewayUnderTest, serving, until
from tests.wire.journals import runs_in
from tests.wire.vendors import FakeVendor, Reply, anthropic_events, environment, sse

pytestmark = pytest.mark.integration

TOKEN = "Zq7vWt-of-the-environment"
BEARER = "Yb3kLp-of-the-run-0123456789"
CREDENTIAL = 'Xc9"m\\ß-of-the-run'
UNSAID = "Wd2hJf-of-the-environment"
SHAPED = "sk-Qw5nRtYuIoPaSdFgHjKl"
SECRETS = (TOKEN, BEARER, CREDENTIAL, SHAPED)
MASKED = "[redacted:DEMO_SERVICE_TOKEN]"
OF_RUN = "[redacted:credential]"

IDENTITY = {"user_bearer": BEARER, "user_credentials": {"github": CREDENTIAL}}

CONFIG = """
concurrency: {{max_concurrent_runs: 8}}
volumes:
  docs: {{path: {docs}, mode: ro}}
agents:
  helper: {{provider: anthropic, model: m-1, system_prompt: Be brief., volumes: [docs],
    allowed_tools: [Read, Memory], memory_scopes: [user]}}
  program:
    provider: code-js
    volumes: [docs]
    allowed_tools: [Read, Memory]
    memory_scopes: [user]
    code: |
      function run(input) {{
        var token = Read({{path: "token.txt"}});
        Memory.set({{scope: "user", key: "kept", value: {{token: token, said: input.prompt}}}});
        var kept = Memory.get({{scope: "user", key: "kept"}});
        var there = Read({{path: token}});
        var failure = "";
        try {{ Read({{path: token + ".missing"}}); }} catch (e) {{ failure = e.message; }}
        return [token.length, token, input.prompt, kept.value.token, there, failure].join(" | ");
      }}
  opener:
    provider: code-js
    volumes: [docs]
    allowed_tools: [Read]
    code: |
      function run(input) {{
        try {{ return Read({{path: input.prompt.split(" ")[0]}}); }}
        catch (e) {{ return e.message; }}
      }}
  thrower:
    provider: code-js
    allowed_tools: []
    code: |
      function run(input) {{ throw new Error("cannot use " + input.prompt); }}
"""


def volume(directory: Path) -> Path:
    docs = directory / "docs"
    docs.mkdir()
    (docs / "token.txt").write_text(TOKEN)
    (docs / "secrets.txt").write_text(f"env={TOKEN} run={CREDENTIAL} other {SHAPED}.")
    (docs / TOKEN).write_text("a file named like the token")
    (docs / CREDENTIAL).write_text("a file named like the credential")
    return docs


def variables(vendor: FakeVendor, **more: str) -> dict[str, str]:
    own = {
        "DEMO_SERVICE_TOKEN": TOKEN,
        "UNSAID_SECRET": UNSAID,
        "LOOMCYCLE_CODE_AGENTS_ENABLED": "1",
    }
    return environment(vendor, **own, **more)


READ = Call("toolu_1", "Read", {"path": "secrets.txt"})
KEEP = Call(
    "toolu_2",
    "Memory",
    {"op": "set", "scope": "user", "key": "k", "value": {"b": BEARER, "c": [CREDENTIAL]}},
)
PROMPT = f"Use {TOKEN} and {CREDENTIAL}, please."
RESULT = f"env={TOKEN} run={CREDENTIAL} other {SHAPED}."


def in_pieces(text: str) -> list[Spoken]:
    """One character at a time, so that deltas could show any beginning of a secret."""
    return list(text)


class Exposure:
    """Everything that anybody could read of a deployment's runs."""

    def __init__(self, gateway: GatewayUnderTest) -> None:
        self._gateway = gateway
        self.texts: list[tuple[str, bytes]] = []

    async def run(self, agent: str, prompt: str, **fields: Any) -> Client:
        client = Client()
        body = {"agent": agent, "prompt": prompt, "user_id": "u", **fields}
        await client.start(self._gateway.http, body)
        replayed = Client(client.run, client.session)
        await replayed.attach(self._gateway.http)
        assert whole_texts(replayed.frames) == whole_texts(client.frames)
        self.texts.append(("live", repr(client.frames).encode()))
        self.texts.append(("live text", text_of(client.frames).encode()))
        for path in (
            f"/v1/runs/{client.run}/stream",
            f"/v1/sessions/{client.session}/transcript",
            f"/v1/agents/a_{client.run[2:]}",
            "/v1/users/u/agents?status=all",
        ):
            response = await self._gateway.http.get(path)
            assert response.status_code == 200
            self.texts.append((path, response.content))
        return client

    def assert_masked(self, *secrets: str) -> None:
        for where, text in self.texts:
            assert_absent(secrets, text, where)


@pytest.fixture
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor
        assert not vendor.replies


async def test_secrets_are_masked_for_everybody_but_the_model(
    tmp_path: Path, vendor: FakeVendor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "loomcycle")
    docs = volume(tmp_path)
    vendor.script(
        reply("anthropic", *in_pieces(f"So {TOKEN}! And {BEARER}."), calls=[READ, KEEP]),
        reply("anthropic", *in_pieces(f"Done with {CREDENTIAL}, {TOKEN}{TOKEN} and Zq7vW")),
        reply("anthropic", *in_pieces(f"Now {UNSAID[:-1]}"), asyncio.Event()),
        Reply([f'{{"why":"bad key {TOKEN} {BEARER}, {SHAPED}"}}'.encode()], status=401),
    )
    async with serving(tmp_path, CONFIG.format(docs=docs), variables(vendor)) as gateway:
        exposure = Exposure(gateway)
        client = await exposure.run("helper", PROMPT, **IDENTITY)
        said = f"So {MASKED}! And {OF_RUN}.Done with {OF_RUN}, {MASKED}{MASKED} and Zq7vW"
        assert text_of(client.frames) == said

        first, second = asked(vendor)
        assert conversation("anthropic", first)[0].text == PROMPT
        told = conversation("anthropic", second)
        assert told[0].text == PROMPT
        assert told[1].text == f"So {TOKEN}! And {BEARER}."
        assert told[1].calls == (("Read", READ.input), ("Memory", KEEP.input))
        assert told[2].results[0] == RESULT
        store = gateway.runtime.store
        await assert_no_seals(store, client.run)

        body = {"agent": "helper", "prompt": "go", "agent_id": "a_stopped"}
        stopped = Client()
        reading = asyncio.create_task(stopped.start(gateway.http, body))
        await vendor.wait_for(lambda v: len(asked(v)) == 3)
        await until(lambda: _shown(stopped, "Now "))
        assert text_of(stopped.frames) == "Now "
        await gateway.http.post("/v1/agents/a_stopped/cancel")
        await reading
        assert text_of(stopped.frames) == f"Now {UNSAID[:-1]}"

        refused = await exposure.run("helper", "hi", **IDENTITY)
        error = refused.frames[-1].data["error"]
        assert error == f'anthropic 401: {{"why":"bad key {MASKED} {OF_RUN}, [redacted-key]"}}'
        row = await gateway.status(f"a_{refused.run[2:]}")
        assert row["error"] == error

        exposure.assert_masked(*SECRETS)
        await prove_everything(store)
        assert await assert_not_in_streams(SECRETS, store)
        for run in (client, stopped, refused):
            await assert_no_seals(store, run.run)
    assert assert_not_on_disk(SECRETS, tmp_path / "data") > 5
    assert_absent(SECRETS, caplog.text, "log")


async def test_secrets_where_a_vendor_should_have_none_reach_nobody(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    """In ids and names of calls, in keys of their arguments, as stop reason and model."""
    value = {TOKEN: 1, CREDENTIAL: {BEARER: 2}}
    keep = Call(
        f"toolu_{TOKEN}", "Memory", {"op": "set", "scope": "user", "key": "k", "value": value}
    )
    calls = [
        keep,
        Call(f"toolu_{BEARER}", "Memory", {"op": "get", "scope": "user", "key": "k"}),
        Call("toolu_3", TOKEN, {}),
    ]
    blocks = [{"type": "text", "text": "ok"}]
    ended = sse(*anthropic_events(blocks, stop_reason=TOKEN, model=f"m-{TOKEN}"))
    vendor.script(reply("anthropic", "So.", calls=calls), Reply([ended]))
    async with serving(tmp_path, CONFIG.format(docs=volume(tmp_path)), variables(vendor)) as under:
        exposure = Exposure(under)
        client = await exposure.run("helper", "hi", **IDENTITY)
        exposure.assert_masked(*SECRETS)
        done = client.frames[-1].data
        assert (done["stop_reason"], done["usage"]["model"]) == (MASKED, f"m-{MASKED}")
        assert (await under.status(f"a_{client.run[2:]}"))["stop_reason"] == MASKED

        said, answered = asked(vendor)[1].json["messages"][-2:]
        uses = [block for block in said["content"] if block["type"] == "tool_use"]
        ids = [block["tool_use_id"] for block in answered["content"]]
        assert ids == [use["id"] for use in uses] == ["lc-0-0", "lc-0-1", "toolu_3"]
        shown = [f.data["tool_use"]["id"] for f in client.frames if f.event == "tool_call"]
        assert shown == ids
        assert [use["name"] for use in uses] == ["Memory", "Memory", "redacted_DEMO_SERVICE_TOKEN"]
        assert uses[0]["input"] == keep.input
        results = {
            f.data["tool_use"]["id"]: f.data for f in client.frames if f.event == "tool_result"
        }
        assert results["lc-0-0"]["text"] == '{"ok":true}'
        assert results["toolu_3"]["text"] == "tool not found: redacted_DEMO_SERVICE_TOKEN"

        await prove_everything(under.runtime.store)
        assert await assert_not_in_streams(SECRETS, under.runtime.store)
    assert_not_on_disk(SECRETS, tmp_path / "data")


async def _shown(client: Client, text: str) -> bool | None:
    return text in text_of(client.frames) or None


async def test_nothing_stays_sealed_once_a_run_has_ended(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(
        reply("anthropic", "fine"),
        Reply([f"bad key {TOKEN}".encode()], status=401),
        reply("anthropic", "held ", hold),
    )
    body = {"agent": "helper", "prompt": "hi"}
    config = CONFIG.format(docs=volume(tmp_path))
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        store = gateway.runtime.store
        clients = [Client() for _ in range(3)]
        await clients[0].start(gateway.http, {**body, "prompt": PROMPT, **IDENTITY})
        await clients[1].start(gateway.http, body)
        reading = asyncio.create_task(
            clients[2].start(gateway.http, {**body, "agent_id": "a_held", **IDENTITY})
        )
        await until(lambda: _shown(clients[2], "held"))
        taken = await gateway.http.post("/v1/runs", json={**body, "agent_id": "a_held", **IDENTITY})
        assert taken.status_code == 409
        busy = await gateway.http.post(
            f"/v1/sessions/{clients[2].session}/messages", json={"segments": [], **IDENTITY}
        )
        assert busy.status_code == 409
        assert await store.log.last(store.subjects.seals(clients[2].run)) is not None
        hold.set()
        await reading
        runs = await runs_in(store)
        assert len(runs) == 4
        for _, run in runs:
            await assert_no_seals(store, run)


async def test_a_refused_start_leaves_no_sealed_credentials(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    vendor.script(reply("anthropic", "held ", hold))
    body = {"agent": "helper", "prompt": "hi", **IDENTITY}
    config = CONFIG.format(docs=volume(tmp_path)).replace(
        "max_concurrent_runs: 8",
        "max_concurrent_runs: 1, max_queue_depth: 1, queue_timeout_ms: 300",
    )
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        held = Client()
        reading = asyncio.create_task(held.start(gateway.http, {**body, "agent_id": "a_held"}))
        await until(lambda: _shown(held, "held"))
        refused = await asyncio.gather(
            *(gateway.http.post("/v1/runs", json=body) for _ in range(3))
        )
        assert [response.status_code for response in refused] == [429] * 3
        hold.set()
        await reading
        store = gateway.runtime.store
        left = await store.log.last(f"{store.subjects.prefix}.seal.>")
        assert left is None, left.subject


async def test_a_large_input_leaves_no_plaintext_behind(tmp_path: Path, vendor: FakeVendor) -> None:
    vendor.script(reply("anthropic", "fine"))
    prompt = f"{TOKEN} " + "x" * 400_000
    config = CONFIG.format(docs=volume(tmp_path))
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        await Exposure(gateway).run("helper", prompt)
        assert conversation("anthropic", asked(vendor)[0])[0].text == prompt
        await assert_not_in_streams(SECRETS, gateway.runtime.store)


async def test_a_program_sees_masks_and_its_tools_get_the_values(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    config = CONFIG.format(docs=volume(tmp_path))
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        exposure = Exposure(gateway)
        client = await exposure.run("program", PROMPT, **IDENTITY)
        prompt = f"Use {MASKED} and {OF_RUN}, please."
        answer = text_of(client.frames).split(" | ")
        assert answer[:5] == [
            str(len(MASKED)), MASKED, prompt, MASKED, "a file named like the token",
        ]  # fmt: skip
        assert MASKED in answer[5]
        kept = [f.data for f in client.frames if f.event == "tool_result"][2]
        assert json.loads(kept["text"])["value"] == {"said": prompt, "token": MASKED}
        failed = await exposure.run("thrower", PROMPT, **IDENTITY)
        assert (
            failed.frames[-1]
            .data["error"]
            .startswith(f"code_agent_threw: run: Error: cannot use {prompt}")
        )
        exposure.assert_masked(*SECRETS)
        await prove_everything(gateway.runtime.store)
        await assert_not_in_streams(SECRETS, gateway.runtime.store)
        await assert_no_seals(gateway.runtime.store, client.run)
    assert_not_on_disk(SECRETS, tmp_path / "data")


async def test_a_mask_that_may_stand_for_two_values_is_not_resolved(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    config = CONFIG.format(docs=volume(tmp_path))
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        exposure = Exposure(gateway)
        opened = await exposure.run("opener", CREDENTIAL, **IDENTITY)
        assert text_of(opened.frames) == "a file named like the credential"
        missed = await exposure.run("opener", f"{CREDENTIAL} {BEARER}", **IDENTITY)
        assert text_of(missed.frames).endswith(f"{OF_RUN}: no such file or directory")
        exposure.assert_masked(*SECRETS)
        await prove_everything(gateway.runtime.store)


async def test_a_secret_in_a_system_prompt_is_not_in_the_log(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(reply("anthropic", "fine"))
    config = CONFIG.format(docs=volume(tmp_path)).replace("Be brief.", "Use ${DEMO_API_TOKEN}.")
    config = config.replace("${DEMO", "${LOOMCYCLE_DEMO")
    settings_ = variables(vendor, LOOMCYCLE_DEMO_API_TOKEN=UNSAID)
    async with serving(tmp_path, config, settings_) as gateway:
        await Exposure(gateway).run("helper", "hi")
        assert UNSAID.encode() in asked(vendor)[0].body
        await assert_not_in_streams([UNSAID], gateway.runtime.store)


async def test_metadata_and_system_segments_reach_the_model_in_plain(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(reply("anthropic", "fine"))
    config = CONFIG.format(docs=volume(tmp_path))
    async with serving(tmp_path, config, variables(vendor)) as gateway:
        exposure = Exposure(gateway)
        segments = [
            {"role": role, "content": [{"type": "trusted-text", "text": f"{role} {CREDENTIAL}"}]}
            for role in ("system", "user")
        ]
        client = await exposure.run(
            "helper", "", segments=segments, metadata={"key": TOKEN, "n": 1}, **IDENTITY
        )
        request = asked(vendor)[0].json
        system = [block["text"] for block in request["system"]]
        assert (system[0], system[2]) == ("Be brief.", f"system {CREDENTIAL}")
        assert f'"key": "{TOKEN}"' in system[1]
        assert request["messages"][0]["content"][0]["text"] == f"user {CREDENTIAL}"
        exposure.assert_masked(*SECRETS)
        await prove_everything(gateway.runtime.store)
        await assert_not_in_streams(SECRETS, gateway.runtime.store)
        await assert_no_seals(gateway.runtime.store, client.run)


async def test_a_run_gets_its_secrets_back_after_a_crash(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    said = f"I read {SHAPED}? {TOKEN}! "
    held = reply("anthropic", "and th", asyncio.Event())
    last = reply("anthropic", f"and then {CREDENTIAL}.")
    vendor.script(reply("anthropic", said, calls=[READ, KEEP]), held)
    config = CONFIG.format(docs=volume(tmp_path))
    environ = settings(tmp_path, **variables(vendor))
    data = tmp_path / "data"
    client = Client()
    hidden = (TOKEN, BEARER, CREDENTIAL)  # prose is searched for exact values only
    async with replicas(tmp_path, config, environ, "only") as (replica,):
        body = {"agent": "helper", "prompt": PROMPT, "user_id": "u", **IDENTITY}
        reading = asyncio.create_task(client.start(replica.http, body))
        await until(lambda: _shown(client, "and th"))
        replica.kill()
        await replica.gone()
        await asyncio.gather(reading, return_exceptions=True)
        assert_not_on_disk(hidden, data)

        vendor.script(last)
        await replica.start(environ)
        await client.insist(replica.http)
        shown = f"I read {SHAPED}? {MASKED}! and then {OF_RUN}."
        assert text_of(client.frames) == shown
        before, after = asked(vendor)[1:]
        assert before.body == after.body
        told = conversation("anthropic", after)
        assert (told[0].text, told[1].text) == (PROMPT, said)
        assert told[1].calls == (("Read", READ.input), ("Memory", KEEP.input))
        assert told[2].results[0] == RESULT

        for path in (f"sessions/{client.session}/transcript", f"runs/{client.run}/stream"):
            response = await replica.http.get(f"/v1/{path}")
            assert_absent(hidden, response.content, path)
    async with open_log(data) as store:
        await prove_everything(store)
        await assert_no_seals(store, client.run)
        await assert_not_in_streams(hidden, store)
    assert assert_not_on_disk(hidden, data) > 5
    assert_absent(SECRETS, replica.log.read_bytes(), "log")


async def test_environment_secrets_stay_when_masking_is_off(
    tmp_path: Path, vendor: FakeVendor
) -> None:
    vendor.script(
        reply("anthropic", f"{TOKEN} {CREDENTIAL} {SHAPED}", calls=[READ]),
        reply("anthropic", "done"),
    )
    config = CONFIG.format(docs=volume(tmp_path))
    off = variables(vendor, LOOMCYCLE_REDACT_SECRETS="0")
    async with serving(tmp_path, config, off) as gateway:
        exposure = Exposure(gateway)
        client = await exposure.run("helper", PROMPT, **IDENTITY)
        assert text_of(client.frames) == f"{TOKEN} {OF_RUN} {SHAPED}done"
        stored = rows((await gateway.http.get(f"/v1/sessions/{client.session}/transcript")).json())
        results = [event["text"] for kind, event in stored if kind == "tool_result"]
        assert results == [f"env={TOKEN} run={OF_RUN} other {SHAPED}."]
        assert conversation("anthropic", asked(vendor)[1])[2].results == (RESULT,)
        exposure.assert_masked(BEARER, CREDENTIAL)
        await prove_everything(gateway.runtime.store)
