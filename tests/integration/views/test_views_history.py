"""What the views answer about the past of a session (tools.md section 3.12, ``history``)."""

from __future__ import annotations

import pytest

from events import vocabulary as v
from projections.views import Views
from tests.integration.journals import SECOND, Journal, answered, called, ending, finished, opening
from tests.integration.views.world import RUN, SESSION, World

pytestmark = pytest.mark.integration

LATER = "r_00000000000000b7"


async def two_runs(world: World, views: Views) -> None:
    """Commits at seconds 1, 2 and 3, and at 101 and 102."""
    first = Journal(RUN)
    await world.append(first, *opening(RUN))
    await world.append(first, called("t1", "Read"))
    await world.append(first, answered("t1", "Read"), *ending())
    second = Journal(LATER, at=101 * SECOND)
    await world.append(second, *opening(LATER, session=SESSION))
    await world.append(second, v.Text(text="again"), finished())
    await world.catch_up(views)


async def types(views: Views, *, limit: int = 99, since_ns: int = 0, of: str = "") -> list[str]:
    rows = await views.queries.history(SESSION, types=of.split(), since_ns=since_ns, limit=limit)
    assert [row.seq for row in rows] == sorted(row.seq for row in rows)
    return [row.type for row in rows]


async def test_all_runs_of_a_session_oldest_first(world: World, views: Views) -> None:
    await two_runs(world, views)
    opened = ["user_input", "system_prompt", "started"]
    assert await types(views) == [
        *opened, "tool_call", "tool_result", "text", "usage", "done", *opened, "text",
    ]  # fmt: skip
    assert await types(views, limit=4) == [*opened, "tool_call"]


async def test_only_the_types_that_are_asked_for(world: World, views: Views) -> None:
    await two_runs(world, views)
    assert await types(views, of="text tool_call") == ["tool_call", "text", "text"]
    assert await types(views, of="text tool_call", limit=1) == ["tool_call"]
    assert await types(views, of="tex") == []
    assert await types(views, of="toolXcall %") == []


async def test_nothing_that_is_older_than_a_time(world: World, views: Views) -> None:
    await two_runs(world, views)
    assert await types(views, since_ns=101 * SECOND, of="started text") == ["started", "text"]
    assert await types(views, since_ns=101 * SECOND + 1, of="started text") == ["text"]
    assert await types(views, since_ns=103 * SECOND) == []


async def test_a_session_that_nobody_knows_has_no_past(world: World, views: Views) -> None:
    await world.catch_up(views)
    assert await views.queries.history("s_ffffffffffffffff", limit=9) == []
