"""The report: a table on the terminal, JSON, and the blocks of ``docs/performance.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench.bench import Bench
from tests.bench.machine import Machine
from tests.bench.targets import TARGETS

VERDICTS = {True: "pass", False: "miss", None: ""}


def show(console: Console, bench: Bench, machine: Machine) -> None:
    """Print every figure next to its target."""
    console.print(describe(machine), highlight=False)
    rates = Table(
        "load", "at", "runs/s", "p50 ms", "p99 ms", "CPU ms", "generator ms", "others", "errors"
    )
    for variant, row in bench.rows:
        rates.add_row(*_row_cells(variant, row))
    if bench.rows:
        console.print(rates)
    figures = Table("figure", "value", "unit", "target", "")
    for name, target in TARGETS.items():
        if name in bench.figures:
            verdict = target.met(bench.figures[name])
            figures.add_row(
                target.label,
                number(bench.figures[name]),
                target.unit,
                target.wanted(),
                VERDICTS[verdict],
                style="red" if verdict is False else "",
            )
    console.print(figures)
    for section, reason in bench.skipped.items():
        console.print(f"{section}: not measured: {reason}", highlight=False)


def as_json(bench: Bench, machine: Machine) -> bytes:
    """All figures with their targets, one object."""
    figures: dict[str, Any] = {}
    for name, value in bench.figures.items():
        target = TARGETS[name]
        figures[name] = {
            "label": target.label,
            "value": value,
            "unit": target.unit,
            "target": target.limit,
            "better": target.better,
            "met": target.met(value),
        }
    rows = [{"variant": variant, **msgspec.to_builtins(row)} for variant, row in bench.rows]
    document = {
        "machine": machine,
        "quick": bench.quick,
        "figures": figures,
        "rates": rows,
        "skipped": bench.skipped,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def markdown(bench: Bench, machine: Machine) -> str:
    """The figures as they stand in the documentation."""
    lines = [describe(machine), ""]
    if bench.rows:
        lines += [
            "| Load | at | runs/s | p50 ms | p99 ms | CPU a run ms: Python + nats-server"
            " | generator ms | others | errors |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---|",
            *("| " + " | ".join(_row_cells(v, r)) + " |" for v, r in bench.rows),
            "",
        ]
    lines += ["| Figure | Value | Target | |", "|---|---:|---:|---|"]
    for name, target in TARGETS.items():
        if name in bench.figures:
            value = f"{number(bench.figures[name])} {target.unit}"
            verdict = VERDICTS[target.met(bench.figures[name])]
            lines.append(f"| {target.label} | {value} | {target.wanted()} | {verdict} |")
    lines += [f"\nNot measured, {section}: {why}." for section, why in bench.skipped.items()]
    return "\n".join(lines)


def describe(machine: Machine) -> str:
    return (
        f"Machine: {machine.cores} cores ({machine.cpu}), {machine.memory_gb:g} GB, "
        f"{machine.kernel}, Python {machine.python}; a flush of 400 bytes takes "
        f"{machine.flush_ms:g} ms (median of fdatasync); load average before: {machine.load:g}."
    )


def replace_block(file: Path, name: str, content: str) -> None:
    """Put ``content`` between the markers ``name`` of ``file``. Raises ValueError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = file.read_text()
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{file} has no block {name!r}")
    file.write_text(f"{before}{begin}\n{content}\n{end}{after}")


def number(value: float) -> str:
    """Three significant digits, whole numbers above a hundred."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def _row_cells(variant: str, row: Any) -> list[str]:
    return [
        variant,
        str(row.concurrency),
        number(row.runs_s),
        f"{row.p50_ms:.2f}",
        f"{row.p99_ms:.1f}",
        f"{row.cpu_ms:.2f}: {row.python_ms:.2f} + {row.nats_ms:.2f}",
        f"{row.generator_ms:.3f}",
        f"{row.others:.0%}",
        ", ".join(f"{kind}: {count}" for kind, count in row.errors.items()),
    ]
