"""What the views answer about evaluations (tools.md section 3.14)."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from msgspec import Raw

from events import evaluations
from events.evaluations import EvaluationSubmitted
from projections.rows import EvaluationStats
from projections.views import Views
from tests.integration.views.world import World

pytestmark = pytest.mark.integration

RUN = "r_00000000000000a1"


def evaluation(ident: str, **fields: Any) -> EvaluationSubmitted:
    given: dict[str, Any] = {
        "eval_id": ident,
        "run_id": RUN,
        "def_id": "def_1",
        "score": 1.0,
        "emitter_role": "self",
        "created_at_ns": 5,
    }
    return EvaluationSubmitted(**(given | fields))


async def submit(world: World, event: EvaluationSubmitted) -> None:
    subject = world.store.subjects.state("eval", event.tenant, event.run_id, event.eval_id)
    await world.store.log.append(subject, evaluations.encode(event))


async def test_an_evaluation_is_found_as_it_was_submitted(world: World, views: Views) -> None:
    await submit(
        world,
        evaluation(
            "eval_1",
            tenant="t",
            score=-0.5,
            dimensions={"tone": 1.5, "facts": 2},
            judgement=Raw(b'{"n": 12345678901234567890}'),
            rationale="so\n",
            emitter_agent_id="a_1",
        ),
    )
    await world.catch_up(views)
    row = await views.queries.evaluation("eval_1", "t")
    assert row is not None
    assert (row.run_id, row.def_id, row.score, row.created_ns) == (RUN, "def_1", -0.5, 5)
    assert row.dimensions == '{"facts":2.0,"tone":1.5}'
    assert row.judgement == '{"n": 12345678901234567890}'
    assert (row.rationale, row.emitter_role, row.emitter_agent_id) == ("so\n", "self", "a_1")


async def test_evaluations_of_another_tenant_do_not_exist(world: World, views: Views) -> None:
    await submit(world, evaluation("eval_1", tenant="t"))
    await world.catch_up(views)
    queries = views.queries
    assert await queries.evaluation("eval_1", "other") is None
    assert await queries.evaluations_of_run(RUN, "other") == []
    assert await queries.evaluations_of_def("def_1", "other") == []
    assert await queries.evaluation_stats("def_1", "other") == []
    assert await queries.evaluation("eval_1", None) is not None
    assert len(await queries.evaluation_stats("def_1", None)) == 2


async def test_lists_are_newest_first_and_cut(world: World, views: Views) -> None:
    for ident, at in (("eval_b", 7), ("eval_a", 9), ("eval_c", 7), ("eval_d", 1)):
        await submit(world, evaluation(ident, created_at_ns=at))
    await submit(world, evaluation("eval_static", def_id="", created_at_ns=99))
    await world.catch_up(views)
    of_run = await views.queries.evaluations_of_run(RUN, None, 3)
    assert [row.eval_id for row in of_run] == ["eval_static", "eval_a", "eval_c"]
    of_def = await views.queries.evaluations_of_def("def_1", None)
    assert [row.eval_id for row in of_def] == ["eval_a", "eval_c", "eval_b", "eval_d"]
    assert await views.queries.evaluations_of_def("", None) == []
    assert await views.queries.evaluation_stats("", None) == []


async def test_a_repeated_submission_is_one_row(world: World, views: Views) -> None:
    await submit(world, evaluation("eval_1", score=1.0, dimensions={"a": 1.0}))
    await submit(world, evaluation("eval_1", score=2.0, dimensions={"a": 2.0}))
    await world.catch_up(views)
    rows = await views.queries.evaluations_of_run(RUN, None)
    assert [row.score for row in rows] == [1.0]
    assert {group.count for group in await views.queries.evaluation_stats("def_1", None)} == {1}


def expected(kind: str, name: str, values: list[tuple[int, float]]) -> EvaluationStats:
    """Statistics of (time, value) pairs that were submitted in this order."""
    plain = [value for _, value in values]
    latest = max(enumerate(values), key=lambda item: (item[1][0], item[0]))[1][1]
    return EvaluationStats(
        kind=kind,
        name=name,
        mean=statistics.fmean(plain),
        median=statistics.median(plain),
        min=min(plain),
        max=max(plain),
        latest=latest,
        count=len(plain),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 40])
async def test_statistics_equal_those_of_the_plain_values(
    world: World, views: Views, count: int
) -> None:
    chance = random.Random(count)
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for index in range(count):
        at, score = chance.randrange(9), chance.choice([0.0, 0.1, 1.0, -3.5, 1e9])
        role = chance.choice(["self", "parent"])
        names = chance.sample(["tone", "a\0b", "x"], chance.randrange(4))
        dimensions = {name: chance.random() for name in names}
        event = evaluation(
            f"eval_{index}",
            score=score,
            emitter_role=role,
            created_at_ns=at,
            dimensions=dimensions or None,
        )
        await submit(world, event)
        for key, value in [
            (("score", ""), score),
            (("role", role), score),
            *((("dimension", name), value) for name, value in dimensions.items()),
        ]:
            groups.setdefault(key, []).append((at, value))
    await world.catch_up(views)
    found = {
        (group.kind, group.name.replace("\ufffd", "\0")): group
        for group in await views.queries.evaluation_stats("def_1", None)
    }
    assert found.keys() == groups.keys()
    for (kind, name), values in groups.items():
        wanted, group = expected(kind, name, values), found[kind, name]
        assert (group.min, group.max, group.latest, group.count) == (
            wanted.min,
            wanted.max,
            wanted.latest,
            wanted.count,
        )
        assert math.isclose(group.mean, wanted.mean, abs_tol=1e-9)
        assert math.isclose(group.median, wanted.median, abs_tol=1e-9)


async def test_an_unreadable_evaluation_is_a_problem_and_nothing_else(
    world: World, views: Views
) -> None:
    subject = world.store.subjects.state("eval", "", RUN, "eval_1")
    await world.store.log.append(subject, b'{"type":"evaluation.submitted"}')
    await submit(world, evaluation("eval_2"))
    await world.catch_up(views)
    (problem,) = await views.queries.problems()
    assert (problem.view, problem.what, problem.kind) == ("evaluations", subject, "broken")
    assert len(await views.queries.evaluations_of_run(RUN, None)) == 1


async def test_verify_holds_evaluations_against_the_log(world: World, views: Views) -> None:
    await submit(world, evaluation("eval_1", dimensions={"a": 0.1, "b": 1e-300}))
    await world.catch_up(views)
    assert (await views.verify()).equal
