"""What the evaluations of a definition amount to (specification: tools.md section 3.14)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from projections.rows import EvaluationStats


class Stats(Struct, frozen=True):
    """Of one group of values; all zero when there are none."""

    mean: float = 0
    median: float = 0
    min: float = 0
    max: float = 0
    latest: float = 0
    count: int = 0


class Aggregate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of ``aggregate``; groups by name, left out when there are none."""

    def_id: str
    count: int
    score: Stats
    dimensions: dict[str, Stats] = {}
    by_emitter_role: dict[str, Stats] = {}
    lineage_included: bool


def aggregate(def_id: str, groups: Iterable[EvaluationStats], *, lineage: bool) -> Aggregate:
    """``lineage`` says whether ancestors of the definition were to be counted too."""
    named: dict[str, dict[str, Stats]] = {"score": {}, "role": {}, "dimension": {}}
    for group in sorted(groups, key=lambda group: group.name):
        named[group.kind][group.name] = Stats(
            group.mean, group.median, group.min, group.max, group.latest, group.count
        )
    score = named["score"].get("", Stats())
    return Aggregate(
        def_id=def_id,
        count=score.count,
        score=score,
        dimensions=named["dimension"],
        by_emitter_role=named["role"],
        lineage_included=lineage,
    )
