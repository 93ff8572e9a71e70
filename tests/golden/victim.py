"""A process that starts a run and is killed while the model speaks (``shapes.taken_over``)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

from tests.golden.stage import open_stage, spoken
from tests.wire.vendors import FakeVendor


class Elsewhere:
    """A vendor that another process plays."""

    def __init__(self, url: str) -> None:
        self.url = url


async def main(directory: str, vendor_url: str) -> None:
    vendor = cast(FakeVendor, Elsewhere(vendor_url))
    async with open_stage(Path(directory), vendor, name="taken_over") as stage:
        run = await stage.start("asker")
        print(run.run_id, flush=True)
        await spoken(run, "Half a sent")
        print("spoken", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
