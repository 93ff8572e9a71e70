"""Declared principals over HTTP: who they are, what they may, and what they never see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.wire.gateway import GatewayUnderTest, serving

CONFIG = """
principals:
  ops: {token_env: LOOMCYCLE_OPS, tenant: default, subject: ops, scopes: [substrate:admin]}
  ann: {token_env: LOOMCYCLE_ANN, tenant: acme, subject: ann, scopes: [substrate:tenant]}
  bob: {token_env: LOOMCYCLE_BOB, tenant: umbrella, subject: bob, scopes: [substrate:tenant]}
  eve: {token_env: LOOMCYCLE_EVE, tenant: acme, subject: eve, scopes: ["runs:read"]}
agents:
  talker: {provider: mock, model: mock-generic}
"""
TOKENS = {
    "LOOMCYCLE_OPS": "token-of-ops",
    "LOOMCYCLE_ANN": "token-of-ann",
    "LOOMCYCLE_BOB": "token-of-bob",
    "LOOMCYCLE_EVE": "token-of-eve",
}


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayUnderTest]:
    variables = {"LOOMCYCLE_MOCK_ENABLED": "1", "LOOMCYCLE_MOCK_LATENCY_MS": "0", **TOKENS}
    async with serving(tmp_path, CONFIG, variables) as running:
        yield running


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{name}"}


async def begun(gateway: GatewayUnderTest, name: str) -> dict[str, str]:
    """An interactive run of ``name``, parked."""
    response = await gateway.http.post(
        "/v1/runs",
        json={"agent": "talker", "prompt": "hi", "user_id": "forged", "tenant_id": "forged"},
        headers=bearer(name) | {"Prefer": "respond-async"},
    )
    assert response.status_code == 202
    ids: dict[str, str] = response.json()
    return ids


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer anything"}])
async def test_declared_principals_close_the_api(
    gateway: GatewayUnderTest, headers: dict[str, str]
) -> None:
    response = await gateway.http.post("/v1/_pause", headers=headers)
    assert (response.status_code, response.text) == (401, "unauthorized\n")


async def test_identities_come_from_the_token(gateway: GatewayUnderTest) -> None:
    me = (await gateway.http.get("/v1/_me", headers=bearer("ann"))).json()
    assert (me["tenant_id"], me["subject"], me["is_admin"]) == ("acme", "ann", False)
    ids = await begun(gateway, "ann")
    run = await gateway.http.get(f"/v1/agents/{ids['agent_id']}", headers=bearer("ann"))
    assert run.json()["user_id"] == "ann"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/agents/{agent_id}"),
        ("POST", "/v1/agents/{agent_id}/cancel"),
        ("GET", "/v1/runs/{run_id}/stream"),
        ("POST", "/v1/runs/{run_id}/input"),
        ("POST", "/v1/runs/{run_id}/compact"),
        ("GET", "/v1/sessions/{session_id}/transcript"),
        ("POST", "/v1/sessions/{session_id}/messages"),
    ],
)
async def test_another_tenant_cannot_tell_a_run_from_none(
    gateway: GatewayUnderTest, method: str, path: str
) -> None:
    ids = await begun(gateway, "ann")
    unknown = {"run_id": "r_00", "session_id": "s_00", "agent_id": "a_00"}
    body = {"text": "hello", "segments": []} if method == "POST" else None

    async def ask(values: dict[str, str]) -> httpx.Response:
        target = path.format(**values)
        return await gateway.http.request(method, target, json=body, headers=bearer("bob"))

    foreign, none = await ask(ids), await ask(unknown)
    assert foreign.status_code == none.status_code == 404
    masked = foreign.text
    for key, value in ids.items():
        masked = masked.replace(value, unknown.get(key, value))
    assert masked == none.text


async def test_lists_show_the_own_tenant_only(gateway: GatewayUnderTest) -> None:
    ids = await begun(gateway, "ann")
    path = "/v1/users/ann/agents?status=all"
    for name, expected in (("ann", 1), ("bob", 0), ("ops", 1)):
        listed = (await gateway.http.get(path, headers=bearer(name))).json()["agents"]
        assert len(listed) == expected
    asked = await gateway.http.get(f"/v1/runs/{ids['run_id']}/interrupts", headers=bearer("bob"))
    assert asked.json() == {"interrupts": [], "total": 0}


async def test_scopes_are_needed(gateway: GatewayUnderTest) -> None:
    refused = await gateway.http.post("/v1/runs", json={"agent": "talker"}, headers=bearer("eve"))
    assert (refused.status_code, refused.text) == (403, "insufficient scope\n")
    assert refused.headers["www-authenticate"] == 'Bearer scope="runs:create"'
    paused = await gateway.http.post("/v1/_pause", headers=bearer("ann"))
    assert paused.status_code == 403


async def test_hooks_of_a_tenant_are_its_own(gateway: GatewayUnderTest) -> None:
    hook = {"owner": "o", "name": "n", "phase": "pre", "callback_url": "http://127.0.0.1:9/"}
    made = await gateway.http.post("/v1/hooks", json=hook, headers=bearer("ann"))
    (listed,) = (await gateway.http.get("/v1/hooks", headers=bearer("ann"))).json()["hooks"]
    assert (listed["id"], listed["tenant"]) == (made.json()["id"], "acme")
    assert (await gateway.http.get("/v1/hooks", headers=bearer("bob"))).json() == {"hooks": []}
    gone = await gateway.http.delete(f"/v1/hooks/{listed['id']}", headers=bearer("bob"))
    assert gone.status_code == 404
