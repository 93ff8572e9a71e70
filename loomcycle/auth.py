"""Who asks: open mode, declared principals, the legacy shared token, and what each may do.

Specification: auth.md sections 1, 2, 4, 6, 11 to 13. Secrets are compared in constant time and
never shown; this module does not know HTTP.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

from loomcycle.config.principals import DeclaredPrincipal

ADMIN = "substrate:admin"
_IMPLIED = {
    "substrate:tenant": frozenset(
        {"substrate:tenant", "runs:create", "runs:read", "channel:publish", "channel:read"}
    )
}


class Principal(Struct, frozen=True, kw_only=True):
    """``open_mode``: nobody authenticates, wire identities are believed."""

    tenant: str
    subject: str
    scopes: tuple[str, ...]
    token_id: str = ""
    legacy: bool = False
    open_mode: bool = False

    @property
    def is_admin(self) -> bool:
        return ADMIN in self.scopes

    def may(self, scope: str) -> bool:
        """Whether ``scope`` is granted, directly or implied ("" needs none)."""
        return (
            not scope
            or self.is_admin
            or any(scope in _IMPLIED.get(own, (own,)) for own in self.scopes)
        )

    def sees(self, tenant: str) -> bool:
        """Whether rows of ``tenant`` exist for this principal."""
        return self.is_admin or tenant == self.tenant

    def identity(self, wire_tenant: str, wire_user: str) -> tuple[str, str]:
        """(tenant, user id) of a new run (auth.md section 11)."""
        if self.open_mode:
            return wire_tenant, wire_user
        if self.legacy:
            return "default", wire_user or "default"
        return self.tenant, self.subject


OPEN = Principal(tenant="default", subject="default", scopes=(ADMIN,), open_mode=True)
LEGACY = Principal(tenant="default", subject="default", scopes=(ADMIN,), legacy=True)


class Authenticator:
    """Resolves bearers. Raises nothing: None means 401.

    A declared principal switches authentication on, as the shared token does.
    """

    def __init__(self, legacy_token: str, declared: Iterable[DeclaredPrincipal] = ()) -> None:
        self._legacy = _digest(legacy_token) if legacy_token else b""
        self._declared = [(_digest(entry.secret), _principal(entry)) for entry in declared]

    @property
    def is_open(self) -> bool:
        return not self._legacy and not self._declared

    def resolve(self, bearer: str | None) -> Principal | None:
        """The principal of ``bearer``; in open mode everybody is :data:`OPEN`."""
        if self.is_open:
            return OPEN
        if not bearer:
            return None
        given = _digest(bearer)
        found: Principal | None = None
        for digest, principal in self._declared:  # all of them, whichever it is
            if hmac.compare_digest(given, digest):
                found = principal
        if found is None and self._legacy and hmac.compare_digest(given, self._legacy):
            found = LEGACY
        return found


def _principal(entry: DeclaredPrincipal) -> Principal:
    return Principal(
        tenant=entry.tenant,
        subject=entry.subject,
        scopes=entry.scopes,
        token_id=entry.token_def_id,
    )


def bearer_of(authorization: str | None, cookie: str | None) -> str | None:
    """The credential of a request: ``Bearer <token>``, else the session cookie (auth.md 2)."""
    if authorization is None:
        return cookie or None
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token or token != token.strip():
        return None
    return token


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
