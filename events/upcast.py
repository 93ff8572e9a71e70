"""Old event bodies made new, one step of one type at a time (tests keep a real old event each).

A step is a pure function from the fields of version v to those of version v + 1. Steps are
never removed: a journal of any age must fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Fields = dict[str, Any]
Step = Callable[[Fields], Fields]

STEPS: Mapping[tuple[str, int], Step] = {}
"""(type, version it starts from) -> step."""


def upcast(
    event_type: str,
    version: int,
    target: int,
    fields: Fields,
    steps: Mapping[tuple[str, int], Step] = STEPS,
) -> Fields:
    """Bring ``fields`` from ``version`` to ``target``. Raises KeyError when a step is missing."""
    for v in range(version, target):
        fields = steps[event_type, v](fields)
    return fields
