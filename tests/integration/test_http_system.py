"""Health, readiness, identity, load and authentication of a whole server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.routing import Route

from gateways.http.app import build_app
from gateways.http.authentication import Guard
from tests.wire.gateway import GatewayUnderTest, Json, serving, until
from tests.wire.vendors import FakeVendor, Hold, Reply, environment, openai_chunk, sse

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SECRET = "s3cret-of-this-server"
BEARER = {"Authorization": f"Bearer {SECRET}"}

CONFIG = """
concurrency: {max_concurrent_runs: 2, max_concurrent_runs_per_user: 2}
agents:
  writer: {provider: mock, model: mock-generic}
  speaker: {provider: openai, model: gpt-fake-1}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vendor() -> AsyncIterator[FakeVendor]:
    async with FakeVendor() as vendor:
        yield vendor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    tmp_path_factory: pytest.TempPathFactory, vendor: FakeVendor
) -> AsyncIterator[GatewayUnderTest]:
    variables = environment(vendor, LOOMCYCLE_AUTH_TOKEN=SECRET, LOOMCYCLE_REPLICA_ID="a")
    async with serving(tmp_path_factory.mktemp("system"), CONFIG, variables) as gateway:
        yield gateway


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE", "OPTIONS", "BREW"])
async def test_health_needs_no_credential_and_takes_any_method(
    gateway: GatewayUnderTest, method: str
) -> None:
    response = await gateway.http.request(method, "/healthz")
    if method == "BREW":
        assert response.status_code == 400  # no method that HTTP servers parse
        return
    assert response.status_code == 200
    if method != "HEAD":
        health = response.json()
        assert health["ok"] is True
        assert health["metrics_enabled"] is False
        assert health["version"]


async def test_a_replica_names_itself_and_its_peers(gateway: GatewayUnderTest) -> None:
    health = (await gateway.http.get("/healthz")).json()
    assert health["replica_id"] == "a"
    (replica,) = health["replicas"]
    assert replica.keys() == {"id", "hostname", "started_at", "last_heartbeat_at", "version"}
    assert replica["id"] == "a"


@asynccontextmanager
async def named(directory: Path, name: str) -> AsyncIterator[GatewayUnderTest]:
    variables = {"LOOMCYCLE_MOCK_ENABLED": "1", "LOOMCYCLE_REPLICA_ID": name}
    async with serving(directory, CONFIG, variables) as gateway:
        yield gateway


def peers(health: Json) -> list[str]:
    return [replica["id"] for replica in health["replicas"]]


async def test_replicas_are_listed_by_name_and_runs_tell_whose_they_are(tmp_path: Path) -> None:
    async with named(tmp_path, "west") as west, named(tmp_path, "east") as east:

        async def met() -> bool | None:
            health = (await west.http.get("/healthz")).json()
            return peers(health) == ["west", "east"] or None

        await until(met)
        frames = await east.run("writer")
        for gateway in (west, east):
            status = await gateway.status(frames[1].data["agent_id"])
            assert status["replica_id"] in ("west", "east")
        row = await east.runtime.views.queries.run(frames[1].data["run_id"])
        assert row is not None
        names = {west.runtime.services.process: "west", east.runtime.services.process: "east"}
        assert status["replica_id"] == names[row.owner]


async def test_a_replica_that_was_restarted_is_listed_once(tmp_path: Path) -> None:
    async with named(tmp_path, "west") as old, named(tmp_path, "west") as new:
        assert len(await new.runtime.cluster.look()) == 2
        assert peers((await new.http.get("/healthz")).json()) == ["west"]
        assert old.runtime.services.process != new.runtime.services.process


async def test_without_a_name_neither_health_nor_runs_speak_of_replicas(tmp_path: Path) -> None:
    async with named(tmp_path, "") as gateway:
        health = (await gateway.http.get("/healthz")).json()
        assert not health.keys() & {"replica_id", "replicas"}
        frames = await gateway.run("writer")
        assert "replica_id" not in await gateway.status(frames[1].data["agent_id"])


async def test_a_server_whose_log_answers_is_ready(gateway: GatewayUnderTest) -> None:
    response = await gateway.http.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"ready": True, "log": "ok", "views": "ok"}


