"""``python -m tests.golden.record [SHAPE ...]``: record this release's golden journals.

Only the directory of the current version is written; journals of earlier releases stay as they
are, for ever. Each file is proven and read back before it counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from events.log import EventStore
from loomcycle import __version__
from tests.golden import shapes
from tests.golden.facts import facts_of, proof_of
from tests.golden.format import DIRECTORY, Expected, Golden, Shape, read, write
from tests.golden.playback import store_of, taken_from
from tests.golden.shapes import IN_A_DIRECTORY, NAMES, ON_ONE_STAGE, MakeIn, MakeOn
from tests.golden.stage import open_stage
from tests.wire.vendors import FakeVendor


class NotProven(Exception):
    """The journal of a real run does not say what the machine would have done."""


async def main(*wanted: str) -> None:
    unknown = set(wanted) - set(NAMES)
    if unknown:
        raise SystemExit(f"no such shape: {', '.join(sorted(unknown))}; there are {NAMES}")
    chosen = set(wanted or NAMES)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        shared = [make for make in ON_ONE_STAGE if shapes.name_of(make) in chosen]
        if shared:
            await _record_together(root, shared)
        for make in IN_A_DIRECTORY:
            if shapes.name_of(make) in chosen:
                await _record_alone(root, make)


async def _record_together(root: Path, makes: list[MakeOn]) -> None:
    async with FakeVendor() as vendor, open_stage(root / "shared", vendor) as stage:
        for make in makes:
            stage.name, stage._ids = make.__name__, 0
            await save(stage.runtime.store, await make(stage), make)


async def _record_alone(root: Path, make: MakeIn) -> None:
    async with FakeVendor() as vendor:

        async def export(store: EventStore, run: str) -> None:
            await save(store, run, make)

        await make(root / make.__name__, vendor, export)


async def save(store: EventStore, run: str, make: MakeOn | MakeIn) -> None:
    """Raises NotProven."""
    name = shapes.name_of(make)
    path = DIRECTORY / __version__ / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    blobs, commits = await taken_from(store, "", run)
    golden = Golden(
        shape=Shape(name, shapes.why_of(make), __version__),
        blobs=blobs,
        commits=commits,
        expected=Expected(run, await facts_of(store, "", run)),
    )
    report = await proof_of(store, "", run)
    if not report.ok or not report.complete:
        raise NotProven(f"{name}: {report}")
    write(path, golden)
    if await facts_of(await store_of(read(path)), "", run) != golden.expected.facts:
        raise NotProven(f"{name}: the file does not say what the log said")
    print(f"{path.relative_to(DIRECTORY.parents[1])}: {len(commits)} commits, {report}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
