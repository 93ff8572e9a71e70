"""What a section of the bench gets: settings to follow, and where its figures go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.targets import TARGETS


class Unavailable(Exception):
    """A section cannot be measured on this machine; the message says why."""


class Bench:
    """``figures`` by the names of ``targets.TARGETS``; ``rows``: (variant, throughput row)."""

    def __init__(self, directory: Path, *, quick: bool, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.quick = quick
        self.windows = 2 if quick else 5
        self.window_s = 1.0 if quick else 3.0
        self.figures: dict[str, float] = {}
        self.rows: list[tuple[str, Any]] = []
        self.skipped: dict[str, str] = {}
        self._say = say

    def figure(self, name: str, value: float) -> None:
        """Note a measured figure. Raises KeyError for one without an entry in the table."""
        target = TARGETS[name]
        self.figures[name] = value
        verdict = {True: "pass", False: "miss", None: ""}[target.met(value)]
        self._say(f"  {target.label}: {value:.4g} {target.unit} {target.wanted()} {verdict}")

    def row(self, variant: str, row: Any) -> None:
        self.rows.append((variant, row))
        self._say(
            f"  {variant}, {row.concurrency}: {row.runs_s:.0f} runs/s, p50 {row.p50_ms:.2f} ms,"
            f" p99 {row.p99_ms:.1f} ms, CPU {row.python_ms:.3f} + {row.nats_ms:.3f} ms,"
            f" generator {row.generator_ms:.3f} ms, others {row.others:.0%}"
            f"{f', errors {row.errors}' if row.errors else ''}"
        )
