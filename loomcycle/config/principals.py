"""Callers declared in `principals:`: validation and resolution of their secrets (auth spec 6).

The secret comes from the variable an entry names (or its `_FILE` form) and is never printed.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from loomcycle.config.expansion import EXPANDABLE_NAMES, NEVER_EXPANDED, is_expandable
from loomcycle.config.problems import Findings
from loomcycle.config.schema import PrincipalConfig
from loomcycle.config.secret_files import read_secret_file
from loomcycle.config.variable_row import Secret


class DeclaredPrincipal(Struct, frozen=True, kw_only=True):
    """A principal with its secret; `token_def_id` is `cfg:<handle>`, tenant "" is shared."""

    token_def_id: str
    tenant: str
    subject: str
    scopes: tuple[str, ...]
    secret: Secret


def resolve_principals(
    declared: dict[str, PrincipalConfig], environ: dict[str, str], cwd: Path, findings: Findings
) -> tuple[DeclaredPrincipal, ...]:
    """The usable principals. An empty variable makes an entry inert, with a warning."""
    resolved: list[DeclaredPrincipal] = []
    holders: dict[str, str] = {}
    for handle, entry in declared.items():
        path = ("principals", handle)
        if not entry.subject:
            findings.error((*path, "subject"), "required", "missing")
        if not _check_token_env(entry.token_env, handle, findings):
            continue
        read_secret_file(entry.token_env, environ, cwd, findings)
        secret = environ.get(entry.token_env, "")
        if not secret:
            findings.warn(path, f"{entry.token_env} is empty: this principal is inert")
            continue
        if secret in holders:
            message = f'has the same secret as "{holders[secret]}"; each needs its own'
            findings.error((*path, "token_env"), message, "conflict")
            continue
        holders[secret] = handle
        resolved.append(
            DeclaredPrincipal(
                token_def_id=f"cfg:{handle}",
                tenant=entry.tenant,
                subject=entry.subject,
                scopes=entry.scopes,
                secret=Secret(secret),
            )
        )
    return tuple(resolved)


def _check_token_env(name: str, handle: str, findings: Findings) -> bool:
    path = ("principals", handle, "token_env")
    if not name:
        findings.error(path, "required: the name of a variable", "missing")
    elif name in NEVER_EXPANDED:
        findings.error(path, f"{name} is reserved for the server itself", "unsupported")
    elif not is_expandable(name):
        others = ", ".join(sorted(EXPANDABLE_NAMES))
        message = f"{name} must start with LOOMCYCLE_ or be one of {others}"
        findings.error(path, message, "unsupported")
    else:
        return True
    return False
