"""Who may call: credentials of a request, and the answers of those who may not."""

from __future__ import annotations

import logging

import pytest
from starlette.types import Receive, Scope, Send

from gateways.http.authentication import Guard, credential, principal_of
from gateways.http.replies import JsonReply
from loomcycle.auth import Authenticator, Principal
from tests.wire.asgi import AsgiClient

SECRET = "correct horse battery staple"


async def subject(scope: Scope, receive: Receive, send: Send) -> None:
    await JsonReply(principal_of(scope).subject)(scope, receive, send)


class NarrowAuthenticator(Authenticator):
    """Everybody is a principal with few scopes."""

    def resolve(self, bearer: str | None) -> Principal | None:
        return Principal(tenant="acme", subject="reader", scopes=("runs:read",))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("authorization", "Bearer t")], "t"),
        ([("authorization", "bEaReR t")], "t"),
        ([("authorization", "Bearer  t")], None),
        ([("authorization", "Bearer ")], None),
        ([("authorization", "Bearer")], None),
        ([("authorization", "Basic dDp0")], None),
        ([("authorization", "Basic x"), ("cookie", "loomcycle_session=t")], None),
        ([("cookie", "loomcycle_session=t")], "t"),
        ([("cookie", "a=b; loomcycle_session=t; c=d")], "t"),
        ([("cookie", "a=b"), ("cookie", "loomcycle_session=t")], "t"),
        ([("cookie", "loomcycle_session=")], None),
        ([("cookie", "other=t")], None),
        ([], None),
    ],
)
def test_the_credential_of_a_request(headers: list[tuple[str, str]], expected: str | None) -> None:
    assert credential([(k.encode(), v.encode()) for k, v in headers]) == expected


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", f"Basic {SECRET}", "Bearer é"])
async def test_every_bad_credential_gets_the_same_answer(authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    client = await AsgiClient(headers=headers).call(Guard(subject, Authenticator(SECRET), ""))
    assert (client.status, client.body) == (401, b"unauthorized\n")
    assert client.headers["content-type"] == "text/plain; charset=utf-8"
    assert "www-authenticate" not in client.headers


async def test_the_right_credential_reaches_the_endpoint_with_its_principal() -> None:
    guard = Guard(subject, Authenticator(SECRET), "substrate:admin")
    client = await AsgiClient(headers={"Authorization": f"Bearer {SECRET}"}).call(guard)
    assert (client.status, client.body) == (200, b'"default"')


async def test_without_a_secret_everybody_may_do_everything() -> None:
    guard = Guard(subject, Authenticator(""), "substrate:admin")
    assert (await AsgiClient(headers={"Authorization": "nonsense"}).call(guard)).status == 200


async def test_a_missing_scope_is_named_in_the_challenge_only() -> None:
    client = await AsgiClient().call(Guard(subject, NarrowAuthenticator(SECRET), "runs:create"))
    assert (client.status, client.body) == (403, b"insufficient scope\n")
    assert client.headers["www-authenticate"] == 'Bearer scope="runs:create"'


async def test_a_granted_scope_and_no_scope_pass() -> None:
    for needed in ("runs:read", ""):
        guard = Guard(subject, NarrowAuthenticator(SECRET), needed)
        assert (await AsgiClient().call(guard)).status == 200


async def test_verbose_logs_say_why_and_never_what(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(subject, Authenticator(SECRET), "", verbose=True)
    with caplog.at_level(logging.INFO, "loomcycle.auth"):
        await AsgiClient(headers={"Authorization": "Bearer almost-the-secret"}).call(guard)
        await AsgiClient().call(guard)
    assert [record.getMessage() for record in caplog.records] == [
        "401 for /: unknown credential",
        "401 for /: no usable credential",
    ]
