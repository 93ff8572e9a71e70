"""What a submitter is to the run that it judges, and which scope lets it do that.

Specification: tools.md section 3.14. Pure: a role follows from the two runs, never from what
the submitter says.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec import Struct

Role = Literal["external", "self", "parent", "unrelated"]

READ_ANY = "read_any"
SUBMIT_ANY = "submit_any"

_OWN_SCOPE: dict[Role, str] = {"self": "submit_self", "parent": "submit_descendants"}


class Judged(Struct, frozen=True):
    """The run that is judged. ``def_id`` is "" for a static agent."""

    run_id: str
    agent_id: str
    parent_agent_id: str
    def_id: str


def role_of(agent_id: str, judged: Judged) -> Role:
    """The role of a submitter with this handle ("" outside of runs)."""
    if not agent_id:
        return "external"
    if agent_id == judged.agent_id:
        return "self"
    if agent_id == judged.parent_agent_id:
        return "parent"
    return "unrelated"


def scopes_for(role: Role) -> tuple[str, ...]:
    """The scopes of which one is needed to submit in this role."""
    own = _OWN_SCOPE.get(role)
    return (own, SUBMIT_ANY) if own is not None else (SUBMIT_ANY,)


def may_submit(role: Role, scopes: Collection[str]) -> bool:
    return any(scope in scopes for scope in scopes_for(role))
