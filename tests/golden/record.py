"""``python -m tests.golden.record [SHAPE ...]``: record this release's golden journals.

Only the directory of the current version is written; journals of earlier releases stay as they
are, for ever. Each file is proven and read back before it counts, and the documents that quote
one are written again.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from events.log import EventStore
from loomcycle import __version__
from tests.docs.documents import rewrite
from tests.golden.facts import facts_of, proof_of
from tests.golden.format import DIRECTORY, Expected, Golden, Shape, read, write
from tests.golden.playback import store_of, taken_from
from tests.golden.shapes import IN_A_DIRECTORY, NAMES, ON_ONE_STAGE, name_of, why_of
from tests.golden.stage import MakeIn, MakeOn, Stage, open_stage
from tests.wire.vendors import FakeVendor


class NotProven(Exception):
    """The journal of a real run does not say what the machine would have done."""


async def main(*wanted: str) -> int:
    """Record the shapes ``wanted`` (all without a name); the number of those that failed."""
    unknown = set(wanted) - set(NAMES)
    if unknown:
        raise SystemExit(f"no such shape: {', '.join(sorted(unknown))}; there are {NAMES}")
    chosen = set(wanted or NAMES)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        failed = await _record_together(root, [m for m in ON_ONE_STAGE if name_of(m) in chosen])
        for make in IN_A_DIRECTORY:
            if name_of(make) in chosen:
                failed += await _tried(name_of(make), _record_alone(root, make))
    for document in rewrite():
        print(f"written: {document}")
    return failed


async def _record_together(root: Path, makes: list[MakeOn]) -> int:
    if not makes:
        return 0
    failed = 0
    async with FakeVendor() as vendor, open_stage(root / "shared", vendor) as stage:
        for make in makes:
            stage.enter(make.__name__)
            vendor.replies.clear()
            failed += await _tried(name_of(make), _record_on(stage, make))
    return failed


async def _record_on(stage: Stage, make: MakeOn) -> None:
    await save(stage.runtime.store, await make(stage), make)


async def _record_alone(root: Path, make: MakeIn) -> None:
    async with FakeVendor() as vendor:

        async def export(store: EventStore, run: str) -> None:
            await save(store, run, make)

        await make(root / make.__name__, vendor, export)


async def _tried(name: str, recording: Coroutine[Any, Any, None]) -> bool:
    """Whether ``recording`` failed; one shape must not hide the others."""
    try:
        await recording
    except Exception:
        traceback.print_exc()
        print(f"{name}: NOT RECORDED")
        return True
    return False


async def save(store: EventStore, run: str, make: MakeOn | MakeIn) -> None:
    """Raises NotProven."""
    name = name_of(make)
    path = DIRECTORY / __version__ / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    blobs, commits = await taken_from(store, "", run)
    golden = Golden(
        shape=Shape(name, why_of(make), __version__),
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
    print(f"{name}: {len(commits)} commits, {report.effects} effects proven")


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main(*sys.argv[1:])) else 0)
