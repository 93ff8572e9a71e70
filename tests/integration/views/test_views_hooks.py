"""What the views answer about hooks."""

from __future__ import annotations

from typing import Any

import pytest

from events import hooks
from projections.framework import ViewHeld
from projections.views import Views
from tests.integration.views.world import World

pytestmark = pytest.mark.integration


def hook(name: str, **fields: Any) -> hooks.HookRegistered:
    given = {
        "id": f"hook_{name}",
        "owner": "app",
        "phase": "pre",
        "callback_url": "http://x",
        "registered_at_ns": 5,
    }
    return hooks.HookRegistered(name=name, **given | fields)  # type: ignore[arg-type]


async def note(world: World, event: hooks.HookEvent) -> None:
    subject = world.store.subjects.state("hook", event.tenant, event.owner, event.name)
    await world.store.log.append(subject, hooks.encode(event))


async def test_hooks_stand_in_the_order_of_their_chain(world: World, views: Views) -> None:
    for name in ("b", "a", "c"):
        await note(world, hook(name))
    await note(world, hook("b", id="hook_new", phase="post", agents=("x*",), tools=()))
    gone = hook("a")
    await note(world, hooks.HookDeleted(id=gone.id, owner=gone.owner, name=gone.name))
    await note(world, gone)
    await world.catch_up(views)
    found = await views.queries.hooks(None)
    assert [row.id for row in found] == ["hook_new", "hook_c", "hook_a"]
    assert (found[0].phase, found[0].agents, found[0].tools) == ("post", ("x*",), ())
    assert (found[1].agents, found[1].fail_mode, found[1].timeout_ms) == (None, "open", 0)


async def test_a_tenant_has_its_own(world: World, views: Views) -> None:
    await note(world, hook("a", id="hook_1"))
    await note(world, hook("a", id="hook_2", tenant="acme"))
    await note(world, hook("a" * 5000, id="hook_3", tenant="acme", owner="ü" * 3000))
    await world.catch_up(views)
    assert [row.id for row in await views.queries.hooks("acme")] == ["hook_2", "hook_3"]
    assert [row.id for row in await views.queries.hooks("")] == ["hook_1"]
    assert len(await views.queries.hooks(None)) == 3


async def test_what_cannot_be_read_is_a_problem(world: World, views: Views) -> None:
    subject = world.store.subjects.state("hook", "", "app", "x")
    await world.store.log.append(subject, b"garbage")
    await note(world, hook("a"))
    await world.catch_up(views)
    assert [row.id for row in await views.queries.hooks(None)] == ["hook_a"]
    (problem,) = await views.queries.problems()
    assert (problem.view, problem.what, problem.kind) == ("hooks", subject, "broken")
    report = await views.verify()
    assert report.equal, report


async def test_a_hook_of_a_newer_version_holds_the_view(world: World, views: Views) -> None:
    subject = world.store.subjects.state("hook", "", "app", "x")
    await world.store.log.append(subject, b'{"type":"hook.moved","v":9}')
    with pytest.raises(ViewHeld):
        await world.catch_up(views)
