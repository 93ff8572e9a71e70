"""``python -m loomcycle.cli`` is ``loomcycle``."""

import sys

from loomcycle.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
