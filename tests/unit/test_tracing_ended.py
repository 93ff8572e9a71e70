"""Runs that ended are read in the background: bounded, one by one, and nothing ends the tracing."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from events.vocabulary import RunStarted
from loomcycle.loading import Plans, opening, read_commits
from loomcycle.tracing.ended import EndedRuns
from loomcycle.tracing.spans import Span
from tests.golden.format import DIRECTORY, read
from tests.golden.playback import store_of

ROOT = Path(__file__).parents[2]


class Collected:
    """A sink that keeps what it is given, while it is open."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.open = asyncio.Event()

    async def take(self, spans: Sequence[Span]) -> None:
        await self.open.wait()
        self.runs.append(str(spans[0].attributes["loomcycle.run_id"]))


async def traced(
    *, ratio: float = 1.0, waiting: int = 10
) -> tuple[EndedRuns, Collected, RunStarted]:
    golden = read(DIRECTORY / "0.1.0" / "one-turn.jsonl")
    store = await store_of(golden)
    [first, *_] = await read_commits(store, "", golden.expected.run)
    facts = opening(first)
    assert facts is not None
    sink = Collected()
    return EndedRuns(store, Plans(store), sink, ratio=ratio, waiting=waiting), sink, facts


async def test_runs_that_wait_are_still_traced_when_the_process_stops() -> None:
    runs, sink, facts = await traced()
    runs.start()
    runs.ended(facts)
    runs.ended(facts)
    sink.open.set()
    await runs.stop()
    assert sink.runs == [facts.run] * 2


async def test_what_does_not_fit_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    runs, sink, facts = await traced(waiting=2)
    for _ in range(5):
        runs.ended(facts)
    assert runs.dropped == 3
    assert "3 dropped so far" in caplog.text
    sink.open.set()
    runs.start()
    await runs.stop()
    assert sink.runs == [facts.run] * 2


async def test_a_run_that_cannot_be_read_does_not_end_the_tracing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs, sink, facts = await traced()
    sink.open.set()
    runs.start()
    runs.ended(replace(facts, run="r_gone"))
    runs.ended(replace(facts, plan="gone"))
    runs.ended(facts)
    await runs.stop()
    assert sink.runs == [facts.run]
    assert caplog.text.count("is not traced") == 2


async def test_a_run_that_is_not_sampled_is_not_read() -> None:
    runs, sink, facts = await traced(ratio=0.0)
    sink.open.set()
    runs.start()
    runs.ended(facts)
    await runs.stop()
    assert sink.runs == []


def imports_at_the_top(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    names = {a.name for node in body if isinstance(node, ast.Import) for a in node.names}
    return names | {str(n.module) for n in body if isinstance(n, ast.ImportFrom)}


def test_what_tracing_needs_is_imported_only_when_it_is_on() -> None:
    exporter = ROOT / "loomcycle" / "tracing" / "export.py"
    heavy = ("opentelemetry", "requests", "loomcycle.tracing.export")
    found = [
        f"{path.name} imports {name}"
        for package in ("events", "replay", "projections", "loomcycle", "gateways")
        for path in (ROOT / package).rglob("*.py")
        if path != exporter
        for name in imports_at_the_top(path)
        if name.startswith(heavy)
    ]
    assert found == []
    assert any(name.startswith("opentelemetry") for name in imports_at_the_top(exporter))
