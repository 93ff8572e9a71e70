"""Who asks: open mode, the legacy shared token, and what a principal may do.

Specification: auth.md sections 1, 2, 4, 11 to 13. Secrets are compared in constant time and never
shown; this module does not know HTTP.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from msgspec import Struct

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
    """Resolves bearers. Raises nothing: None means 401."""

    def __init__(self, legacy_token: str) -> None:
        self._legacy = _digest(legacy_token) if legacy_token else b""

    @property
    def is_open(self) -> bool:
        return not self._legacy

    def resolve(self, bearer: str | None) -> Principal | None:
        """The principal of ``bearer``; in open mode everybody is :data:`OPEN`."""
        if self.is_open:
            return OPEN
        if not bearer:
            return None
        return LEGACY if hmac.compare_digest(_digest(bearer), self._legacy) else None


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