GUARDED = [
    ("POST", "/v1/runs"),
    ("POST", "/v1/runs:batch"),
    ("POST", "/v1/runs/r_1/input"),
    ("POST", "/v1/runs/r_1/compact"),
    ("GET", "/v1/runs/r_1/interrupts"),
    ("POST", "/v1/runs/r_1/interrupts/intr_1/resolve"),
    ("GET", "/v1/users/u_1/interrupts"),
    ("POST", "/v1/sessions/s_1/messages"),
    ("GET", "/v1/sessions/s_1/transcript"),
    ("GET", "/v1/runs/r_1/stream"),
    ("GET", "/v1/agents/a_1"),
    ("POST", "/v1/agents/a_1/cancel"),
    ("GET", "/v1/users/u_1/agents"),
    ("GET", "/v1/users/u_1/agents/stream"),
    ("POST", "/v1/_pause"),
    ("POST", "/v1/_resume"),
    ("GET", "/v1/_state"),
    ("POST", "/v1/hooks"),
    ("GET", "/v1/hooks"),
    ("DELETE", "/v1/hooks/hook_1"),
    ("DELETE", "/v1/hooks/"),
    ("GET", "/v1/_me"),
    ("GET", "/v1/_concurrency/stats"),
    ("GET", "/v1/_resolver"),
    ("POST", "/v1/_resolve/probe"),
    ("GET", "/v1/_providers/mock/models"),
]


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {SECRET}"])
async def test_nothing_under_v1_is_open(
    gateway: GatewayUnderTest, method: str, path: str, given: str | None
) -> None:
    headers = {"Authorization": given} if given else {}
    response = await gateway.http.request(method, path, headers=headers, content=b"nonsense")
    assert (response.status_code, response.text) == (401, "unauthorized\n")
    assert "www-authenticate" not in response.headers


async def test_every_route_but_the_probes_has_a_guard(gateway: GatewayUnderTest) -> None:
    routes = [route for route in build_app(gateway.runtime).routes if isinstance(route, Route)]
    unguarded = [route.path for route in routes if not isinstance(route.app, Guard)]
    assert unguarded == ["/healthz", "/readyz"]
    assert len(routes) == len(GUARDED) + len(unguarded)


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/runs"), ("DELETE", "/v1/agents/a_1")])
async def test_a_wrong_method_is_told_before_a_missing_credential(
    gateway: GatewayUnderTest, method: str, path: str
) -> None:
    response = await gateway.http.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] in ("POST", "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/runs/", "/v1/nothing", "/healthz/"])
async def test_unknown_paths_are_told_before_a_missing_credential(
    gateway: GatewayUnderTest, path: str
) -> None:
    response = await gateway.http.get(path)
    assert (response.status_code, response.text) == (404, "404 page not found\n")


async def test_the_legacy_token_is_an_administrator_by_header_or_cookie(
    gateway: GatewayUnderTest,
) -> None:
    expected = {
        "tenant_id": "default",
        "subject": "default",
        "scopes": ["substrate:admin"],
        "is_admin": True,
        "legacy": True,
    }
    for headers in (BEARER, {"Cookie": f"loomcycle_session={SECRET}"}):
        assert (await gateway.http.get("/v1/_me", headers=headers)).json() == expected


async def test_runs_of_the_legacy_token_belong_to_the_default_tenant(
    gateway: GatewayUnderTest,
) -> None:
    body = {"agent": "writer", "prompt": "hi", "tenant_id": "elsewhere", "agent_id": "a_whose"}
    await gateway.http.post("/v1/runs", json=body, headers=BEARER)
    status = (await gateway.http.get("/v1/agents/a_whose", headers=BEARER)).json()
    assert status["user_id"] == "default"
    transcript = await gateway.http.get(
        f"/v1/sessions/{status['session_id']}/transcript", headers=BEARER
    )
    assert transcript.json()["session"]["tenant_id"] == "default"


async def test_a_user_at_the_cap_is_refused_and_everybody_sees_the_load(
    gateway: GatewayUnderTest, vendor: FakeVendor
) -> None:
    hold = asyncio.Event()
    answer = Reply([Hold(hold), sse(openai_chunk({"content": "x"}, finish="stop"), done=True)])
    vendor.script(answer, answer)
    body = {"agent": "speaker", "prompt": "hi", "user_id": "u1"}
    runs = [
        asyncio.create_task(gateway.http.post("/v1/runs", json=body, headers=BEARER))
        for _ in range(2)
    ]

    async def stats() -> dict[str, object] | None:
        response = await gateway.http.get("/v1/_concurrency/stats", headers=BEARER)
        return response.json() if response.json()["active"] == 2 else None

    assert await until(stats) == {"active": 2, "queued": 0, "per_user": {"u1": 2}}
    refused = await gateway.http.post("/v1/runs", json=body, headers=BEARER)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "5"
    assert refused.json() == {
        "code": "per_user_quota_exhausted",
        "error": "per-user quota exhausted: user=u1 cap=2",
        "user_id": "u1",
        "cap": 2,
    }
    hold.set()
    for run in runs:
        assert "event: done" in (await run).text

    async def idle() -> bool | None:
        response = await gateway.http.get("/v1/_concurrency/stats", headers=BEARER)
        return response.json() == {"active": 0, "queued": 0} or None

    await until(idle)
