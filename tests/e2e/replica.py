"""``python -m tests.e2e.replica CONFIG``: one serving process on a free port, as ``serve`` has it.

Settings come from the process environment; the address is printed once connections are taken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loomcycle.address import Address
from loomcycle.config.loading import load
from loomcycle.logs import start_logging
from loomcycle.replica import run_replica


def main(config: str) -> int:
    start_logging()
    file = Path(config)
    return run_replica(load([file], dict(os.environ), file.parent), Address("127.0.0.1", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
