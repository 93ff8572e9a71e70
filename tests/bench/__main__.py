"""``python -m tests.bench``: measure every figure of the speed table, next to its target."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tests.bench import (
    fairness,
    fan_out,
    hot_path,
    journals,
    parked,
    reactions,
    report,
    shared_budget,
    starts,
    throughput,
)
from tests.bench.bench import Bench, Unavailable
from tests.bench.deployment import ROOT
from tests.bench.machine import this_machine

SECTIONS: dict[str, Callable[[Bench], None]] = {
    "rates": throughput.rates,
    "memory-disk": throughput.memory_disk,
    "flush": throughput.slow_flush,
    "postgres": throughput.postgres,
    "workers": throughput.workers,
    "memory": throughput.memory,
    "starts": starts.starts,
    "idle": throughput.idle,
    "rebuild": journals.rebuild,
    "long-run": journals.long_run,
    "program": journals.program,
    "long-program": journals.long_program,
    "recovery": starts.recovery,
    "parked": parked.parked,
    "fan-out": fan_out.fan_out,
    "inputs": reactions.inputs,
    "cancels": reactions.cancels,
    "fairness": fairness.fairness,
    "budget": shared_budget.budget,
}
DOCUMENT = ROOT / "docs" / "performance.md"


def main() -> int:
    """0, or 1 when a section failed; missed targets are reported, not failed."""
    options = _options()
    console = Console()

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    failed = False
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="loomcycle-bench-") as folder:
        machine = this_machine(Path(folder))
        say(report.describe(machine))
        bench = Bench(Path(folder), quick=options.quick, say=say)
        for name in () if options.profile else options.only or SECTIONS:
            say(f"{name}: {(SECTIONS[name].__doc__ or '').splitlines()[0]}")
            try:
                SECTIONS[name](bench)
            except Unavailable as reason:
                bench.skipped[name] = str(reason)
            except Exception as cause:
                console.print_exception()
                bench.skipped[name] = f"failed: {cause}".splitlines()[0]
                failed = True
        whole = not (options.quick or options.only or options.no_docs)
        if options.profile:
            profile = hot_path.profile(bench)
            say(profile)
            if whole:
                report.replace_block(DOCUMENT, "profile", profile)
            return 0
    report.show(console, bench, machine)
    if options.json:
        options.json.write_bytes(report.as_json(bench, machine))
    if whole:
        report.replace_block(DOCUMENT, "figures", report.markdown(bench, machine))
        say(f"written to {DOCUMENT.relative_to(ROOT)}")
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="one section; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument(
        "--dir", type=Path, help="where data directories are made (default: the temporary one)"
    )
    parser.add_argument("--profile", action="store_true", help="only profile the hot path")
    parser.add_argument(
        "--no-docs",
        action="store_true",
        help="leave docs/performance.md alone (--quick and --only do, too)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
